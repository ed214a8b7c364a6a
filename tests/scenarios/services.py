"""Services and workers of the programs that tests of this folder launch, and ways to look at those programs."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from typing import Any, NoReturn

import ropewalk as rw
from ropewalk.program.running import RunningProgram
from ropewalk.program.status import NodeStatus
from tests.patience import wait_until
from tests.scenarios.tasks import note, wait_for_file

MODES = ("processes", "threads")


class OddError(Exception):
    """Its constructor does not take what its `args` hold."""

    def __init__(self, code: int, *, where: str) -> None:
        super().__init__(f"code {code} at {where}")
        self.code = code
        self.where = where

    def __reduce__(self) -> Any:
        return _rebuild_odd, (self.code, self.where)


def _rebuild_odd(code: int, where: str) -> OddError:
    return OddError(code, where=where)


class Counter:
    """Counts, and does everything else that a service may be asked for."""

    def __init__(self, start: int = 0) -> None:
        self.value = start

    def add(self, number: int) -> int:
        self.value += number
        return self.value

    def get(self) -> int:
        return self.value

    def echo(self, value: Any) -> Any:
        return value

    @rw.idempotent
    def whoami(self) -> tuple[int, int]:
        """Process and generation."""
        return os.getpid(), rw.current_node().generation

    def fail(self, text: str) -> NoReturn:
        raise ValueError(text)

    def fail_oddly(self, code: int) -> NoReturn:
        raise OddError(code, where="there")

    def sleep(self, seconds: float, path: str = "") -> str:
        if path:
            note(path, "sleeps")
        time.sleep(seconds)
        return "woke"

    def sleep_until(self, path: str) -> None:
        wait_for_file(path)

    def die(self) -> NoReturn:
        os._exit(7)


class Kept(Counter):
    """A counter whose count outlives its process."""

    def __init__(self, start: int = 0, path: str = "") -> None:
        super().__init__(start)
        self._path = path

    def state_dict(self) -> dict[str, int]:
        if self._path:
            note(self._path, self.value)
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.value = state["value"]


class Gate:
    """A service at which callers wait until somebody opens it."""

    def __init__(self) -> None:
        self._open = threading.Event()

    @rw.concurrent(64)
    def pass_through(self) -> str:
        node = rw.current_node()
        while not self._open.wait(0.02) and not node.stopping:
            pass
        return "passed"

    @rw.concurrent(64)
    def open(self) -> None:
        self._open.set()

    @rw.concurrent(64)
    def count(self, until: int) -> Iterator[int]:
        yield from range(until)

    def count_alone(self, until: int) -> Iterator[int]:
        yield from range(until)


def serve_until_stopped() -> None:
    """A worker that only waits for the end."""
    rw.wait_for_stop()


def add_many(counter: Counter, number: int) -> None:
    for _ in range(number):
        counter.add(1)


def status_of(running: RunningProgram, name: str, replica: int = 0) -> NodeStatus:
    """What a replica is doing now."""
    (found,) = [node for node in running.status().nodes if (node.name, node.replica) == (name, replica)]
    return found


def pid_of(running: RunningProgram, name: str, replica: int = 0) -> int:
    """The process of a replica, once it is there."""
    wait_until(lambda: status_of(running, name, replica).pid, what=f"a process for {name}.{replica}")
    return status_of(running, name, replica).pid


def in_thread(call: Any) -> tuple[threading.Thread, list[Any]]:
    """Make a call in a thread; the list takes what it returns or raises."""
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append(call())
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, outcome
