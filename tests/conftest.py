"""After every test nothing is left: no process, thread, descriptor or temporary file. And `soak` waits to be asked for.

The whole run gets a temporary folder of its own (TMPDIR and XDG_RUNTIME_DIR) and
a mark in the environment that every process it starts inherits. So what is left can
be told from what other programs, or a second run of these tests, do on this machine.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import os
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

pytest_plugins = [
    "tests.profiles",
    "tests.lab.plugin",
    "tests.lab.kubernetes",
    "tests.lab.ssh",
    "tests.lab.slurm",
    "tests.lab.docker",
]

GRACE_S = 20.0  # ends of processes and threads take a moment, more on a busy machine

#: Not a ROPEWALK_ variable: those are settings, and unknown ones are refused.
MARK = "TESTS_OF_ROPEWALK"

#: Threads of other libraries that start once and stay.
IGNORED_THREADS = re.compile(r"hypothesis|matplotlib|tqdm|pytest", re.IGNORECASE)
#: Files that other libraries open once and keep.
IGNORED_FILES = re.compile(r"^/dev/|^/proc/|^/sys/|/\.hypothesis/|/site-packages/|/matplotlib/|\.pyc$")
#: Tests that make machines or clusters, or start commands: these folders, and scenarios with "hosts" in their names.
ON_MACHINES = ("cli", "engines", "lab")
#: multiprocessing's own folder of a process, which it removes at its end; and torch's compiler cache, made on import.
IGNORED_ENTRIES = ("pymp-", "torchinductor_")


# --- the surroundings of the run --------------------------------------------------------------------------------------


@pytest.hookimpl(tryfirst=True)  # before pytest makes the folder for `tmp_path`
def pytest_configure(config: pytest.Config) -> None:
    # `tmp_path` stays in the usual place, where it is kept for a while.
    root = os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
    # Short, because socket paths end at 107 bytes; and not inside that of the process that started this worker.
    if hasattr(config, "workerinput"):
        config.option.basetemp = tempfile.mkdtemp(prefix="rwb-", dir=root)
    folder = tempfile.mkdtemp(prefix="rwt-", dir=root)
    os.environ[MARK] = os.environ["TMPDIR"] = os.environ["XDG_RUNTIME_DIR"] = folder
    tempfile.tempdir = None  # it had been read already


def pytest_unconfigure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):
        shutil.rmtree(config.option.basetemp, ignore_errors=True)
    tempfile.tempdir = None
    for variable in ("TMPDIR", "XDG_RUNTIME_DIR"):
        del os.environ[variable]
    shutil.rmtree(os.environ.pop(MARK), ignore_errors=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "soak" in str(config.getoption("markexpr")):
        return
    reason = pytest.mark.skip(reason="runs for minutes; `make soak` runs it")
    for item in items:
        if item.get_closest_marker("soak"):
            item.add_marker(reason)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """For `pytest -n 2`: what makes machines runs in one worker, one after the other, all other files beside it.

    Such tests measure time, and begin first because they are the largest share. It must stay less than half of the
    whole, or one worker ends long before the other one: who is through with them takes files as well.
    """
    from xdist.scheduler import LoadScopeScheduling

    class Shares(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            _, folder, *rest = Path(file).parts
            on_machines = folder in ON_MACHINES or (folder == "scenarios" and "hosts" in rest[-1])
            return "machines" if on_machines else file

    return Shares(config, log)


# --- nothing is left --------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:  # pyright: ignore[reportUnusedFunction]
    before = Snapshot.take()
    yield
    _end_sessions()
    left = _wait_until_gone(before)
    if left:
        _end(left.processes)
        pytest.fail(f"the test left behind:\n{left.describe()}", pytrace=False)


def _end_sessions() -> None:
    """A session outlives its last pool for a moment, for the next one; here nobody waits for it."""
    session = sys.modules.get("ropewalk.processes.open_sessions")
    if session is not None:
        session.close_all()
    tracker = sys.modules.get("multiprocessing.resource_tracker")
    if tracker is not None:  # the standard library's own helper process, which it ends with the interpreter
        tracker._resource_tracker._stop()


def _wait_until_gone(before: Snapshot) -> Snapshot:
    deadline = time.monotonic() + GRACE_S
    pause_s = 0.005
    while True:
        left = Snapshot.take().without(before)
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(pause_s)
        pause_s = min(0.2, 2 * pause_s)
        gc.collect()  # what only waits for the collector, such as a cycle through a traceback, is not a leak of ours


def _end(processes: dict[tuple[int, float], str]) -> None:
    """End what a failed test left, so that the next one does not suffer from it."""
    for pid, started in processes:
        with contextlib.suppress(psutil.Error, OSError, ChildProcessError):
            if psutil.Process(pid).create_time() == started:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


@dataclasses.dataclass
class Snapshot:
    """What belongs to this run at one moment; each key says what it is, each value says it to people."""

    processes: dict[tuple[int, float], str]
    threads: dict[threading.Thread, str]
    descriptors: dict[tuple[int, str], str]
    entries: dict[str, str]

    @classmethod
    def take(cls) -> Snapshot:
        return cls(_processes(), _threads(), _descriptors(), _entries())

    def without(self, before: Snapshot) -> Snapshot:
        def new(now: dict[Any, str], then: dict[Any, str]) -> dict[Any, str]:
            return {key: words for key, words in now.items() if key not in then}

        return Snapshot(
            new(self.processes, before.processes),
            new(self.threads, before.threads),
            new(self.descriptors, before.descriptors),
            new(self.entries, before.entries),
        )

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


def _processes() -> dict[tuple[int, float], str]:
    """Children of this process, and everything else that carries the mark, wherever it hangs in the tree."""
    found = {child.pid: child for child in psutil.Process().children(recursive=True)}
    for pid in _marked_pids():
        with contextlib.suppress(psutil.Error):
            found.setdefault(pid, psutil.Process(pid))
    described: dict[tuple[int, float], str] = {}
    for process in found.values():
        with contextlib.suppress(psutil.Error):
            described[process.pid, process.create_time()] = (
                f"pid {process.pid} ({process.status()}, parent {process.ppid()}): {_command(process)}"
            )
    return described


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())[:200] or process.name()
    except psutil.ZombieProcess:
        return f"{process.name()}, which nobody waited for"


def _marked_pids() -> Iterator[int]:
    mark = f"{MARK}={os.environ[MARK]}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        if int(folder.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            if mark in (folder / "environ").read_bytes():
                yield int(folder.name)


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
    for name in os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else []:
        with contextlib.suppress(OSError):  # the descriptor of the listing itself is closed again
            target = os.readlink(f"/proc/self/fd/{name}")
            if not IGNORED_FILES.search(target):
                found[int(name), target] = f"{name} -> {target}"
    return found


def _entries() -> dict[str, str]:
    folder = os.environ[MARK]
    return {name: os.path.join(folder, name) for name in os.listdir(folder) if not name.startswith(IGNORED_ENTRIES)}
