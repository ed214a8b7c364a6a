"""The processes that take part in the benchmarks of processes, and what they do when they are told.

    benchmark ──── "put 1000 messages" ───▶ Party (a process of the library that is measured)
              ◀─── begun, ended, ... ──────   has the queues, pipes, locks, ... under the names of the tasks below

The benchmark speaks with them on a bare socket for each, which is no part of what is measured. They stay from round to
round, so that a round costs no start. Times are of the monotonic clock, which is one for all processes of a machine.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from bare_calls import receive, send
from callee import look_at_every_page

clock = time.perf_counter


class Party:
    """One process, and the benchmark's end of the line to it."""

    numbers = itertools.count()

    def __init__(self, library: Any, folder: str, **objects: Any) -> None:
        path = f"{folder}/party-{next(self.numbers)}"
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)
            listener.listen(1)
            listener.settimeout(1)
            self.process = library.Process(target=take_part, args=(path, objects), daemon=True)
            self.process.start()
            self.line = self._come(listener)
        self.line.settimeout(120)

    def _come(self, listener: socket.socket) -> socket.socket:
        while self.process.exitcode is None:
            with contextlib.suppress(TimeoutError):
                return listener.accept()[0]
        raise RuntimeError(f"a process ended with {self.process.exitcode} before it took part")

    def tell(self, task: Callable[..., Any], *arguments: Any) -> None:
        send(self.line, (task.__name__, arguments))

    def answer(self) -> Any:
        return receive(self.line)

    def ask(self, task: Callable[..., Any], *arguments: Any) -> Any:
        self.tell(task, *arguments)
        return self.answer()

    def close(self) -> None:
        self.line.close()
        self.process.join(30)


def take_part(path: str, objects: dict[str, Any]) -> None:
    """In the process: does what it is told until the line is closed."""
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(path)
        while True:
            try:
                name, arguments = receive(line)
            except EOFError:
                return
            send(line, getattr(sys.modules[__name__], name)(objects, *arguments))


# ---------------------------------------------------------------- messages


def message(kind: str, size_bytes: int, number: int) -> Any:
    """A message that holds its number, so that all differ and the other side can prove what came."""
    if kind == "number":
        return number
    if kind == "bytes":
        return number.to_bytes(8, "little") + bytes(size_bytes - 8)
    # Inside, here and below: processes that send numbers should not carry numpy.
    import numpy as np

    return np.full(size_bytes // 8, float(number))  # (zeros would be memory that nobody has touched yet)


def looked_at(received: Any) -> int:
    """The number of a message; memory of it that is only mapped so far has to come."""
    if isinstance(received, int):
        return received
    if isinstance(received, bytes):
        return int.from_bytes(received[:8], "little") + sum(memoryview(received)[4096::4096])
    look_at_every_page(received)
    return int(received[0])


# ---------------------------------------------------------------- tasks


def put(objects: dict[str, Any], kind: str, size_bytes: int, count: int) -> float:
    """Returns when the first message was put."""
    queue, messages = objects["queue"], [message(kind, size_bytes, number) for number in range(count)]
    begun = clock()
    for one in messages:
        queue.put(one)
    return begun


def get(objects: dict[str, Any], count: int) -> tuple[float, int]:
    """Returns when the last message had come, and the sum of their numbers."""
    queue, total = objects["queue"], 0
    for _ in range(count):
        total += looked_at(queue.get())
    return clock(), total


def put_and_get(objects: dict[str, Any], count: int) -> list[float]:
    """One process alone."""
    queue = objects["queue"]

    def once() -> None:
        queue.put(0)
        queue.get()

    return durations_s(once, count)


def there_and_back(objects: dict[str, Any], count: int) -> list[float]:
    """Puts into one queue what `echo_queue` brings back through the other."""
    there, back = objects["there"], objects["back"]

    def once() -> None:
        there.put(0)
        back.get()

    return durations_s(once, count)


def echo_queue(objects: dict[str, Any], count: int) -> None:
    there, back = objects["there"], objects["back"]
    for _ in range(count):
        back.put(there.get())


def ask_pipe(objects: dict[str, Any], kind: str, size_bytes: int, count: int) -> list[float]:
    pipe, seen = objects["pipe"], list[float]()
    for number in range(count):
        sent = message(kind, size_bytes, number)
        begun = clock()
        pipe.send(sent)
        received = pipe.recv()
        seen.append(clock() - begun)
        assert looked_at(received) == number, "wrong results"
    return seen


def echo_pipe(objects: dict[str, Any], count: int) -> None:
    pipe = objects["pipe"]
    for _ in range(count):
        pipe.send(pipe.recv())


def call(objects: dict[str, Any], name: str, method: str, arguments: Sequence[Any], count: int) -> list[float]:
    """Calls a method of the object of that name."""
    bound = getattr(objects[name], method)
    return durations_s(lambda: bound(*arguments), count)


def call_once(objects: dict[str, Any], name: str, method: str) -> Any:
    """What one call returns."""
    return getattr(objects[name], method)()


def pid(_objects: dict[str, Any]) -> int:
    """The process of a party."""
    return os.getpid()


def lock_and_unlock(objects: dict[str, Any], name: str, count: int) -> list[float]:
    acquire, release = objects[name].acquire, objects[name].release

    def once() -> None:
        acquire()
        release()

    return durations_s(once, count)


def wait_in_turns(objects: dict[str, Any], first: bool, count: int) -> list[float]:
    """Two processes wake each other by two events; one goes first."""
    mine, theirs = objects["mine"], objects["theirs"]

    def once() -> None:
        if first:
            theirs.set()
        mine.wait()
        mine.clear()
        if not first:
            theirs.set()

    return durations_s(once, count)


def pass_permits(objects: dict[str, Any], first: bool, count: int) -> list[float]:
    """Two processes wake each other by two semaphores; one goes first."""
    mine, theirs = objects["mine"], objects["theirs"]

    def once() -> None:
        if first:
            theirs.release()
        mine.acquire()
        if not first:
            theirs.release()

    return durations_s(once, count)


def notify_in_turns(objects: dict[str, Any], first: bool, count: int) -> list[float]:
    """Two processes notify each other of whose turn it is, at one condition; one goes first."""
    condition, turn = objects["condition"], objects["turn"]

    def once() -> None:
        with condition:
            condition.wait_for(lambda: turn.value != first)
            turn.value = first
            condition.notify()

    return durations_s(once, count)


def meet(objects: dict[str, Any], _first: bool, count: int) -> list[float]:
    """Two processes wait for each other at a barrier."""
    return durations_s(objects["barrier"].wait, count)


def durations_s(once: Callable[[], object], count: int) -> list[float]:
    seen = list[float]()
    for _ in range(count):
        begun = clock()
        once()
        seen.append(clock() - begun)
    return seen


# ---------------------------------------------------------------- what else is started or served


def nothing(_: int) -> None:
    """What a process does that is only started."""


class Tally:
    """What a manager serves."""

    def __init__(self) -> None:
        self.count = 0

    def add(self, number: int) -> int:
        self.count += number
        return self.count

    def pid(self) -> int:
        return os.getpid()
