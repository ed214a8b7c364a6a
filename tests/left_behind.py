"""What belongs to this run of the tests at one moment: processes, threads, descriptors and temporary files.

Two snapshots are compared by the fixture of `conftest.py`, which ends and reports what a test left behind.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
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

GRACE_S = 60.0  # ends of processes and threads take a moment, more on a busy machine

_WALL = 0x40000000
"""Of waitid(2): children of every kind."""

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
    """What belongs to this run at one moment; of what is a dictionary, each value says to people what the key is."""

    processes: set[tuple[int, int]]
    """Process ids, each with when it began."""
    threads: dict[threading.Thread, str]
    descriptors: dict[tuple[int, int, int], str]
    """Descriptors, each with the device and the number of its file."""
    entries: dict[str, str]

    @classmethod
    def take(cls, scan: Scan | None = None) -> Snapshot:
        return cls((scan or Scan()).processes(), _threads(), _descriptors(), _entries())

    def without(self, before: Snapshot) -> Snapshot:
        def new(now: dict[Any, str], then: dict[Any, str]) -> dict[Any, str]:
            return {key: words for key, words in now.items() if key not in then}

        return Snapshot(
            self.processes - before.processes,
            new(self.threads, before.threads),
            _named(new(self.descriptors, before.descriptors)),
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
                left.processes = {key for key in left.processes if key[0] not in may_stay}
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
            "process": {key: _words(key[0]) for key in self.processes},
            "thread": self.threads,
            "descriptor": self.descriptors,
            "temporary file": self.entries,
        }
        return "\n".join(f"  {kind}: {words}" for kind, found in kinds.items() for words in found.values())


def handler_left(number: int, before: Any) -> str:
    """Describe the handler that a test has left for a signal, and install the one of before; "" if it is still there.

    A later test that sends the signal would otherwise end its worker without a word. The handler by which a process
    passes Ctrl-C on to the processes that it has started stays, and raises KeyboardInterrupt as the usual one does.
    """
    now = signal.getsignal(number)
    if now == before or getattr(now, "__name__", "") == "_tell_and_raise":
        return ""
    signal.signal(number, before)
    return f"{signal.Signals(number).name} is handled by {now!r}"


class Scan:
    """Finds what belongs to this run: our descendants, and what else carries the mark, wherever it hangs in the tree.

    To look for the mark is to read all of /proc, 8 ms where 170 processes run and more where more do; two looks a test
    were a tenth of the whole run. A process outside of our tree has an ancestor that was our child, and has ended. So
    /proc is read again only when a child has ended since the last time, or where that cannot be known. And our tree is
    gone through again, 0.3 ms for a session of five processes, only when a process or a thread has begun anywhere.
    """

    def __init__(self) -> None:
        self._ended: tuple[int, float] | None = None
        self._marked: list[int] = []
        self._newest = ""
        self._is_settled = False
        self._descendants: list[int] = []

    def processes(self) -> set[tuple[int, int]]:
        """The pid of each process, and when it began."""
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        ended = usage.ru_minflt, usage.ru_utime + usage.ru_stime  # of children that were waited for: no two are equal
        if ended != self._ended or signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:
            self._marked = list(_marked_pids())
            self._ended = ended
        newest = _newest_pid()
        if newest != self._newest or not self._is_settled:
            self._descendants = _all_descendants()
            # A process has its number a moment before it is among the children of another one.
            self._is_settled = bool(newest) and newest == self._newest
            self._newest = newest
        found: set[tuple[int, int]] = set()
        for pid in {*self._descendants, *self._marked}:
            with contextlib.suppress(OSError):
                found.add((pid, began_at(pid)))
        return found


def _newest_pid() -> str:
    """That which the kernel has given last; while it stays, nothing has begun. Empty where that cannot be known."""
    return _last_pid() if _is_told_of_threads() else ""


def _last_pid() -> str:
    with open("/proc/loadavg") as loads:
        return loads.read().split()[-1]


@functools.cache
def _is_told_of_threads() -> bool:
    """Whether the file is the kernel's: those that containers may have instead are behind, or have no such number."""
    before = _last_pid()
    thread = threading.Thread(target=int)
    thread.start()
    thread.join()
    return _last_pid() != before


def began_at(pid: int) -> int:
    """When a process began, in ticks of the kernel's clock.

    Raises:
        OSError: it has ended, and was waited for.
    """
    return int(_stat(pid)[19])


def _stat(pid: int | str) -> list[str]:
    """What /proc says of a process, after its name."""
    with open(f"/proc/{pid}/stat") as stat:
        return stat.read().rpartition(")")[2].split()


def _words(pid: int) -> str:
    try:
        process = psutil.Process(pid)
        return f"pid {pid} ({process.status()}, parent {process.ppid()}): {_command(process)}"
    except psutil.Error:
        return f"pid {pid}, which has ended since"


def _all_descendants() -> list[int]:
    """Of this process. The kernel's list may leave one out while another one ends: two equal ones are believed."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT | _WALL)
    except ChildProcessError:  # one question for most tests; a list for each of the threads takes ten times as long
        return []
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
        before = 0
        while True:
            with open(f"/proc/{pid}/environ", "rb") as environ:
                if found := environ.read():
                    return found
            os.readlink(f"/proc/{pid}/exe")  # fails for what has no program
            # In the middle of `exec` the program is there already and its environment not yet: nothing was read, then.
            # What was read between two equal ends is what there is.
            end = _end_of_environment(pid)
            if end and end == before:
                return b""
            before = end
            time.sleep(0.0001)
    return b""


def _end_of_environment(pid: str) -> int:
    """Where it ends in the memory of a process; 0 as long as there is none."""
    return int(_stat(pid)[48])


def _threads() -> dict[threading.Thread, str]:
    return {
        thread: f"{thread.name}{' (daemon)' if thread.daemon else ''}, target {_target(thread)}"
        for thread in threading.enumerate()
        if not IGNORED_THREADS.search(thread.name) and not isinstance(thread, threading._DummyThread)
    }


def _target(thread: threading.Thread) -> str:
    target: Callable[..., object] | None = getattr(thread, "_target", None)
    return getattr(target, "__qualname__", repr(target))


def _descriptors() -> dict[tuple[int, int, int], str]:
    found: dict[tuple[int, int, int], str] = {}
    for name in _listed("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the descriptor of the listing itself is closed again
            if (fd := int(name)) > 2:  # pytest replaces those, and puts them back
                file = os.fstat(fd)
                found[fd, file.st_dev, file.st_ino] = ""
    return found


def _named(descriptors: dict[tuple[int, int, int], str]) -> dict[tuple[int, int, int], str]:
    """With what each is open on; without those that stay. Names take three times as long as numbers do."""
    found: dict[tuple[int, int, int], str] = {}
    for key in descriptors:
        with contextlib.suppress(OSError):
            target = os.readlink(f"/proc/self/fd/{key[0]}")
            if not IGNORED_FILES.search(target):
                found[key] = f"{key[0]} -> {target}"
    return found


def _entries() -> dict[str, str]:
    folder = os.environ[MARK]
    return {name: os.path.join(folder, name) for name in os.listdir(folder) if not name.startswith(IGNORED_ENTRIES)}
