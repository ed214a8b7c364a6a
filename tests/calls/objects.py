"""Objects that are served in the tests of calls; a process of its own can import them as well."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ropewalk.calls.current_call import current_call, wait_for
from ropewalk.calls.markers import batched, brief, concurrent, idempotent


@dataclass
class Sample:
    observation: Any
    reward: float = 0.0


class Refused(Exception):
    """Its constructor takes other arguments than its base."""

    def __init__(self, name: str, *, code: int) -> None:
        super().__init__(f"{name} was refused with {code}")
        self.name = name
        self.code = code

    def __reduce__(self) -> Any:
        return _refused, (self.name, self.code)


def _refused(name: str, code: int) -> Refused:
    return Refused(name, code=code)


class Careless(Exception):
    """Can be pickled, but not unpickled."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(first)
        self.second = second

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        return type(self), self.args  # one argument, and `__init__` wants two


class Locked(Exception):
    """Cannot be pickled."""

    def __init__(self) -> None:
        super().__init__("it holds a lock")
        self.lock = threading.Lock()


class Target:
    """A bit of everything."""

    def __init__(self) -> None:
        self.count = 0
        self.seen: list[Any] = []
        self.inside = 0
        self.most_inside = 0
        self.gate = threading.Event()
        self.pace = threading.Semaphore(0)
        self.entered = threading.Event()
        self.batches: list[int] = []

    def empty(self) -> None: ...

    def add(self, n: int = 1) -> int:
        self.count += n
        return self.count

    @idempotent
    def read(self) -> int:
        return self.count

    @idempotent
    def pid_when(self, path: str) -> int:
        """The process that answers once a file is there."""
        while not os.path.exists(path):
            time.sleep(0.005)
        return os.getpid()

    def pid(self) -> int:
        return os.getpid()

    def echo(self, value: Any) -> Any:
        return value

    def keyed(self, first: Any, *, second: Any = 2) -> Any:
        return first, second

    def note(self, value: Any) -> None:
        self.seen.append(value)

    def noted(self) -> list[Any]:
        return self.seen

    def sleep(self, seconds: float) -> float:
        time.sleep(seconds)
        return seconds

    def wait(self) -> str:
        """Until the gate is opened."""
        self.entered.set()
        self.inside += 1
        self.most_inside = max(self.most_inside, self.inside)
        assert self.gate.wait(120)
        self.inside -= 1
        return "through"

    @concurrent(4)
    def open(self) -> None:
        self.gate.set()

    @concurrent(4)
    def wait_until_entered(self) -> bool:
        return self.entered.wait(120)

    @concurrent(1)
    def wait_beside(self) -> str:
        assert self.gate.wait(120)
        return "beside"

    @concurrent(2)
    def beside(self) -> str:
        self.inside += 1
        self.most_inside = max(self.most_inside, self.inside)
        time.sleep(0.01)
        self.inside -= 1
        return "beside"

    def fail(self, how: str) -> None:
        if how == "custom":
            raise Refused("ann", code=7)
        if how == "careless":
            raise Careless("one", "two")
        if how == "locked":
            raise Locked
        if how == "exit":
            raise SystemExit(3)
        raise KeyError(how)

    def unpicklable(self) -> Any:
        return threading.Lock()

    def paced_items(self, count: int) -> Iterator[int]:
        for number in range(count):
            self.pace.acquire()
            yield number

    def items(self, count: int) -> Iterator[int]:
        try:
            for number in range(count):
                self.inside += 1
                self.count = number
                yield number
                self.inside -= 1
        finally:
            self.seen.append(("closed", self.most_inside, threading.get_ident()))

    def arrays(self, count: int, size: int) -> Iterator[Any]:
        import numpy as np

        for number in range(count):
            yield np.full(size, number % 251, dtype=np.uint8)

    def odd_items(self) -> Iterator[Any]:
        yield 1
        raise Refused("item", code=8)

    def unpicklable_items(self) -> Iterator[Any]:
        try:
            yield 1
            yield threading.Lock()
        finally:
            self.seen.append("closed")

    @batched(max_size=8, max_wait_s=0.02)
    def double(self, x: Any) -> Any:
        self.batches.append(len(x))
        return x * 2

    @batched(max_size=64, max_wait_s=30.0)
    def patient(self, x: Any) -> Any:
        self.batches.append(len(x))
        return x

    @batched(max_size=12, max_wait_s=0.02, concatenate=True)
    def rows(self, x: Any, scale: int = 1) -> Any:
        self.batches.append(len(x))
        return x * scale

    def sizes(self) -> list[int]:
        return self.batches

    def time_left(self) -> float | None:
        return current_call().time_left_s()


class Relay:
    """Calls another service from inside its methods."""

    def __init__(self) -> None:
        self.other: Any = None
        self.calls = 0

    def pass_on(self, value: Any) -> Any:
        return self.other.echo(value)

    def round(self, times: int) -> int:
        """Back and forth: each of the two calls the other one."""
        self.calls += 1
        return 0 if times == 0 else 1 + self.other.round(times - 1)

    def for_ever(self) -> None:
        self.other.for_ever()

    def time_left(self) -> float | None:
        return self.other.time_left()

    def sleep(self, seconds: float) -> float:
        return self.other.sleep(seconds)

    def echo(self, value: Any) -> Any:
        return value

    @batched(max_size=8, max_wait_s=0.05)
    def double(self, x: Any) -> Any:
        return x * 2

    @batched(max_size=64, max_wait_s=0.05)
    def batch_and_call(self, x: Any) -> Any:
        self.other.echo(1)
        return x

    @batched(max_size=8, max_wait_s=0.001)
    def batch_time_left(self, x: Any) -> Any:
        left = self.other.time_left()
        return [left] * len(x)

    def back_to_batch(self, x: float) -> float:
        """The other one calls our batched method while this one has the turn."""
        return self.other.call_double(x)

    def call_double(self, x: float) -> float:
        return self.other.double(x)


class Brief:
    """Says in which thread its calls run."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.is_open = self.has_entered = False

    @concurrent(8)
    @brief
    def thread(self, waits: bool) -> str:
        with self.changed:
            self.has_entered |= waits
            if waits:
                wait_for(self.changed, lambda: self.is_open)
        return threading.current_thread().name

    def open(self) -> None:
        with self.changed:
            self.is_open = True
            self.changed.notify_all()
