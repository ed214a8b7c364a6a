"""What belongs to this run of the tests at one moment: processes, threads, descriptors and temporary files.

Two snapshots are compared by the fixture of `conftest.py`, which ends and reports what a test left behind.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import os
import re
import resource
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import psutil

GRACE_S = 20.0  # ends of processes and threads take a moment, more on a busy machine

#: In the environment of the whole run. Not a ROPEWALK_ variable: those are settings, and unknown ones are refused.
MARK = "TESTS_OF_ROPEWALK"

#: Threads of other libraries that start once and stay.
IGNORED_THREADS = re.compile(r"hypothesis|matplotlib|tqdm|pytest", re.IGNORECASE)
#: Files that other libraries open once and keep.
IGNORED_FILES = re.compile(r"^/dev/|^/proc/|^/sys/|/\.hypothesis/|/site-packages/|/matplotlib/|\.pyc$")
#: multiprocessing's own folder of a process, which it removes at its end; and torch's compiler cache, made on import.
IGNORED_ENTRIES = ("pymp-", "torchinductor_")


@dataclasses.dataclass
class Snapshot:
    """What belongs to this run at one moment; each key says what it is, each value says it to people."""

    processes: dict[tuple[int, float], str]
    threads: dict[threading.Thread, str]
    descriptors: dict[tuple[int, str], str]
    entries: dict[str, str]

    @classmethod
    def take(cls, scan: Scan | None = None) -> Snapshot:
        return cls((scan or Scan()).processes(), _threads(), _descriptors(), _entries())

    def without(self, before: Snapshot) -> Snapshot:
        def new(now: dict[Any, str], then: dict[Any, str]) -> dict[Any, str]:
            return {key: words for key, words in now.items() if key not in then}

        return Snapshot(
            new(self.processes, before.processes),
            new(self.threads, before.threads),
            new(self.descriptors, before.descriptors),
            new(self.entries, before.entries),
        )

    def what_stays(self, scan: Scan | None = None, exempt: Callable[[], set[int]] = set) -> Snapshot:
        """What is here and was not before, after time for the ends of processes and threads.

        Args:
            scan: finds the processes; a new one by default.
            exempt: the pids of those that may stay.
        """
        deadline = time.monotonic() + GRACE_S
        pause_s = 0.005
        while True:
            left = Snapshot.take(scan).without(self)
            if left.processes:
                may_stay = exempt()
                left.processes = {key: words for key, words in left.processes.items() if key[0] not in may_stay}
            if not left or time.monotonic() > deadline:
                return left
            time.sleep(pause_s)
            pause_s = min(0.2, 2 * pause_s)
            # What only waits for the collector, such as a cycle through a traceback, is not a leak of ours. Most of
            # what is left at the first look is gone at the second one, and with torch a collection takes as long as
            # 50 such looks.
            if pause_s > 0.02:
                gc.collect()

    def __bool__(self) -> bool:
        return bool(self.processes or self.threads or self.descriptors or self.entries)

    def describe(self) -> str:
        kinds = {
            "process": self.processes,
            "thread": self.threads,
            "descriptor": self.descriptors,
            "temporary file": self.entries,
        }
        return "\n".join(f"  {kind}: {words}" for kind, found in kinds.items() for words in found.values())


class Scan:
    """Finds what belongs to this run: our descendants, and what else carries the mark, wherever it hangs in the tree.

    To look for the mark is to read all of /proc, 8 ms where 170 processes run and more where more do; two looks a test
    were a tenth of the whole run. A process outside of our tree has an ancestor that was our child, and has ended. So
    /proc is read again only when a child has ended since the last time, or where that cannot be known.
    """

    def __init__(self) -> None:
        self._ended: tuple[int, float] | None = None
        self._marked: list[int] = []

    def processes(self) -> dict[tuple[int, float], str]:
        """Words about each process, by its pid and when it began."""
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        ended = usage.ru_minflt, usage.ru_utime + usage.ru_stime  # of children that were waited for: no two are equal
        if ended != self._ended or signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:
            self._marked = list(_marked_pids())
            self._ended = ended
        described: dict[tuple[int, float], str] = {}
        for pid in {*_all_descendants(), *self._marked}:
            with contextlib.suppress(psutil.Error):
                process = psutil.Process(pid)
                described[pid, process.create_time()] = (
                    f"pid {pid} ({process.status()}, parent {process.ppid()}): {_command(process)}"
                )
        return described


def _all_descendants() -> list[int]:
    """Of this process. The kernel's list may leave one out while another one ends: two equal ones are believed."""
    if not os.path.exists("/proc/thread-self/children"):
        return [child.pid for child in psutil.Process().children(recursive=True)]
    before = None
    while before != (found := _descendants(os.getpid())):
        before = found
    return found


def _descendants(pid: int) -> list[int]:
    found: list[int] = []
    for task in _listed(f"/proc/{pid}/task"):
        with contextlib.suppress(OSError):  # it ended just now, and its children are those of another one
            with open(f"/proc/{pid}/task/{task}/children") as children:
                found += map(int, children.read().split())
    return found + [below for child in found for below in _descendants(child)]


def _listed(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())[:200] or process.name()
    except psutil.ZombieProcess:
        return f"{process.name()}, which nobody waited for"


def _marked_pids() -> Iterator[int]:
    mark = f"{MARK}={os.environ[MARK]}".encode()
    for pid in filter(str.isdigit, _listed("/proc")):
        if int(pid) != os.getpid() and mark in _environment(pid):
            yield int(pid)


def _environment(pid: str) -> bytes:
    """What a process began with; nothing for a zombie, for the kernel's own, and for those of others."""
    with contextlib.suppress(OSError):
        while True:
            end = _end_of_environment(pid)
            with open(f"/proc/{pid}/environ", "rb") as environ:
                if found := environ.read():
                    return found
            os.readlink(f"/proc/{pid}/exe")  # fails for what has no program
            # In the middle of `exec` the program is there already and its environment not yet: nothing was read, then.
            if end and end == _end_of_environment(pid):
                return b""
            time.sleep(0.0001)
    return b""


def _end_of_environment(pid: str) -> int:
    """Where it ends in the memory of a process; 0 as long as there is none."""
    with open(f"/proc/{pid}/stat") as stat:
        return int(stat.read().rpartition(")")[2].split()[48])


def _threads() -> dict[threading.Thread, str]:
    return {
        thread: f"{thread.name}{' (daemon)' if thread.daemon else ''}, target {_target(thread)}"
        for thread in threading.enumerate()
        if not IGNORED_THREADS.search(thread.name) and not isinstance(thread, threading._DummyThread)
    }


def _target(thread: threading.Thread) -> str:
    target: Callable[..., object] | None = getattr(thread, "_target", None)
    return getattr(target, "__qualname__", repr(target))


def _descriptors() -> dict[tuple[int, str], str]:
    found: dict[tuple[int, str], str] = {}
    for name in _listed("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the descriptor of the listing itself is closed again
            target = os.readlink(f"/proc/self/fd/{name}")
            if int(name) > 2 and not IGNORED_FILES.search(target):  # pytest replaces those, and puts them back
                found[int(name), target] = f"{name} -> {target}"
    return found


def _entries() -> dict[str, str]:
    folder = os.environ[MARK]
    return {name: os.path.join(folder, name) for name in os.listdir(folder) if not name.startswith(IGNORED_ENTRIES)}
