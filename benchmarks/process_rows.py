"""One function for each row of the table of processes: it measures all contenders side by side and judges ours.

As in `call_rows`: what is measured is made first and then measured in turn, A B C, B C A, ..., after a first round that
is forgotten. A number is the median of the rounds, a ratio is one of medians.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import multiprocessing
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import parties
from bare_calls import receive, send
from call_rows import by_turns, pin
from parties import Party
from pool_rows import Line, milliseconds, per_second, shown

THEIRS, FLOOR = "spawn", "bare"
#: Contexts of multiprocessing. What its processes share is the same for all three, so other rows know only one of them.
METHODS = (THEIRS, "forkserver", "fork")
JUDGED_CALL, JUDGED_LARGE = 1.5, 2.0
LARGE_BYTES = 10_000_000

Values = dict[str, float]


@dataclass(frozen=True, slots=True)
class Bench:
    """Who is measured, and how thoroughly."""

    subject: str = "ropewalk"
    repeats: int = 5
    quick: bool = False

    @property
    def pair(self) -> tuple[str, str]:
        return (self.subject, THEIRS)

    def count(self, usual: int) -> int:
        return max(3, usual // 10) if self.quick else usual

    def turns(self, names: Sequence[str], measure: Callable[[str], float]) -> Values:
        return by_turns(names, self.repeats, measure)

    def at_most(self, what: str, values: Values, limit: float | None = None) -> Line:
        """A line of durations; without a limit it is not judged."""
        ratio = values[self.subject] / values[THEIRS]
        reach = f"<= {limit} x multiprocessing's" if limit else ""
        return Line(what, reach, f"{ratio:.2f} x", ratio <= limit if limit else None, shown(values, duration))

    def at_least(self, what: str, values: Values, style: Callable[[float], str], limit: float | None = None) -> Line:
        """A line of rates; without a limit it is not judged."""
        ratio = values[self.subject] / values[THEIRS]
        reach = f">= {limit} x multiprocessing's" if limit else ""
        return Line(what, reach, f"{ratio:.2f} x", ratio >= limit if limit else None, shown(values, style))


def duration(value: float) -> str:
    return milliseconds(value) if value >= 0.001 else f"{value * 1e6:.1f} µs"


def megabytes(value: float) -> str:
    return f"{value:,.0f} MB/s"


# ---------------------------------------------------------------- contenders


class BareEnd:
    """An end of a socket pair, as a connection and as a queue: pickle, a length before it, and nothing else."""

    def __init__(self, link: socket.socket) -> None:
        self.link = link

    def put(self, value: Any) -> None:
        send(self.link, value)

    def get(self) -> Any:
        return receive(self.link)

    send, recv = put, get


class Bare:
    """The floor: a socket pair between two processes."""

    Process: Any = staticmethod(multiprocessing.get_context("spawn").Process)

    @staticmethod
    def Pipe() -> tuple[BareEnd, BareEnd]:  # the name that the others have
        one, other = socket.socketpair()
        return BareEnd(one), BareEnd(other)


@functools.cache
def library(name: str) -> Any:
    """What has Process, Queue, Pipe, ... as `multiprocessing` has them."""
    if name == FLOOR:
        return Bare
    return multiprocessing.get_context(name) if name in METHODS else importlib.import_module(name)


@contextlib.contextmanager
def company() -> Generator[Callable[..., Party]]:
    """A function that starts parties, which end with the block."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:

        def join(name: str, **objects: Any) -> Party:
            party = Party(library(name), folder, **objects)
            stack.callback(party.close)
            return party

        yield join


@contextlib.contextmanager
def managers(names: Sequence[str]) -> Generator[dict[str, Any]]:
    """A manager of each contender, which also serves `parties.Tally`."""
    with contextlib.ExitStack() as stack:
        running: dict[str, Any] = {}
        for name in names:
            home = "multiprocessing" if name in METHODS else name
            importlib.import_module(f"{home}.managers").SyncManager.register("Tally", parties.Tally)
            running[name] = stack.enter_context(library(name).Manager())
        yield running


def answered_by(
    echoing: Party, echo: Callable[..., None], asking: Party, ask: Callable[..., Any], *facts: Any
) -> float:
    """The median of what `asking` measures, while `echoing` answers it as often; the last fact is how often."""
    echoing.tell(echo, facts[-1])
    durations = asking.ask(ask, *facts)
    echoing.answer()
    return statistics.median(durations)


# ---------------------------------------------------------------- processes


def start(bench: Bench) -> Iterator[Line]:
    names = list(dict.fromkeys((bench.subject, *METHODS)))

    def started_and_joined(name: str, count: int) -> float:
        begun = time.perf_counter()
        processes = [library(name).Process(target=parties.nothing, args=(number,)) for number in range(count)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        elapsed = time.perf_counter() - begun
        assert [process.exitcode for process in processes] == [0] * count, "a process failed"
        return elapsed

    for count in (32, 1):
        what = f"{count} processes: started and joined" if count > 1 else "one process: started and joined"
        yield bench.at_most(what, bench.turns(names, lambda name, count=count: started_and_joined(name, count)))
    yield bench.at_most("one process in a new interpreter, with the import", bench.turns(names, cold_s))


def cold_s(name: str) -> float:
    """From the start of an interpreter to its end: import the library, start one process, join it."""
    code = (
        f"from process_rows import library; import parties\n"
        f"process = library({name!r}).Process(target=parties.nothing, args=(0,)); process.start(); process.join()"
    )
    begun = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True, cwd=pathlib.Path(__file__).parent)
    return time.perf_counter() - begun


# ---------------------------------------------------------------- queues


def queue(bench: Bench) -> Iterator[Line]:
    for kind, size_bytes, what in (("number", 0, "numbers"), ("bytes", 1_000, "1 KB messages")):
        for each in (1, 4):
            names = (*bench.pair, FLOOR) if each == 1 else bench.pair
            with company() as join:
                flows = {name: Flow(join, name, each) for name in names}
                count = bench.count(20_000) // each
                rate = bench.turns(names, lambda name: flows[name].rate(kind, size_bytes, count))  # noqa: B023
            people = "1 producer, 1 consumer" if each == 1 else f"{each} producers, {each} consumers"
            yield bench.at_least(f"queue, {what}, {people}", rate, per_second)


def queue_bounded(bench: Bench) -> Iterator[Line]:
    for maxsize, usual in ((1, 2_000), (10, 10_000), (100, 20_000)):
        with company() as join:
            flows = {name: Flow(join, name, 1, maxsize) for name in bench.pair}
            count = bench.count(usual)
            rate = bench.turns(bench.pair, lambda name: flows[name].rate("number", 0, count))  # noqa: B023
        yield bench.at_least(f"queue with room for {maxsize}, numbers, 1 producer, 1 consumer", rate, per_second)


def queue_large(bench: Bench) -> Iterator[Line]:
    names = (*bench.pair, FLOOR)
    with company() as join:
        flows = {name: Flow(join, name, 1) for name in names}
        for kind, what in (("array", "10 MB numpy arrays"), ("bytes", "10 MB bytes")):
            rate = bench.turns(names, lambda name, kind=kind: flows[name].rate(kind, LARGE_BYTES, bench.count(10)))
            rate = {name: value * LARGE_BYTES / 1e6 for name, value in rate.items()} | {"memcpy": memcpy_rate()}
            yield bench.at_least(f"queue, {what}", rate, megabytes, JUDGED_LARGE)


class Flow:
    """A queue with processes on both sides of it."""

    def __init__(self, join: Callable[..., Party], name: str, each: int, maxsize: int = 0) -> None:
        ends = library(name).Pipe() if name == FLOOR else (library(name).Queue(maxsize),) * 2
        self.producers = [join(name, queue=ends[0]) for _ in range(each)]
        self.consumers = [join(name, queue=ends[1]) for _ in range(each)]

    def rate(self, kind: str, size_bytes: int, count: int) -> float:
        """Messages a second, from the first `put` to the last `get`, where each producer puts `count` of them."""
        for consumer in self.consumers:
            consumer.tell(parties.get, count)
        time.sleep(0.02)  # they wait by now
        for producer in self.producers:
            producer.tell(parties.put, kind, size_bytes, count)
        begun = min(producer.answer() for producer in self.producers)
        ended, totals = zip(*(consumer.answer() for consumer in self.consumers), strict=True)
        assert sum(totals) == len(self.producers) * sum(range(count)), "wrong results"
        return count * len(self.producers) / (max(ended) - begun)


def memcpy_rate() -> float:
    """Megabytes a second of one copy of a large message, into memory that is there."""
    source, target = bytearray(LARGE_BYTES), memoryview(bytearray(LARGE_BYTES))

    def copy() -> None:
        target[:] = source

    return LARGE_BYTES / 1e6 / statistics.median(parties.durations_s(copy, 20))


def queue_latency(bench: Bench) -> Iterator[Line]:
    count = bench.count(2_000)
    with company() as join:
        asking: dict[str, Party] = {}
        echoing: dict[str, Party] = {}
        for name in (*bench.pair, FLOOR):
            if name == FLOOR:
                (there, comes), (goes, back) = Bare.Pipe(), Bare.Pipe()
            else:
                there = comes = library(name).Queue()
                back = goes = library(name).Queue()
            asking[name] = join(name, there=there, back=back)
            echoing[name] = join(name, there=comes, back=goes)
        p50 = bench.turns(
            list(asking),
            lambda name: answered_by(echoing[name], parties.echo_queue, asking[name], parties.there_and_back, count),
        )
    yield bench.at_most("queues, there and back through two of them, p50", p50)
    with company() as join:
        alone = {name: join(name, queue=library(name).Queue()) for name in bench.pair}
        p50 = bench.turns(bench.pair, lambda name: statistics.median(alone[name].ask(parties.put_and_get, count)))
    yield bench.at_most("queue, put and get by one process, p50", p50)


# ---------------------------------------------------------------- pipes


def pipe(bench: Bench) -> Iterator[Line]:
    names = (*bench.pair, FLOOR)
    with company() as join:
        asking: dict[str, Party] = {}
        echoing: dict[str, Party] = {}
        for name in names:
            mine, theirs = library(name).Pipe()
            asking[name], echoing[name] = join(name, pipe=mine), join(name, pipe=theirs)
        for kind, size_bytes, what, usual in (
            ("number", 0, "a number", 2_000),
            ("bytes", 1_000, "1 KB", 2_000),
            ("bytes", 1_000_000, "1 MB", 50),
        ):
            facts = (kind, size_bytes, bench.count(usual))

            def p50(name: str, facts: Sequence[Any] = facts) -> float:
                return answered_by(echoing[name], parties.echo_pipe, asking[name], parties.ask_pipe, *facts)

            yield bench.at_most(f"pipe, {what} there and back, p50", bench.turns(names, p50))


# ---------------------------------------------------------------- managers and locks


def manager(bench: Bench) -> Iterator[Line]:
    count = bench.count(2_000)
    with managers(bench.pair) as running, company() as join:
        objects = {name: {"dict": one.dict(key=1), "tally": one.Tally()} for name, one in running.items()}
        clients = {name: join(name, **mine) for name, mine in objects.items()}
        for what, *call in (
            ("own class, method", "tally", "add", (1,)),
            ("dict, get", "dict", "__getitem__", ("key",)),
            ("dict, set", "dict", "__setitem__", ("key", 2)),
        ):

            def p50(name: str, call: Sequence[Any] = call) -> float:
                return statistics.median(clients[name].ask(parties.call, *call, count))

            yield bench.at_most(f"manager, {what}, p50", bench.turns(bench.pair, p50), JUDGED_CALL)
        # Where the two processes run decides as much as what they do, and the kernel places each contender as it likes.
        cores = sorted(os.sched_getaffinity(0))
        for place, at_client, at_manager in (
            ("both on one core", cores[:1], cores[:1]),
            ("a core each", cores[:1], cores[1:2]),
        ):
            for client in clients.values():
                pin(client.ask(parties.call_once, "tally", "pid"), at_manager or cores[:1])
                pin(client.ask(parties.pid), at_client)

            def pinned_p50(name: str) -> float:
                return statistics.median(clients[name].ask(parties.call, "dict", "__getitem__", ("key",), count))

            yield bench.at_most(f"manager, dict, get, {place}, p50", bench.turns(bench.pair, pinned_p50), JUDGED_CALL)
        for client in clients.values():
            pin(client.ask(parties.call_once, "tally", "pid"), cores)

        def here_p50(name: str) -> float:
            return statistics.median(parties.call(objects[name], "tally", "add", (1,), count))

        what = "manager, own class, method, called by the launcher, p50"
        yield bench.at_most(what, bench.turns(bench.pair, here_p50), JUDGED_CALL)


def lock(bench: Bench) -> Iterator[Line]:
    count = bench.count(2_000)
    with managers(bench.pair) as running, company() as join:
        # Kept here as well: multiprocessing's proxies that a process is born with do not count as references.
        locks = {
            name: {"lock": library(name).Lock(), "semaphore": library(name).Semaphore(1), "managed": one.Lock()}
            for name, one in running.items()
        }
        clients = {name: join(name, **mine) for name, mine in locks.items()}
        for kind, what in (("lock", "Lock"), ("semaphore", "Semaphore"), ("managed", "a manager's Lock")):

            def p50(name: str, kind: str = kind) -> float:
                return statistics.median(clients[name].ask(parties.lock_and_unlock, kind, count))

            yield bench.at_most(f"{what}: acquire and release, uncontended, p50", bench.turns(bench.pair, p50))


def event(bench: Bench) -> Iterator[Line]:
    def pair(name: str) -> Sequence[dict[str, Any]]:
        one, other = library(name).Event(), library(name).Event()
        return {"mine": one, "theirs": other}, {"mine": other, "theirs": one}

    yield in_turns(bench, "events: two processes wake each other, there and back, p50", pair, parties.wait_in_turns)


def semaphore(bench: Bench) -> Iterator[Line]:
    def pair(name: str) -> Sequence[dict[str, Any]]:
        one, other = library(name).Semaphore(0), library(name).Semaphore(0)
        return {"mine": one, "theirs": other}, {"mine": other, "theirs": one}

    yield in_turns(bench, "semaphores: two processes wake each other, there and back, p50", pair, parties.pass_permits)


def condition(bench: Bench) -> Iterator[Line]:
    def pair(name: str) -> Sequence[dict[str, Any]]:
        return ({"condition": library(name).Condition(), "turn": library(name).RawValue("b", 0)},) * 2

    yield in_turns(bench, "condition: two processes notify each other, p50", pair, parties.notify_in_turns)


def barrier(bench: Bench) -> Iterator[Line]:
    def pair(name: str) -> Sequence[dict[str, Any]]:
        return ({"barrier": library(name).Barrier(2)},) * 2

    yield in_turns(bench, "barrier of two processes, p50", pair, parties.meet)


def in_turns(
    bench: Bench, what: str, pair: Callable[[str], Sequence[dict[str, Any]]], task: Callable[..., list[float]]
) -> Line:
    """A line of two processes that do the same together, with their objects."""
    count = bench.count(2_000)
    with company() as join:
        pairs = {name: [join(name, **objects) for objects in pair(name)] for name in bench.pair}

        def p50(name: str) -> float:
            leads, follows = pairs[name]
            follows.tell(task, False, count)
            durations = leads.ask(task, True, count)
            follows.answer()
            return statistics.median(durations)

        return bench.at_most(what, bench.turns(bench.pair, p50))


ROWS: dict[str, Callable[[Bench], Iterator[Line]]] = {
    "start": start,
    "queue": queue,
    "queue-bounded": queue_bounded,
    "queue-large": queue_large,
    "queue-latency": queue_latency,
    "pipe": pipe,
    "manager": manager,
    "lock": lock,
    "event": event,
    "semaphore": semaphore,
    "condition": condition,
    "barrier": barrier,
}
