"""A worker in this process: a real link to drive it, a real page to look at, and what it says checked against both."""

from __future__ import annotations

import contextlib
import multiprocessing.process
import os
import pickle
import socket
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from multiprocessing.pool import MaybeEncodingError  # type: ignore[attr-defined]
from typing import Any

import msgspec
import pytest

from ropewalk.errors import RemoteError
from ropewalk.pool import worker as worker_module
from ropewalk.pool.constants import arrived, depart
from ropewalk.pool.messages import (
    POOL,
    BeginWorker,
    CallKind,
    ConstantMessage,
    Forget,
    Setup,
    SetupFailed,
    Skipped,
    StopWorker,
    Tasks,
    TasksDone,
    UnitHeader,
    WorkerReady,
)
from ropewalk.pool.result_batch import RaisedEntry, ResultBatch
from ropewalk.pool.worker import PoolWorker
from ropewalk.processes import bootstrap
from ropewalk.processes.bootstrap import ProcessContext
from ropewalk.processes.code_parts import parts_of
from ropewalk.processes.page import (
    CURRENT,
    FENCE_FROM,
    FENCE_TO,
    IDLE,
    SLOTS,
    SPILL_BYTES,
    PageReport,
    TaskPage,
    create_page,
    results_of,
)
from ropewalk.transport.blobs import SHARED_MIN_BYTES, BlobRef, open_parts, pack, total_bytes
from ropewalk.transport.credentials import Credentials
from ropewalk.transport.failures import failure_of, rebuild_error
from ropewalk.transport.frames import Part
from ropewalk.transport.link import Link, Received
from ropewalk.transport.main_namespace import MainFacts
from ropewalk.transport.serialization import dumps
from ropewalk.transport.streams.plain import PlainStream

#: What constants are called on the link.
NUMBERS = {"f": 7, "g": 0, "init": 300, "args": 1, "missing": 99}


class Driven:
    """A worker, the pool's end of its link, and its page; what tasks see of it is `driven`."""

    def __init__(self) -> None:
        fd = create_page()
        self.page = TaskPage(fd)
        os.close(fd)
        ours, theirs = socket.socketpair()
        self.link = Link(PlainStream(ours), POOL, "worker")
        self.context = ProcessContext(
            credentials=Credentials("run", "worker", ""),
            name="pool-1.0",
            host="here",
            cpus=1,
            owner_address="",
            agent_address="",
            folder="/",
            page=self.page,
        )
        self.worker_link = Link(PlainStream(theirs), POOL, "pool")
        self.worker = PoolWorker(self.context, self.worker_link)
        self.next_seq = 0
        self._said: list[Any] = []
        self.num_parts: list[int] = []

    def begin(self, *constants: tuple[str, Any]) -> None:
        self.link.send(BeginWorker(msgspec.msgpack.encode(MainFacts()), b"key", (1,), "MainProcess", os.getpid()))
        for id, value in constants:
            self.constant(id, value)
        self.link.send(Setup("", ""))

    def constant(self, id: str, value: Any) -> None:
        self.link.send(ConstantMessage(NUMBERS[id], id, None, False), parts_of(dumps(value), {}))

    def unit(
        self, items: Sequence[Any], *, start: int = 0, stop: int | None = None, code: str = "f", **more: Any
    ) -> tuple[UnitHeader, list[Part]]:
        span = (items.start, items.stop, items.step) if isinstance(items, range) else None
        payload = dumps(tuple(items))
        parts: list[Part] = [] if span else [payload.pickle, *payload.buffers]
        stop = len(items) if stop is None else stop
        header = UnitHeader(
            seq=self.next_seq,
            code=NUMBERS[code],
            kind=more.get("kind", CallKind.ONE),
            start=start,
            stop=stop,
            first_index=more.get("first_index", 0),
            seed=more.get("seed", 1),
            span=span,
            num_parts=len(parts),
            shared=(),
            patient=more.get("patient", False),
        )
        self.next_seq += stop - start
        return header, parts

    def send(self, *units: tuple[UnitHeader, list[Part]]) -> None:
        self.link.send(Tasks([header for header, _ in units]), [part for _, parts in units for part in parts])

    def run(self) -> None:
        """Let it run until it has seen StopWorker; what it says is read meanwhile: it may fill a socket."""
        self.link.send(StopWorker())
        with ThreadPoolExecutor(1) as executor:
            future = executor.submit(self.worker.run)
            try:
                while not future.done():
                    self._read()
                    wait([future], 0.0005)
            except BaseException:
                self.link.close()  # or the thread waits for ever
                raise
        future.result()

    def said(self) -> list[Any]:
        """Everything that it said: messages, those with results as (first, entries)."""
        self._read()
        said, self._said = self._said, []
        return said

    def _read(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while received := self.link.read_ready():
                self._said.append(self._opened(received))

    def _opened(self, received: Received) -> Any:
        if not isinstance(received.message, TasksDone):
            return received.message
        done = received.message
        parts: Sequence[Part] = received.parts
        if done.shared:
            parts = open_parts(received.fds.take(), done.shared, writable=True)
        entries = ResultBatch(done.values, done.nested, parts, "").entries()
        assert len(entries) == len(done.values) and done.elapsed_ns >= 0
        self.num_parts.append(len(parts))
        return done.first, entries

    def close(self) -> None:
        self.link.close()
        self.worker_link.close()
        self.page.close()


driven: Driven  # what tasks look at; they run in this process
looks: list[tuple[int, float]] = []


def look_at_current() -> None:
    """Note which task the page shows, and for how long it has run."""
    report = driven.page.report()
    looks.append((report.current, report.running_s))


@pytest.fixture(autouse=True)
def worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[Driven]:
    global driven
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])  # a worker replaces it
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    process: Any = multiprocessing.current_process()
    name, authkey, identity = process.name, process.authkey, process._identity
    for global_name in ("_parent_process", "_process_counter"):
        monkeypatch.setattr(multiprocessing.process, global_name, getattr(multiprocessing.process, global_name))
    driven = Driven()
    looks.clear()
    monkeypatch.setattr(bootstrap, "current", driven.context)
    yield driven
    driven.close()
    depart(["f", "g", "init", "args"])
    process.name, process.authkey, process._identity = name, authkey, identity
    worker_module._seeding.unit = None
    from ropewalk.transport import main_namespace

    main_namespace._here.namespace = None


def results(said: list[Any]) -> list[Any]:
    """All results, in order, which must follow one another without a gap."""
    found: list[Any] = []
    for message in said:
        if isinstance(message, tuple):
            first, entries = message
            assert first == len(found)
            found += entries
    return found


def on_page(report: PageReport) -> list[Any]:
    return ResultBatch.of_page(report, "").entries()


# What tasks do


def identity(value: Any) -> Any:
    return value


def nothing(_: Any) -> None:
    return None


def fail(value: Any) -> Any:
    raise ValueError(f"bad {value}")


def odd_fails(value: int) -> int:
    if value % 2:
        raise ValueError(f"bad {value}")
    return value


def slowly(value: Any) -> Any:
    worker_module.time.sleep(0.006)  # longer than results wait for company
    return value


def add(one: int, two: int = 0, *, three: int = 0) -> int:
    return one + two + three


def text_of(size: int) -> str:
    return "x" * size


def buffer_of(size: int) -> pickle.PickleBuffer:
    return pickle.PickleBuffer(bytearray(os.urandom(1) * size))


def look(_: Any) -> list[Any]:
    """What a page would say of us now."""
    return on_page(driven.page.report())


def number(_: Any) -> Any:
    return driven.page.words[CURRENT], worker_module.current_task()


def fence_behind(value: tuple[int, int, int]) -> int:
    """In the task that is named, recall some later ones, as an agent does from outside."""
    at, first, until = value
    report = driven.page.report()
    unsent = driven.worker._results
    assert (report.base, len(report.codes)) == (report.current - len(unsent), len(unsent)), "skipped ones count as run"
    if report.current == at:
        driven.page.words[FENCE_TO] = until
        driven.page.words[FENCE_FROM] = first
    return report.current


def num_on_page(_: int) -> int:
    """How many results an agent would find."""
    worker_module.time.sleep(0.006)
    return len(driven.page.report().codes)


class CannotBePickled:
    def __reduce__(self) -> Any:
        raise TypeError("not this one")


class CannotBeShown(CannotBePickled):
    def __repr__(self) -> str:
        raise ZeroDivisionError


class CannotSayItself(ValueError):
    def __str__(self) -> str:
        raise ZeroDivisionError


class CannotTravel(Exception):
    def __init__(self) -> None:
        super().__init__("it holds a lock", threading.Lock())


MAKERS: dict[str, Callable[[], Any]] = {
    "lambda": lambda: lambda: None,
    "pickle": CannotBePickled,
    "repr": CannotBeShown,
}


def make(name: str) -> Any:
    return MAKERS[name]()


def raise_one(kind: type[Exception]) -> None:
    raise kind()


def first_byte_set(data: Any) -> pickle.PickleBuffer:
    memoryview(data)[0] = 1
    return pickle.PickleBuffer(data)


def write_to_g(_: Any) -> None:
    memoryview(arrived("g"))[0] = 1


def read_only(_: Any) -> None:
    raise ValueError("assignment destination is read-only")


# Being set up


def test_a_worker_is_ready_when_its_initializer_has_returned(worker: Driven) -> None:
    worker.begin()
    worker.run()
    assert worker.said() == [WorkerReady()]
    assert worker.page.words[CURRENT] == IDLE


def test_an_initializer_that_raises_is_reported_and_ends_the_worker(worker: Driven) -> None:
    worker.link.send(BeginWorker(msgspec.msgpack.encode(MainFacts()), b"key", (1,), "MainProcess", os.getpid()))
    worker.constant("init", fail)
    worker.constant("args", ("start",))
    worker.link.send(Setup("init", "args"))
    worker.send(worker.unit([1]))
    worker.worker.run()
    (message,) = worker.said()
    assert isinstance(message, SetupFailed)
    assert message.failure.type_name == "builtins.ValueError" and message.failure.message == "bad start"


def test_a_worker_whose_pool_is_gone_ends(worker: Driven) -> None:
    worker.link.close()
    worker.worker.run()


def test_a_worker_whose_pool_goes_while_it_waits_ends(worker: Driven) -> None:
    worker.begin()
    worker.link.stream.close()
    with contextlib.suppress(ConnectionError):  # saying that it is ready finds nobody
        worker.worker.run()


# Calling


def test_results_come_home_in_order_whatever_they_are(worker: Driven) -> None:
    values = [
        None,
        1,
        -(2**63),
        2**63 - 1,
        2**63,
        2**200,
        True,
        False,
        1.5,
        float("inf"),
        -0.0,
        "text",
        b"",
        (1, [2]),
        {},
    ]
    worker.begin(("f", identity))
    worker.send(worker.unit(values))
    worker.run()
    found = results(worker.said()[1:])
    assert found == values and [type(value) for value in found] == [type(value) for value in values]


@pytest.mark.parametrize(
    ("kind", "items", "expected"),
    [
        (CallKind.ONE, [4, 5], [4, 5]),
        (CallKind.STAR, [(1, 2), (3,)], [3, 3]),
        (CallKind.APPLY, [((1, 2), {"three": 3})], [6]),
        (CallKind.APPLY_PLAIN, [(1, 2)], [3]),
    ],
)
def test_each_kind_of_call_gets_its_arguments(worker: Driven, kind: int, items: list[Any], expected: list[int]) -> None:
    worker.begin(("f", add))
    worker.send(worker.unit(items, kind=kind))
    worker.run()
    assert results(worker.said()[1:]) == expected


def test_a_span_of_a_unit_runs_only_that_span(worker: Driven) -> None:
    worker.begin(("f", identity))
    worker.send(worker.unit(range(10), start=3, stop=6), worker.unit(range(10), start=9))
    worker.run()
    assert results(worker.said()[1:]) == [3, 4, 5, 9]


def test_tasks_know_their_seed_and_index(worker: Driven) -> None:
    worker.begin(("f", number))
    worker.send(worker.unit(range(2)), worker.unit(range(10), start=8, first_index=100, seed=7))
    worker.run()
    assert results(worker.said()[1:]) == [(0, (1, 0)), (1, (1, 1)), (2, (7, 108)), (3, (7, 109))]
    assert worker_module.current_task() is None


def test_arguments_in_a_memory_file_are_writable_and_ours(worker: Driven) -> None:
    data = bytearray(os.urandom(SHARED_MIN_BYTES))
    payload = dumps((pickle.PickleBuffer(data),))
    parts: list[Part] = [payload.pickle, *payload.buffers]
    lengths = tuple(memoryview(part).nbytes for part in parts)
    fd = pack(parts)
    worker.begin(("f", bytes))
    worker.link.send(Tasks([UnitHeader(0, NUMBERS["f"], CallKind.ONE, 0, 1, 0, 1, None, 0, lengths, False)]), [], [fd])
    os.close(fd)
    worker.run()
    assert results(worker.said()[1:]) == [bytes(data)]


@pytest.mark.parametrize("writable", [False, True])
def test_a_constant_in_a_memory_file_that_came_along_needs_no_agent(worker: Driven, writable: bool) -> None:
    data = bytearray(os.urandom(SHARED_MIN_BYTES))
    parts = parts_of(dumps(pickle.PickleBuffer(data)), {})
    lengths = tuple(memoryview(part).nbytes for part in parts)
    fd = pack(parts)
    worker.begin()
    worker.link.send(ConstantMessage(NUMBERS["g"], "g", BlobRef("g", lengths), writable), fds=[fd])
    os.close(fd)
    worker.run()  # (the agent's address leads nowhere)
    arrived_data = memoryview(arrived("g"))
    assert arrived_data == data and arrived_data.readonly != writable


def test_forgotten_code_is_not_there_any_more(worker: Driven) -> None:
    worker.begin(("f", identity))
    worker.link.send(Forget([NUMBERS["f"]]))
    worker.send(worker.unit([1]))
    worker.run()
    (entry,) = results(worker.said()[1:])
    assert isinstance(entry.error, KeyError)


# When results go out


def test_tiny_results_travel_together_and_the_last_go_before_it_waits(worker: Driven) -> None:
    worker.begin(("f", nothing))
    worker.send(worker.unit(range(300)))
    worker.run()
    messages = worker.said()[1:]
    assert len(results(messages)) == 300 and len(messages) < 20


def test_results_go_out_before_the_worker_waits_for_more(worker: Driven) -> None:
    worker.begin(("f", identity))
    thread = threading.Thread(target=worker.worker.run)
    thread.start()
    try:
        assert isinstance(worker.link.receive().message, WorkerReady)  # type: ignore[union-attr]
        for value in range(3):
            worker.send(worker.unit([value]))
            received = worker.link.receive()  # or this waits for ever
            assert received and received.message.first == value
    finally:
        worker.link.send(StopWorker())
        thread.join()


def test_results_go_out_although_the_next_message_has_only_begun_to_arrive(worker: Driven) -> None:
    # Half a frame in the buffer counted as "more to read", and the worker waited for the rest with its results unsent.
    worker.begin(("f", identity))
    sent: list[memoryview] = []
    stream = worker.link.stream
    direct = stream.send
    stream.send = lambda buffers, fds=(): sent.extend(map(memoryview, map(bytes, buffers))) or total_bytes(buffers)  # type: ignore[method-assign]
    worker.send(worker.unit([1]))
    worker.send(worker.unit([2]))
    stream.send = direct  # type: ignore[method-assign]
    whole = b"".join(sent)
    half = len(whole) * 3 // 4
    direct([memoryview(whole)[:half]])
    thread = threading.Thread(target=worker.worker.run)
    thread.start()
    try:
        assert isinstance(worker.link.receive().message, WorkerReady)  # type: ignore[union-attr]
        assert worker.link.receive().message.first == 0  # type: ignore[union-attr]
        direct([memoryview(whole)[half:]])
        assert worker.link.receive().message.first == 1  # type: ignore[union-attr]
    finally:
        worker.link.send(StopWorker())
        thread.join()


def test_slow_results_do_not_wait_for_company(worker: Driven) -> None:
    worker.begin(("f", slowly))
    worker.send(worker.unit(range(4)))
    worker.run()
    assert [entries for _, entries in worker.said()[1:]] == [[0], [1], [2], [3]]


def test_results_of_a_patient_unit_go_out_together_and_hold_up_no_others(worker: Driven) -> None:
    worker.begin(("f", slowly), ("g", identity))
    worker.send(
        worker.unit([8, 9], code="g"),
        worker.unit(range(4), patient=True),
        worker.unit(range(4, 7), patient=True),
        worker.unit([7], code="g"),
    )
    worker.run()
    assert [entries for _, entries in worker.said()[1:]] == [[8, 9], [0, 1, 2, 3], [4, 5, 6], [7]]


def test_until_its_end_the_results_of_a_patient_unit_lie_in_the_page(worker: Driven) -> None:
    worker.begin(("f", num_on_page))
    worker.send(worker.unit(range(4), patient=True))
    worker.run()
    assert results(worker.said()[1:]) == [0, 1, 2, 3]


def test_a_full_page_is_sent(worker: Driven) -> None:
    count = 2 * SLOTS + 10
    worker.begin(("f", identity))
    worker.send(worker.unit(range(count)))
    worker.run()
    messages = worker.said()[1:]
    assert results(messages) == list(range(count))
    assert max(len(entries) for _, entries in messages) <= SLOTS


@pytest.mark.parametrize("size", [100, 3000, 8000, 9000])
def test_what_does_not_fit_into_the_page_is_sent_at_once(worker: Driven, size: int) -> None:
    worker.begin(("f", text_of))
    worker.send(worker.unit([size] * 60))
    worker.run()
    messages = worker.said()[1:]
    assert results(messages) == ["x" * size] * 60
    if size > 8192:
        assert all(len(entries) == 1 for _, entries in messages)
    assert max(len(entries) for _, entries in messages) * size <= SPILL_BYTES + size


def test_small_results_before_a_large_one_travel_with_it(worker: Driven) -> None:
    worker.begin(("f", text_of))
    worker.send(worker.unit([1, 2, 20_000, 3]))
    worker.run()
    assert results(worker.said()[1:]) == ["x", "xx", "x" * 20_000, "xxx"]


@pytest.mark.parametrize("size", [10_000, 2 * SHARED_MIN_BYTES])
def test_buffers_travel_beside_the_pickle_and_large_ones_in_a_memory_file(worker: Driven, size: int) -> None:
    worker.begin(("f", buffer_of))
    shared: list[bool] = []
    send = worker.worker_link.send
    worker.worker_link.send = lambda message, parts=(), fds=(): (shared.append(bool(fds)), send(message, parts, fds))[1]  # type: ignore[method-assign]
    worker.send(worker.unit([10, size, 10]))
    worker.run()
    found = results(worker.said())
    assert [len(memoryview(entry)) for entry in found] == [10, size, 10]
    memoryview(found[1])[0] = 1  # ours to write to
    assert any(shared) == (size >= SHARED_MIN_BYTES)
    assert worker.num_parts[-2:] == [2, 0]  # a buffer goes home once


def test_small_and_large_buffers_of_arguments_are_writable(worker: Driven) -> None:
    # Those of 4 to 64 KiB came as read-only bytes, both ways.
    worker.begin(("f", first_byte_set))
    buffers = [pickle.PickleBuffer(bytearray(size)) for size in (10, 5_000, 30_000, 100_000)]
    worker.send(*(worker.unit([buffer]) for buffer in buffers))
    worker.run()
    found = results(worker.said()[1:])
    assert [memoryview(entry)[0] for entry in found] == [1] * 4
    for entry in found:
        memoryview(entry)[0] = 2


@pytest.mark.parametrize("size", [5_000, 30_000, 150_000])
def test_small_and_large_constants_are_read_only(worker: Driven, size: int) -> None:
    worker.begin(("f", write_to_g), ("g", pickle.PickleBuffer(bytearray(size))))
    worker.send(worker.unit([0]))
    worker.run()
    (entry,) = results(worker.said()[1:])
    assert isinstance(entry.error, TypeError) and "read-only" in str(entry.error)


# The page


def test_the_page_tells_what_the_message_tells_later(worker: Driven) -> None:
    worker.begin(("f", identity), ("g", look))
    values = [None, 5, -(2**63), 2**63, 1.5, float("-inf"), True, "text", b"bytes", (1, 2), None]
    worker.send(worker.unit(values), worker.unit([0], code="g"))
    worker.run()
    *found, seen = results(worker.said()[1:])
    assert found == values
    if seen:  # nothing where the message was sent before the second unit began, on a busy machine
        assert [(type(one), one) for one in seen] == [(type(one), one) for one in values]


class LooksWhenLoaded:
    """What a constant finds on the page while it is unpickled."""

    def __reduce__(self) -> Any:
        return look_at_current, ()


def test_while_a_constant_is_loaded_the_page_shows_the_task_that_needs_it_and_no_time_of_it(worker: Driven) -> None:
    worker.begin(("f", identity), ("init", LooksWhenLoaded()))
    worker.send(worker.unit([1, 2, 3]))
    worker.constant("g", LooksWhenLoaded())
    worker.send(worker.unit([0], code="f"))
    worker.run()
    before, later = looks
    assert before == (IDLE, 0.0), "what comes before the initializer is the start of the worker"
    assert later == (3, 0.0)
    assert worker.page.words[CURRENT] == IDLE
    assert results(worker.said()[1:]) == [1, 2, 3, 0]


def test_failures_are_on_the_page_as_well(worker: Driven) -> None:
    reports: list[PageReport] = []
    clear = worker.page.clear

    def clear_and_look(count: int, base: int) -> None:
        if count:
            worker.page.words[CURRENT] = worker.worker._base  # all before the next have ended
            reports.append(worker.page.report())
        clear(count, base)

    worker.page.clear = clear_and_look  # type: ignore[method-assign]
    worker.begin(("f", odd_fails))
    worker.send(worker.unit(range(5)))
    worker.run()
    found = results(worker.said()[1:])
    told = [entry for report in reports for entry in on_page(report)]
    assert len(told) == len(found) == 5
    for one, other in zip(told, found, strict=True):
        if isinstance(one, RaisedEntry):
            assert str(one.error) == str(other.error) and type(one.error) is type(other.error)
            assert str(one.error.__cause__) == str(other.error.__cause__)
        else:
            assert one == other


def test_after_its_work_the_page_is_idle_and_empty(worker: Driven) -> None:
    worker.begin(("f", identity))
    worker.send(worker.unit(["a", 2, 3.0]))
    worker.run()
    report = worker.page.report()
    assert (report.current, report.base, results_of(report)) == (IDLE, 3, [])
    assert bytes(worker.page.codes) == bytes(SLOTS)


# The fence


def fenced_run(
    worker: Driven, at: int, first: int, until: int, sizes: Sequence[int], *, patient: bool = False
) -> tuple[list[int], list[int]]:
    """Tasks that were run, and tasks that it said were skipped."""
    worker.begin(("f", fence_behind))
    units = [worker.unit([(at, first, until)] * size, patient=patient) for size in sizes]
    worker.send(*units)
    worker.run()
    run: list[int] = []
    skipped: list[int] = []
    messages = deque(worker.said()[1:])
    while messages:
        message = messages.popleft()
        if isinstance(message, Skipped):
            skipped += range(message.first, message.first + message.count)
        else:
            assert message[1] == list(range(message[0], message[0] + len(message[1]))), "a result under a wrong number"
            run += message[1]
    return run, skipped


@pytest.mark.parametrize(
    ("at", "first", "until", "sizes"),
    [
        (0, 1, 6, [6]),  # all the rest of a unit
        (2, 4, 6, [6]),  # its second half
        (1, 5, 8, [4, 4, 4]),  # from the middle of a unit to its end
        (1, 2, 8, [4, 4, 4]),  # the rest of one, and a whole one
        (0, 1, 12, [1] * 12),
        (0, 4, 12, [4, 4, 4]),  # whole units: not even unpickled
        (40, 45, 100, [100, 3]),  # amid a burst of tiny tasks
        (3, 3, 4, [4, 2]),  # the one it is in: too late
        (2, 9, 12, [3] * 5),
    ],
)
@pytest.mark.parametrize("patient", [False, True])
def test_tasks_behind_the_fence_are_skipped_and_said_so_and_all_others_run(
    worker: Driven, at: int, first: int, until: int, sizes: list[int], patient: bool
) -> None:
    run, skipped = fenced_run(worker, at, first, until, sizes, patient=patient)
    behind = [seq for seq in range(sum(sizes)) if max(first, at + 1) <= seq < until]
    assert skipped == behind
    assert run == [seq for seq in range(sum(sizes)) if seq not in behind]


def test_results_before_the_fence_are_sent_before_what_was_skipped_is_told(worker: Driven) -> None:
    worker.begin(("f", fence_behind))
    worker.send(worker.unit([(0, 2, 4)] * 4), worker.unit([(0, 2, 4)] * 2))
    worker.run()
    assert worker.said()[1:] == [(0, [0, 1]), Skipped(2, 2), (4, [4, 5])]


def test_a_unit_behind_the_fence_is_not_even_unpickled(worker: Driven) -> None:
    worker.begin(("f", fence_behind))
    broken, _ = worker.unit([0, 1, 2])
    first = worker.unit([(3, 4, 6)]), worker.unit([1, 2])
    second, _ = first[1]
    worker.send((broken, [b"no pickle"]), first[0], (msgspec.structs.replace(second, num_parts=1), [b"no pickle"]))
    worker.run()
    *failed, (seq, entries), skipped = worker.said()[1:]
    assert seq + len(entries) == 4 and skipped == Skipped(4, 2) and len(failed) <= 1


def test_between_messages_the_page_still_tells_what_was_not_sent(worker: Driven) -> None:
    seen: list[tuple[int, list[Any]]] = []
    flush = worker.worker._flush

    def look_and_flush() -> None:
        if worker.page.words[CURRENT] == IDLE and worker.worker._results:
            seen.append((worker.page.report().base, on_page(worker.page.report())))
        flush()

    worker.worker._flush = look_and_flush  # type: ignore[method-assign]
    worker.begin(("f", identity))
    worker.send(worker.unit([1, None, "three", None]))
    worker.run()
    assert results(worker.said()[1:]) == [1, None, "three", None]
    assert [(base, entries) for base, entries in seen if base == 0] in ([], [(0, [1, None, "three", None])])
    assert seen


# Failures


def errors_of(worker: Driven, function: Any, items: Sequence[Any]) -> list[BaseException]:
    worker.begin(("f", function))
    worker.send(worker.unit(items))
    worker.run()
    entries = results(worker.said()[1:])
    assert all(isinstance(entry, RaisedEntry) for entry in entries)
    return [entry.error for entry in entries]


def test_errors_come_home_beside_values_with_the_users_frames_only(worker: Driven) -> None:
    worker.begin(("f", odd_fails))
    worker.send(worker.unit(range(4)))
    worker.run()
    zero, one, two, three = results(worker.said()[1:])
    assert (zero, two) == (0, 2)
    assert str(one.error) == "bad 1" and str(three.error) == "bad 3"
    text = str(one.error.__cause__)
    assert "in odd_fails" in text and "ropewalk/pool/worker.py" not in text


@pytest.mark.parametrize("name", list(MAKERS))
def test_a_result_that_cannot_be_sent_is_an_error_of_its_own_task(worker: Driven, name: str) -> None:
    (error,) = errors_of(worker, make, [name])
    assert isinstance(error, MaybeEncodingError)


def test_an_exception_that_cannot_be_sent_still_says_what_it_was(worker: Driven) -> None:
    (error,) = errors_of(worker, raise_one, [CannotTravel])
    assert isinstance(error, MaybeEncodingError) and "it holds a lock" in str(error)
    assert "(raised in task 0; " in str(error)
    assert "CannotTravel" in str(error.__cause__)


def test_an_exception_whose_str_raises_does_not_end_the_worker(worker: Driven) -> None:
    # The test for "read-only" asked a ValueError for its words, unguarded: the worker died, and two more after it.
    (error,) = errors_of(worker, raise_one, [CannotSayItself])
    assert isinstance(error, CannotSayItself | RemoteError)


def test_writing_to_a_constant_is_explained(worker: Driven) -> None:
    (error,) = errors_of(worker, read_only, [0])
    assert any("copy() it to change it" in note for note in error.__notes__)


def test_arguments_that_cannot_be_unpickled_fail_each_task_of_their_unit_and_no_other(worker: Driven) -> None:
    worker.begin(("f", identity))
    broken, _ = worker.unit([0, 1, 2])
    worker.send((msgspec.structs.replace(broken, num_parts=1), [b"no pickle"]), worker.unit([7]))
    worker.run()
    *failed, seven = results(worker.said()[1:])
    assert [type(entry.error) for entry in failed] == [pickle.UnpicklingError] * 3
    assert seven == 7


def test_more_failures_than_the_page_holds_all_come_home(worker: Driven) -> None:
    worker.begin()
    worker.send(worker.unit(range(SLOTS + 100), code="missing"))
    worker.run()
    found = results(worker.said())
    assert len(found) == SLOTS + 100
    assert {type(entry.error) for entry in found} == {KeyError}


def test_a_constant_that_cannot_be_unpickled_fails_the_tasks_that_need_it(worker: Driven) -> None:
    worker.begin(("g", identity))
    worker.link.send(ConstantMessage(NUMBERS["f"], "f", None, False), [*parts_of(dumps(1), {})[:1], b"no pickle"])
    worker.send(worker.unit([1]), worker.unit([2], code="g"))
    worker.run()
    one, two = results(worker.said()[1:])
    assert isinstance(one.error, pickle.UnpicklingError) and two == 2


def test_failures_are_rebuilt_as_they_were_sent() -> None:
    with pytest.raises(ValueError, match="bad 1") as caught:
        fail(1)
    failure = failure_of(caught.value)
    assert failure.type_name == "builtins.ValueError" and failure.message == "bad 1"
    rebuilt = rebuild_error(failure, "")
    assert type(rebuilt) is ValueError and rebuilt.args == ("bad 1",)
