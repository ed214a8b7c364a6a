"""The worker: runs tasks in the main thread of its process, one after the other.

    receive ─▶ for each item: current ─▶ fence? ─▶ call ─▶ result into the page ─▶ … ─▶ send

Results are sent when no task waits, after `FLUSH_NS`, or when the task page is full; until then they lie in the page
(`processes/page.py`), where they survive this process. Results of a patient unit are sent at the end of the unit, not
after `FLUSH_NS`. There is no second thread: while a task runs, the agent reads the page and recalls tasks from outside.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Any, cast

import msgspec

from ropewalk import injection
from ropewalk.errors import LinkClosed
from ropewalk.pool.constants import arrive, arrived, depart, fail
from ropewalk.pool.messages import (
    ENCODE,
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
from ropewalk.pool.worker_identity import take_identity
from ropewalk.processes.bootstrap import ProcessContext, flush_output
from ropewalk.processes.host_memory import end_with_agent, fetch_blob
from ropewalk.processes.messages import CONTROL
from ropewalk.processes.page import (
    BOOL,
    COUNT,
    CURRENT,
    ERROR,
    FENCE_FROM,
    FENCE_TO,
    FLOAT,
    IDLE,
    INT,
    PICKLED,
    SLOTS,
    SPILL_BYTES,
    SPILL_USED,
    STARTED_NS,
)
from ropewalk.transport.address import parse_address
from ropewalk.transport.blobs import SHARED_MIN_BYTES, open_parts, pack, total_bytes
from ropewalk.transport.client import dial, dial_owner
from ropewalk.transport.failures import Failure, failure_of, not_sendable
from ropewalk.transport.frames import Part
from ropewalk.transport.link import Link, Received
from ropewalk.transport.main_namespace import MainFacts, MainNamespace
from ropewalk.transport.serialization import dumps_result, loads

FLUSH_NS = 5_000_000
"""Nanoseconds after which the end of the next task sends all results that wait."""
_TINY_NS = 3_000
"""Tasks that take fewer nanoseconds than this run in bursts, the size of which follows, between two readings of the
clock."""
_TINY_BURST = 32
_SPILL_MAX_BYTES = 8 * 1024
"""Bytes; a larger pickle does not go into the page, but is sent at once."""
_NOT_YET_NS = 2**62
"""The start time of a task before it is measured."""


def main(context: ProcessContext) -> None:
    """Run a worker process."""
    link = dial_owner(parse_address(context.owner_address), context.credentials, POOL, passport=context.passport)
    os.register_at_fork(after_in_child=link.close_copy)
    try:
        PoolWorker(context, link).run()
    finally:
        link.close()  # between hosts, closing with unread input would discard the data sent last


class PoolWorker:
    """One worker and the state that it keeps between tasks."""

    def __init__(self, context: ProcessContext, link: Link) -> None:
        self._context = context
        self._link = link
        self._page = context.page
        self._agent: Link | None = None
        self._ids: dict[int, str] = {}
        self._results: list[Any] = []
        self._nested: dict[int, int] = {}
        self._parts: Sequence[Part] = ()
        self._base = 0
        self._flushed_ns = 0
        self._is_set_up = False

    def run(self) -> None:
        """Run tasks until the pool sends `StopWorker` or is gone."""
        received = self._link.receive()
        if received is None or not isinstance(received.message, BeginWorker):
            return  # the pool was terminated before this worker had started
        begin = received.message
        take_identity(begin.identity, begin.parent_name, begin.parent_pid, begin.authkey)
        self._namespace = MainNamespace(msgspec.msgpack.decode(begin.main, type=MainFacts))
        while True:
            received = self._next()
            if received is None:
                return
            match received.message:
                case Tasks(units):
                    self._run_units(units, received)
                case ConstantMessage():
                    self._receive_constant(received)
                case Forget(numbers):
                    depart([self._ids.pop(number) for number in numbers])
                case Setup():
                    if not self._set_up(received):
                        return
                case StopWorker():
                    self._flush()
                    return
                case _:
                    raise RuntimeError(f"a worker cannot do anything with {received.message!r}")

    def _next(self) -> Received | None:
        """Return the next message; results are sent before this waits."""
        if self._results:
            if self._link.reader.may_hold_more:
                try:
                    return self._link.read_ready()
                except BlockingIOError:
                    pass  # no complete message has arrived after all
            self._flush()
        return self._link.receive()

    def _set_up(self, received: Received) -> bool:
        setup: Setup = received.message
        try:
            if setup.initializer:
                arrived(setup.initializer)(*arrived(setup.arguments))
                depart([setup.initializer, setup.arguments])
        except Exception as error:
            self._link.send(SetupFailed(failure_of(error, __name__)))
            return False
        self._link.send(WorkerReady())
        self._is_set_up = True
        return True

    # Constants

    def _receive_constant(self, received: Received) -> None:
        """Load a constant for the next task: this is not timed, and if it kills the process the task is blamed."""
        words = self._page.words
        if self._is_set_up:
            words[STARTED_NS] = _NOT_YET_NS
            words[CURRENT] = self._base + len(self._results)
        self._load_constant(received)
        words[COUNT] = len(self._results)
        words[CURRENT] = IDLE

    def _load_constant(self, received: Received) -> None:
        constant: ConstantMessage = received.message
        self._ids[constant.number] = constant.id
        try:
            parts: Sequence[Part]
            if constant.blob and received.fds:
                parts = open_parts(received.fds.take(), constant.blob.lengths, writable=constant.writable)
            elif constant.blob:
                parts = self._fetch(constant.id, constant.writable)
            else:
                make = bytearray if constant.writable else _read_only
                parts = [make(part) for part in received.parts]
            arrive(constant.id, parts, self._namespace)
        except Exception as error:
            fail(constant.id, error)

    def _fetch(self, id: str, writable: bool) -> Sequence[Part]:
        context = self._context
        if self._agent is None:
            try:
                self._agent = dial(parse_address(context.agent_address), context.credentials, CONTROL)
            except LinkClosed:
                end_with_agent(context.name)
            os.register_at_fork(after_in_child=self._agent.close_copy)
        return fetch_blob(self._agent, id, context.name, writable=writable)

    # Tasks

    def _run_units(self, units: Sequence[UnitHeader], received: Received) -> None:
        at = 0
        if not self._results:
            self._flushed_ns = time.monotonic_ns()
        for unit in units:
            if unit.shared:
                parts: Sequence[Part] = open_parts(received.fds.take(), unit.shared, writable=True)
            else:
                parts = received.parts[at : at + unit.num_parts]
                at += unit.num_parts
            self._run_unit(unit, parts)
        self._page.words[COUNT] = len(self._results)
        self._page.words[CURRENT] = IDLE

    def _run_unit(self, unit: UnitHeader, parts: Sequence[Part]) -> None:
        words = self._page.words
        words[STARTED_NS] = time.monotonic_ns()
        words[CURRENT] = unit.seq  # unpickling is part of the first task, as it may kill this process too
        count = unit.stop - unit.start
        if words[FENCE_FROM] <= unit.seq < words[FENCE_TO]:
            self._skip(unit.seq, count)
            return
        try:
            if unit.span:
                items: Sequence[Any] = range(*unit.span)
            else:
                items = loads(parts[0], [_writable(part) for part in parts[1:]])
            call = _caller(arrived(self._ids[unit.code]), unit.kind)
            if injection.visit:
                call = _with_points(call, injection.visit)
        except Exception as error:
            failure = failure_of(error, __name__, raised_in=_task_name(unit, unit.seq))
            for _ in range(count):
                self._append_failure(failure)
            return
        _seeding.unit = unit
        if unit.patient:
            self._flush()  # earlier results do not wait for it
        if count != len(items):
            items = items[unit.start : unit.stop]
        self._run_items(items, call, unit.seq, patient=unit.patient)
        if unit.patient:
            self._flush()

    def _run_items(self, items: Sequence[Any], call: Callable[[Any], Any], seq: int, *, patient: bool) -> None:
        """Run tasks one at a time, or in bursts between two readings of the clock if they are tiny."""
        words, now_ns = self._page.words, time.monotonic_ns
        then = words[STARTED_NS]
        at, total, burst = 0, len(items), 1
        while at < total:
            stop = min(at + burst, total, at + SLOTS - len(self._results))
            fenced = self._run_burst(items[at:stop], call, seq + at)
            if fenced is not None:
                self._skip(fenced, seq + total - fenced)
                return
            words[STARTED_NS] = now = now_ns()
            if (now - self._flushed_ns > FLUSH_NS and not patient) or len(self._results) == SLOTS:
                self._flush()
            burst = _TINY_BURST if now - then < _TINY_NS * (stop - at) else 1
            at, then = stop, now

    def _run_burst(self, items: Sequence[Any], call: Callable[[Any], Any], seq: int) -> int | None:
        """Run tasks from number `seq` on; return the number of one that was recalled before it began.

        This is the hot loop: around a task that does nothing it takes an eighth of a microsecond.
        """
        words = self._page.words
        results = self._results
        for item in items:
            words[CURRENT] = seq
            if words[FENCE_FROM] <= seq < words[FENCE_TO]:
                return seq
            try:
                value = call(item)
            except (SystemExit, KeyboardInterrupt):
                raise  # as in any other process, they end this one
            except BaseException as error:  # also `CancelledError` and the like, which user code raised
                raised = error.answer if type(error) is _Exit else error
                self._append_failure(failure_of(raised, __name__, raised_in=_task_name(_seeding.unit, seq)))
                results = self._results
            else:
                if value is None:
                    results.append(None)  # an untouched slot of the page means None
                else:
                    self._append_value(value, len(results))
                    results = self._results
                    value = None  # otherwise the value would live until the next task ends
            seq += 1
        return None

    def _append_value(self, value: Any, slot: int) -> None:
        page = self._page
        kind = cast(Any, type(value))
        if kind is int and -0x8000000000000000 <= value <= 0x7FFFFFFFFFFFFFFF:
            page.values[slot] = value
            page.codes[slot] = INT
        elif kind is float:
            page.floats[slot] = value
            page.codes[slot] = FLOAT
        elif kind is bool:
            page.values[slot] = value
            page.codes[slot] = BOOL
        else:
            self._append_pickled(value)
            return
        self._results.append(value)

    def _append_pickled(self, value: Any) -> None:
        try:
            payload = dumps_result(value)
        except Exception as error:
            self._append_failure(not_sendable(error, value))
            return
        self._append(PICKLED, payload.pickle, payload.buffers)

    def _append_failure(self, failure: Failure) -> None:
        self._append(ERROR, ENCODE(failure), ())

    def _append(self, kind: int, data: bytes, buffers: Sequence[Part]) -> None:
        page = self._page
        slot = len(self._results)
        self._nested[slot] = kind
        used = page.words[SPILL_USED]
        if buffers or len(data) > _SPILL_MAX_BYTES or used + len(data) > SPILL_BYTES:
            self._results.append(b"")
            self._parts = [data, *buffers]
            self._flush()
            return
        self._results.append(data)
        page.spill[used : used + len(data)] = data
        page.values[slot] = used << 32 | len(data)
        page.words[SPILL_USED] = used + len(data)
        page.codes[slot] = kind
        if slot + 1 == SLOTS:
            self._flush()

    def _skip(self, seq: int, count: int) -> None:
        """Skip tasks that were recalled: they run elsewhere."""
        self._flush()
        self._link.send(Skipped(seq, count))
        self._base = seq + count
        self._page.clear(0, self._base)

    def _flush(self) -> None:
        count = len(self._results)
        if not count:
            return
        flush_output()  # once the launcher has the results, it may kill this worker
        now = time.monotonic_ns()
        done = TasksDone(self._base, now - self._flushed_ns, self._results, self._nested, ())
        if injection.visit:
            injection.visit("worker.before_flush", "")
        self._send_done(done, self._parts)
        if injection.visit:
            injection.visit("worker.after_flush", "")
        self._base += count
        self._page.clear(count, self._base)
        self._flushed_ns = now
        self._results = []
        if self._nested:
            self._nested = {}
        self._parts = ()

    def _send_done(self, done: TasksDone, parts: Sequence[Part]) -> None:
        if parts and self._link.stream.carries_fds and total_bytes(parts) >= SHARED_MIN_BYTES:
            try:
                fd = pack(parts, "ropewalk-result")
            except OSError:
                pass  # no descriptors or memory for it: send it inside the frame
            else:
                lengths = tuple(memoryview(part).nbytes for part in parts)
                try:
                    self._link.send(msgspec.structs.replace(done, shared=lengths), fds=[fd])
                finally:
                    os.close(fd)
                return
        self._link.send(done, parts)


def _writable(part: Part) -> Part:
    """Return an argument's buffer as memory that the task may change: small frames come as bytes."""
    return part if isinstance(part, memoryview) else memoryview(bytearray(part) if isinstance(part, bytes) else part)


def _read_only(part: Part) -> Part:
    """Return a constant's buffer as memory that no task may change, however it came."""
    return part if isinstance(part, bytes) else memoryview(part).toreadonly()


def _caller(function: Callable[..., Any], kind: int) -> Callable[[Any], Any]:
    if kind in CallKind.EXIT_IS_ANSWER:
        function = _answering_exits(function)
    if kind == CallKind.ONE:
        return function
    if kind in CallKind.WITH_KEYWORDS:
        return lambda item: function(*item[0], **item[1])
    return lambda item: function(*item)


class _Exit(BaseException):
    """An exception that a task raised to end its process, which becomes its result instead."""

    def __init__(self, answer: BaseException) -> None:
        self.answer = answer


def _answering_exits(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the function for an executor: as with the standard library's, an exception cannot end its worker."""

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except (SystemExit, KeyboardInterrupt) as error:
            raise _Exit(error) from None

    return call


def _with_points(call: Callable[[Any], Any], visit: Callable[[str, str], bool]) -> Callable[[Any], Any]:
    """Put the function between two points for fault injection, so that the hot loop need not know of them."""

    def call_between(item: Any) -> Any:
        visit("worker.before_task", "")
        value = call(item)
        visit("worker.after_task", "")
        return value

    return call_between


def _task_name(unit: UnitHeader | None, seq: int) -> str:
    """Return what the task with a number is called in messages, such as "task 3" of a map."""
    if unit is None or unit.kind in CallKind.SINGLE:
        return "the task"
    return f"task {unit.first_index + unit.start + seq - unit.seq}"


class _Seeding:
    unit: UnitHeader | None = None


_seeding = _Seeding()


def current_task() -> tuple[int, int] | None:
    """Return the seed of the map and the index of the running task; None outside of a task."""
    from ropewalk.processes import bootstrap

    unit, context = _seeding.unit, bootstrap.current
    if unit is None or context is None:
        return None
    current = context.page.words[CURRENT]
    return None if current == IDLE else (unit.seed, unit.first_index + unit.start + current - unit.seq)
