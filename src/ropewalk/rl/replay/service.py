"""`ReplayServer`: replay tables as a service, and `Replay`, the node that runs it.

    actors ── insert ──▶ line ─▶ limiter ─▶ ┌────────────────┐ ◀─ limiter ◀─ line ◀── sample ── learner
                                            │  ReplayTables  │
    checkpoint ◀── rows, piece by piece ─── └────────────────┘ ◀── update_priorities, delete, reset, set_limiter

Every call holds one lock for as long as it changes or reads the tables, and releases it while it waits. Calls wait by
`rw.wait_for`, so the call of a caller that is gone does not occupy a place.
"""

from __future__ import annotations

import dataclasses
import logging
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

import ropewalk as rw
from ropewalk.errors import CallCancelled, DeadlineExceeded, LimiterDeadlock, StreamLost
from ropewalk.rl.environments.spec import Array
from ropewalk.rl.replay.batch import Batch
from ropewalk.rl.replay.insertion import Insertion
from ropewalk.rl.replay.lent_batches import BatchLender, LentBatch
from ropewalk.rl.replay.life import ReplayLife
from ropewalk.rl.replay.limiters.limiter import Limiter
from ropewalk.rl.replay.snapshot import ReplaySnapshot
from ropewalk.rl.replay.table import ReplayTable
from ropewalk.rl.replay.table_info import TableInfo
from ropewalk.rl.replay.tables import ReplayTables
from ropewalk.rl.replay.waiting_lines import LimiterWait, Side, WaitingLines

T = TypeVar("T")

logger = logging.getLogger(__name__)

_PIECE_BYTES = 1 << 20
"""Rows are read for a checkpoint in pieces of this size, between which calls go on."""
_LEARNING = 6
"""How many times `deadlock_s` a table may be full that was sampled before: its sampler may be computing."""


class ReplayServer:
    """Replay tables for callers in other processes. All methods may be called by any number of callers at once.

    All methods may be repeated: an insertion is done once, by its run id and sequence. So callers wait while a lost
    server is started again, and do not fail.

    Args:
        tables: settings of the tables, or the tables themselves.
        deadlock_s: seconds after which it is an error that inserters and samplers wait for each other, as when an
            insertion is for two tables of which one is never sampled; six times as long if it was sampled before. Also
            seconds for which samplers wait after all streams that inserted have ended.
    """

    def __init__(self, tables: Sequence[ReplayTable] | ReplayTables, deadlock_s: float = 10.0) -> None:
        self._tables = tables if isinstance(tables, ReplayTables) else ReplayTables(tables)
        self._lender = BatchLender()
        self._names = tuple(table.name for table in self._tables.tables)
        self._deadlock_s = deadlock_s
        self._lock = threading.RLock()
        self._lines = WaitingLines(self._names)
        self._in_order: WeakValueDictionary[str, threading.Condition] = WeakValueDictionary()
        """By run id, told when an insertion of the stream was done; only where a later one waits for it."""
        self._acknowledged: dict[str, int] = {}
        """By run id, the number of insertions of which the caller has the answers, here or from a lost life."""
        self._snapshot: ReplaySnapshot | None = None
        self._sampling_has_ended = False
        self._lives: dict[str, str] = {}
        """By group, the run id of its present life."""
        self._changed = dict.fromkeys(self._names, time.monotonic())
        self._stream_ended_at = time.monotonic()
        self._generation = self._life_number = _generation()
        self._tables.begin_life(self._life_number)
        self._life = ReplayLife(_server_name(), uuid.uuid4().hex, False, dict.fromkeys(self._names, 0))

    def __repr__(self) -> str:
        return f"<ReplayServer of {', '.join(self._names)}>"

    @property
    def lock(self) -> threading.RLock:
        """Held by every operation: a state is whole for as long as it is held."""
        return self._lock

    # Inserting

    @rw.method
    @rw.idempotent
    @rw.concurrent(512)
    def insert(self, insertion: Insertion) -> bool:
        """Insert one insertion, all of it or nothing, waiting until the limiters of its tables allow it.

        Returns:
            Whether it was inserted; False: it was inserted before.

        Raises:
            StreamLost: earlier insertions of its stream are missing.
            LimiterDeadlock: neither inserting nor sampling can go on.
            ValueError: it does not fit the tables; nothing is inserted.
        """
        with self._lock:
            return self._insert(insertion, insertion.sequence)

    @rw.method
    @rw.idempotent
    @rw.concurrent(512)
    def insert_many(self, insertions: Sequence[Insertion], acknowledged: int) -> list[bool]:
        """Insert consecutive insertions of one stream, as `insert` does with each.

        Calls of one stream may be under way at the same time: an insertion waits for the one before it.

        Args:
            insertions: in their order.
            acknowledged: the caller has the answers to the stream's insertions before this one.
        """
        with self._lock:
            return [self._insert(insertion, acknowledged) for insertion in insertions]

    @rw.method
    @rw.idempotent
    @rw.concurrent(64)
    def end_stream(self, run_id: str) -> None:
        """Drop the rows that no item refers to: no more insertions of this stream will come."""
        with self._lock:
            self._tables.end_stream(run_id)
            self._acknowledged.pop(run_id, None)
            self._stream_ended_at = time.monotonic()

    def _insert(self, insertion: Insertion, acknowledged: int) -> bool:
        run_id, sequence = insertion.run_id, insertion.sequence
        if not self._wait_for_turn_in_stream(run_id, sequence, acknowledged):
            return False
        if sequence == 0:
            self._begin_life(run_id)
        names = tuple(name for name, items in insertion.items.items() if len(items) and name in self._changed)

        def may_go() -> bool:
            return self._tables.next_sequence(run_id) > sequence or self._tables.can_insert(insertion)

        self._wait("insert", names, may_go, None, insertion)
        done = self._tables.insert(insertion)
        if (in_order := self._in_order.get(run_id)) is not None:
            in_order.notify_all()
        self._progressed(names)
        return done

    def _wait_for_turn_in_stream(self, run_id: str, sequence: int, acknowledged: int) -> bool:
        """Wait until the insertion before this one was done; returns False if this one was, too."""
        # A call that is repeated after a restart says what was acknowledged when it was made. What later calls of the
        # stream say shows whether the insertion before it still comes.
        if acknowledged > self._acknowledged.get(run_id, 0):
            self._acknowledged[run_id] = acknowledged
            if (waiting := self._in_order.get(run_id)) is not None:
                waiting.notify_all()

        def is_lost() -> bool:
            return self._tables.next_sequence(run_id) < min(self._acknowledged.get(run_id, 0), sequence)

        def has_come() -> bool:
            return self._tables.next_sequence(run_id) >= sequence

        if not (has_come() or is_lost()):
            in_order = self._in_order.setdefault(run_id, threading.Condition(self._lock))
            rw.wait_for(in_order, lambda: has_come() or is_lost())
        if is_lost():
            expected = self._tables.next_sequence(run_id)
            raise StreamLost(
                f"insertion {sequence} of stream {run_id} came, and replay has the insertions before {expected} only; "
                "it was lost and has an older state, or none: begin a new stream, with the rows that are still needed",
                run_id=run_id,
                expected=expected,
                sequence=sequence,
            )
        return self._tables.next_sequence(run_id) <= sequence

    def _begin_life(self, run_id: str) -> None:
        """End the stream of the life before, whose actor is gone, and what waits for an insertion of such a life."""
        group, separator, _ = run_id.partition("#")
        before = self._lives.get(group)
        if separator and before != run_id:
            self._lives[group] = run_id
            if before is not None:
                self._tables.end_stream(before)
                self._acknowledged.pop(before, None)
        for other, waiting in list(self._in_order.items()):
            if separator and other != run_id and other.partition(separator)[0] == group:
                self._acknowledged[other] = sys.maxsize  # the insertion before it was refused, and never comes
                waiting.notify_all()

    # Sampling

    @rw.method
    @rw.idempotent
    @rw.concurrent(128)
    def sample(self, table: str, batch_size: int, deadline_s: float | None = None, at_least: int = 1) -> Batch:
        """Sample up to `batch_size` items, waiting until the table's limiter allows at least some.

        Args:
            table: name of the table.
            batch_size: the most items.
            deadline_s: seconds to wait for the first; None waits for ever.
            at_least: wait for this number of items, if more can come: fewer are returned when inserting waits too, or
                when `deadline_s` has passed.

        Raises:
            DeadlineExceeded: the limiter allowed none within `deadline_s`.
            LimiterDeadlock: neither inserting nor sampling can go on; or all streams that inserted have ended.
        """
        return self._draw(table, batch_size, deadline_s, at_least, lambda num: self._tables.sample(table, num))

    @rw.method
    @rw.idempotent
    @rw.concurrent(128)
    def draw(
        self, table: str, batch_size: int, deadline_s: float | None = None, at_least: int = 1, pid: int = 0
    ) -> tuple[Batch | LentBatch, ReplayLife]:
        """As `sample`, and say which life of the server the batch is from.

        Args:
            table: name of the table.
            batch_size: the most items.
            deadline_s: seconds to wait for the first; None waits for ever.
            at_least: see `sample`.
            pid: process of the caller, if it can open lent memory.
        """

        def take(num: int) -> Batch | LentBatch:
            if not pid:
                return self._tables.sample(table, num)
            return self._lender.sample(self._tables, table, num, pid)

        return self._draw(table, batch_size, deadline_s, at_least, take), self._life

    def _draw(
        self, table: str, batch_size: int, deadline_s: float | None, at_least: int, take: Callable[[int], T]
    ) -> T:
        self._tables.can_sample(table, 1)  # raises if there is no such table

        def allowed() -> int:
            num = self._tables.can_sample(table, batch_size)
            # Where inserting waits too, waiting for more would be in vain.
            enough = num >= min(at_least, batch_size) or not self._lines.are_empty("insert", (table,))
            return num if enough else 0

        with self._lock:
            num = self._wait("sample", (table,), allowed, deadline_s)
            if not num and self._lines.are_empty("sample", (table,)):
                num = self._tables.can_sample(table, batch_size)  # fewer than `at_least`
            if not num:
                raise DeadlineExceeded(
                    f"table {table!r} allowed no sample within {deadline_s:g} s: {self._describe(table)}", call="sample"
                )
            batch = take(num)
            self._progressed((table,))
            return batch

    def end_sampling(self) -> None:
        """Raise `CallCancelled` in samplers that wait, and in those that would have to wait from now on.

        It is for a sampler in the server's own process, whose wait does not end when the process is asked to stop.
        """
        with self._lock:
            self._sampling_has_ended = True
            for wait in self._lines.all_of("sample"):
                wait.woken.notify_all()

    # Changing

    @rw.method
    @rw.idempotent
    @rw.concurrent(64)
    def update_priorities(self, table: str, keys: NDArray[np.int64], priorities: NDArray[np.float64]) -> int:
        """Change priorities; items that are gone are ignored. Returns the number of items that were changed."""
        with self._lock:
            return self._tables.update_priorities(table, keys, priorities)

    @rw.method
    @rw.idempotent
    @rw.concurrent(64)
    def delete(self, table: str, keys: NDArray[np.int64]) -> int:
        """Delete items; those that are gone are ignored. Returns the number of items that were deleted."""
        with self._lock:
            num = self._tables.delete(table, keys)
            self._progressed((table,))
            return num

    @rw.method
    @rw.idempotent
    @rw.concurrent(64)
    def reset(self, table: str) -> None:
        """Delete all items of a table and set its counts to 0."""
        with self._lock:
            self._tables.reset(table)
            self._progressed((table,))

    @rw.method
    @rw.idempotent
    @rw.concurrent(64)
    def set_limiter(self, table: str, limiter: Limiter) -> None:
        """Give a table another limiter from now on, by which waiting calls may be able to go."""
        with self._lock:
            self._tables.set_limiter(table, limiter)
            self._progressed((table,))

    # Asking

    @rw.method
    @rw.idempotent
    @rw.concurrent(64)
    def info(self) -> dict[str, TableInfo]:
        """Return facts about each table: sizes, counts, and what inserting or sampling waits for."""
        with self._lock:
            return self._tables.info()

    @rw.method
    @rw.idempotent
    @rw.concurrent(64)
    def tables(self) -> tuple[ReplayTable, ...]:
        """Return the settings of the tables, by whose signatures writers check what they send."""
        return self._tables.tables

    @rw.method
    @rw.idempotent
    @rw.concurrent(64)
    def life(self) -> ReplayLife:
        """Return which life of the server this is."""
        return self._life

    @rw.method
    @rw.idempotent
    @rw.concurrent(64)
    def waiting(self) -> dict[Side, int]:
        """Return how many calls wait at limiters, for each side."""
        with self._lock:
            return {"insert": len(self._lines.all_of("insert")), "sample": len(self._lines.all_of("sample"))}

    # State

    @rw.concurrent(1)
    def state_dict(self) -> rw.Frozen[dict[str, Any]]:
        """Return all items, rows and counts of this moment. Rows are read when the state is pickled.

        Calls wait only while the facts of the items are copied, and between two pieces of the rows.
        """
        with self._lock:
            if self._snapshot:  # its checkpoint was given up, or has been written
                self._snapshot.close()
            self._snapshot = self._tables.snapshot()
            tables = _TablesState(self._snapshot, self._lock)
            return rw.Frozen({"tables": tables, "lives": dict(self._lives), "life": self._life_number})

    @rw.concurrent(1)
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state, with the limiters and other settings of now."""
        tables = state["tables"]
        with self._lock:
            saved = tables.read() if isinstance(tables, _TablesState) else tables
            for difference in self._tables.load_state_dict(saved):
                logger.warning("%s: %s", self._life.server, difference)
            self._lives = dict(state["lives"])
            self._life_number = state.get("life", 0) + 1 + self._generation
            self._tables.begin_life(self._life_number)
            sizes = {name: info.size for name, info in self._tables.info().items()}
            self._life = dataclasses.replace(self._life, restored=True, sizes=sizes)

    # Waiting

    def _wait(
        self,
        side: Side,
        tables: tuple[str, ...],
        ready: Callable[[], Any],
        timeout_s: float | None,
        insertion: Insertion | None = None,
    ) -> Any:
        """Wait until all calls that came earlier have gone and `ready()` is true; returns its result.

        The result is false after `timeout_s`.
        """
        if (value := ready()) and self._lines.are_empty(side, tables):
            return value
        now = time.monotonic()
        wait = LimiterWait(side, tables, now, threading.Condition(self._lock), ready, insertion)
        due = None if timeout_s is None else now + timeout_s

        def may_go() -> Any:
            if wait.error:
                raise wait.error
            if side == "sample" and self._sampling_has_ended:
                raise CallCancelled("no batch will come any more, as sampling was ended", reason="sampling was ended")
            return self._lines.is_first(wait) and ready()

        self._lines.join(wait)
        try:
            self._wake()  # the other side may be content with less, now that this one waits
            while True:
                left = self._deadlock_s if due is None else min(self._deadlock_s, due - time.monotonic())
                value = rw.wait_for(wait.woken, may_go, max(0.0, left))
                if value or (due is not None and time.monotonic() >= due):
                    return value
                self._check_deadlock()
        finally:
            self._lines.leave(wait)
            self._wake()

    def _progressed(self, tables: Sequence[str]) -> None:
        now = time.monotonic()
        for table in tables:
            self._changed[table] = now
        self._wake()

    def _wake(self) -> None:
        for wait in self._lines.firsts():
            if wait.ready():  # else a learner that waits for a batch would be woken by each of its blocks
                wait.woken.notify()

    def _check_deadlock(self) -> None:
        """End all waits that cannot end otherwise, when nothing has changed for `deadlock_s`."""
        inserting, sampling = self._lines.all_of("insert"), self._lines.all_of("sample")
        if sampling and not inserting:
            self._check_inserters(sampling)
        if not inserting or not sampling:
            return
        begun = max(min(wait.since for wait in side) for side in (inserting, sampling))
        waited_s = time.monotonic() - max(begun, *self._changed.values())
        insertions = [wait.insertion for wait in inserting if wait.insertion]
        why = self._tables.deadlock(insertions, {wait.tables[0]: 1 for wait in sampling})
        if not why or waited_s < self._deadlock_s * (1 if self._is_never_sampled(insertions) else _LEARNING):
            return
        for wait in (*inserting, *sampling):
            wait.error = LimiterDeadlock(f"for {waited_s:.1f} s, {why}", waited_s=waited_s)
            wait.woken.notify_all()

    def _check_inserters(self, sampling: Sequence[LimiterWait]) -> None:
        """End the waits of samplers if all streams have ended, so that nothing will be inserted."""
        num_ended = self._tables.num_ended_streams
        begun = max(min(wait.since for wait in sampling), self._stream_ended_at, *self._changed.values())
        waited_s = time.monotonic() - begun
        if not num_ended or waited_s < self._deadlock_s:
            return
        for wait in sampling:
            table = wait.tables[0]
            wait.error = LimiterDeadlock(
                f"a sampler of table {table!r} has waited for {waited_s:.1f} s, and all streams that inserted have "
                f"ended ({num_ended}), so that no item will come: {self._describe(table)}. Stop sampling when the "
                "inserters have ended, or let another stream begin earlier",
                table=table,
                waited_s=waited_s,
            )
            wait.woken.notify_all()

    def _is_never_sampled(self, insertions: Sequence[Insertion]) -> bool:
        """Whether insertions wait for samples of a table that nobody has ever sampled."""
        infos = self._tables.info()
        names = {name for insertion in insertions for name in insertion.items}
        return any(infos[name].insert_waits_for and not infos[name].samples for name in names)

    def _describe(self, table: str) -> str:
        info = self._tables.info()[table]
        waits = [text for text in (info.insert_waits_for, info.sample_waits_for) if text]
        return (
            f"it has {info.size} items after {info.inserts} insertions, {info.samples} samples and {info.deletes} "
            f"deletions; {'; '.join(waits) or 'its limiter allows both by now'}"
        )


@dataclass(frozen=True, slots=True)
class _TablesState:
    """The state of tables, whose rows are read when this is pickled; it is unpickled as a dictionary."""

    snapshot: ReplaySnapshot
    lock: threading.RLock

    def read(self) -> dict[str, Array]:
        """Return the state, and let the rows go."""
        state = self.snapshot.state_dict()
        for name, num in self.snapshot.num_rows.items():
            state[f"rows/{name}"] = self._rows(name, num)
        with self.lock:
            self.snapshot.close()
        return state

    def _rows(self, name: str, num: int) -> Array:
        with self.lock:
            first = self.snapshot.rows(name, 0, min(num, 1))
        rows = np.empty((num, *first.shape[1:]), first.dtype)
        step = max(1, _PIECE_BYTES // max(1, first.nbytes))
        for start in range(0, num, step):
            with self.lock:
                piece = self.snapshot.rows(name, start, min(start + step, num))
            # Without the lock: whoever waits for it gets it meanwhile, as numpy copies without Python's own lock.
            rows[start : start + step] = piece
        return rows

    def __reduce__(self) -> Any:
        return dict, (self.read(),)


def _server_name() -> str:
    try:
        return rw.current_node().label
    except RuntimeError:  # it is not part of a program, and has one life
        return f"replay {uuid.uuid4().hex[:8]}"


def _generation() -> int:
    try:
        return rw.current_node().generation
    except RuntimeError:
        return 0


class Replay(rw.Service[ReplayServer]):
    """A node that serves replay tables: `replay = program.add(rl.Replay([table, ...]), restart="on_failure")`.

    With a restart policy it is restored from its last checkpoint after a death. Callers wait meanwhile, and actors
    begin new streams.

    Args:
        tables: settings of the tables.
        deadlock_s: seconds after which it is an error that inserters and samplers wait for each other, as when an
            insertion is for two tables of which one is never sampled; six times as long if it was sampled before. Also
            seconds for which samplers wait after all streams that inserted have ended.
    """

    def __init__(self, tables: Sequence[ReplayTable], *, deadlock_s: float = 10.0) -> None:
        super().__init__(ReplayServer, tuple(tables), deadlock_s)

    @property
    def label(self) -> str:
        return "replay"


__all__ = ["Replay", "ReplayServer"]
