"""Fault injection: kills, stops and delays real processes, and drops real messages, where a test says so.

At named points, in processes that the test has no handle of:

    with faults.at("worker.before_flush", faults.kill()) as fault:
        with rw.Session() as session, rw.Pool(2, session=session) as pool:
            assert pool.map(str, range(10)) == ...      # one worker dies with results that it has not sent
    assert fault.num_fired == 1

From outside, at any moment:

    faults.kill_worker(pool, 0)
    with faults.workers_killed_every(pool, 0.05): ...
    with faults.stopped(pid): ...

A process learns of the faults when it starts, so enter `at` before the pool starts its workers (and for points of the
agent, before the session starts its agent). `POINTS` lists the points; outside of tests, each costs one check of a
variable (`ropewalk/injection.py`).
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import psutil

from ropewalk import injection
from ropewalk.injection import POINTS, VARIABLE, Fault
from ropewalk.near_names import instead_of
from ropewalk.pool.pool import Pool

_DEADLINE_S = 10.0
_CAN_DROP = ("agent.before_exit_report", "link.send")
"""Points whose step can be left out."""


@dataclass(frozen=True, slots=True)
class FaultAction:
    """What happens at a point; made by `kill`, `stop`, `delay` and `drop`."""

    name: str
    seconds: float = 0.0


def kill() -> FaultAction:
    """Return the action in which the process kills itself with SIGKILL."""
    return FaultAction("kill")


def stop(seconds: float = 0.0) -> FaultAction:
    """Return the action in which the process stops itself with SIGSTOP.

    Args:
        seconds: the process continues after this time; 0 leaves it stopped until it gets SIGCONT.
    """
    return FaultAction("stop", seconds)


def delay(seconds: float) -> FaultAction:
    """Return the action in which the thread sleeps for `seconds` at the point."""
    return FaultAction("delay", seconds)


def drop() -> FaultAction:
    """Return the action that leaves out the step at the point, as if a message were lost."""
    return FaultAction("drop")


@dataclass(slots=True)
class Injected:
    """A fault in force."""

    fault: Fault
    folder: Path
    number: int
    _after: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])

    @property
    def fired(self) -> list[tuple[int, str]]:
        """(pid, name) of the processes in which the fault happened, oldest first; also after the `with` block."""
        if not self.folder.exists():
            return list(self._after)
        found: list[tuple[int, str]] = []
        for path in sorted(self.folder.glob(f"{self.number}.[0-9]*"), key=lambda path: int(path.suffix[1:])):
            pid, _, name = path.read_text().partition(" ")
            if name:
                found.append((int(pid), name))
        return found

    @property
    def num_fired(self) -> int:
        """How many times the fault has happened, in all processes together."""
        return len(self.fired)

    def wait(self, times: int = 1, timeout_s: float = _DEADLINE_S) -> None:
        """Wait until the fault has happened a number of times.

        Args:
            times: the number of times, in all processes together.
            timeout_s: seconds to wait.

        Raises:
            TimeoutError: the fault has not happened `times` times within `timeout_s`.
        """
        deadline = time.monotonic() + timeout_s
        while self.num_fired < times:
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"{self.fault.action} at {self.fault.point} happened {self.num_fired} of {times} times within "
                    f"{timeout_s:g} s; was the process started inside the `with` block?"
                )
            time.sleep(0.005)

    def _end(self) -> None:
        self._after = self.fired


@contextlib.contextmanager
def at(
    point: str, action: FaultAction, *, times: int = 1, after: int = 0, process: str = "*", detail: str = "*"
) -> Generator[Injected]:
    """Inject a fault at a named point of the processes that start inside the block.

    Args:
        point: one of `POINTS`.
        action: `kill()`, `stop()`, `delay()` or `drop()`.
        times: how many times the fault happens, in all processes together; 0 for always.
        after: the number of visits of the point that each process passes first.
        process: a pattern for the process: "agent", or the name of a worker such as "pool-1.0" or "*.0". "*" does not
            match this process, whose name is "launcher".
        detail: a pattern for the detail that the point reports, such as the type of a message.

    Yields:
        The fault, which counts how many times it has happened.

    Raises:
        ValueError: there is no such point, or its step cannot be dropped.
    """
    if point not in POINTS:
        raise ValueError(f"there is no point {point!r}{instead_of(point, POINTS)}")
    if action.name == "drop" and point not in _CAN_DROP:
        raise ValueError(f"nothing can be dropped at {point}; points for drop: {', '.join(_CAN_DROP)}")
    fault = Fault(point, action.name, action.seconds, times, after, process, detail)
    outer = os.environ.get(VARIABLE)
    folder = Path(outer or tempfile.mkdtemp(prefix="ropewalk-faults-"))
    number = 0
    while (path := folder / f"{number}.json").exists():
        number += 1
    path.write_bytes(msgspec.json.encode(fault))
    injected = Injected(fault, folder, number)
    os.environ[VARIABLE] = str(folder)
    injection.load(_own_name())
    try:
        yield injected
    finally:
        injected._end()  # pyright: ignore[reportPrivateUsage]
        if outer is None:
            del os.environ[VARIABLE]
            shutil.rmtree(folder, ignore_errors=True)
        else:
            for leftover in folder.glob(f"{number}.*"):
                leftover.unlink(missing_ok=True)
        injection.load(_own_name())


def kill_worker(pool: Pool, rank: int) -> int:
    """Kill a running worker of a pool with SIGKILL, and return its process id.

    Args:
        pool: the pool.
        rank: the rank of the worker in the pool.

    Returns:
        The process id of the killed worker.

    Raises:
        LookupError: the pool has no running worker of that rank, and none came up within ten seconds.
    """
    deadline = time.monotonic() + _DEADLINE_S
    while True:
        for worker in pool.status().workers:
            if worker.name.rpartition(".")[2] == str(rank) and worker.pid and _end(worker.pid):
                return worker.pid
        if time.monotonic() > deadline:
            names = ", ".join(worker.name for worker in pool.status().workers)
            raise LookupError(f"the pool has no running worker of rank {rank}; its workers: {names or 'none'}")
        time.sleep(0.005)


@contextlib.contextmanager
def workers_killed_every(pool: Pool, seconds: float, *, seed: int = 0) -> Generator[list[int]]:
    """Kill a random worker of a pool at regular intervals while the block runs.

    Args:
        pool: the pool.
        seconds: the time between two kills.
        seed: the seed of the choice of workers.

    Yields:
        A list of the process ids that were killed, which grows meanwhile.
    """
    killed: list[int] = []
    over = threading.Event()
    chance = random.Random(seed)

    def kill_on() -> None:
        while not over.wait(seconds):
            pids = [worker.pid for worker in pool.status().workers if worker.pid and worker.state != "starting"]
            if pids and _end(pid := chance.choice(pids)):
                killed.append(pid)

    thread = threading.Thread(target=kill_on, name="ropewalk-faults", daemon=True)
    thread.start()
    try:
        yield killed
    finally:
        over.set()
        thread.join()


@contextlib.contextmanager
def stopped(pid: int) -> Generator[None]:
    """Stop a process (SIGSTOP) while the block runs, and let it continue afterwards, if it still exists.

    Raises:
        ProcessLookupError: there is no such process.
    """
    process = psutil.Process(pid) if psutil.pid_exists(pid) else None
    os.kill(pid, signal.SIGSTOP)
    try:
        deadline = time.monotonic() + _DEADLINE_S
        while process and process.status() != psutil.STATUS_STOPPED and time.monotonic() < deadline:
            time.sleep(0.001)  # the signal is on its way
        yield
    finally:
        # By the object, which knows when the process began: its number may have been reused.
        if process:
            with contextlib.suppress(psutil.Error):
                process.send_signal(signal.SIGCONT)


def _end(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def _own_name() -> str:
    return os.environ.get("ROPEWALK_PROCESS", injection.LAUNCHER)
