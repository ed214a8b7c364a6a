"""`ReplayTables`: all tables of a replay server over one store of rows. Pure: no thread, no clock, no waiting.

insert(insertion)           rows go to the store, items to their tables, all of it or nothing
sample(table, batch_size)   one selector's draw, one gather per column
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ropewalk.near_names import instead_of
from ropewalk.rl.environments.spec import Array
from ropewalk.rl.replay.batch import Batch
from ropewalk.rl.replay.checking import check_items, check_priorities, check_signature
from ropewalk.rl.replay.insertion import Insertion, NewItems, separated
from ropewalk.rl.replay.item_columns import Allocate
from ropewalk.rl.replay.items import FoundItems, ItemTable, part_of
from ropewalk.rl.replay.limiters.deadlock import LimitedTable, explain_deadlock
from ropewalk.rl.replay.limiters.limiter import Limiter, RateLimiter, TableCounts
from ropewalk.rl.replay.limiters.waiting import why_insert_waits, why_sample_waits
from ropewalk.rl.replay.row_store import RowStore
from ropewalk.rl.replay.slab import Slots
from ropewalk.rl.replay.snapshot import ReplaySnapshot
from ropewalk.rl.replay.streams import RowStream, RowWindow, Streams, check_rows, first_kept
from ropewalk.rl.replay.table import ReplayTable
from ropewalk.rl.replay.table_info import TableInfo


class ReplayTables:
    """Tables by name. Not thread-safe.

    Args:
        tables: their settings; at least one.
    """

    def __init__(self, tables: Sequence[ReplayTable]) -> None:
        names = [table.name for table in tables]
        if len(set(names)) != len(names) or not names:
            raise ValueError(f"replay needs tables of different names, and got {names}")
        self._store = RowStore()
        self._streams = Streams()
        self._tables = {table.name: ItemTable(table, self._store) for table in tables}
        self._life = 0

    def __repr__(self) -> str:
        return f"<ReplayTables {', '.join(self._tables)}>"

    @property
    def tables(self) -> tuple[ReplayTable, ...]:
        """Settings of the tables, as they were given."""
        return tuple(table.settings for table in self._tables.values())

    def can_insert(self, insertion: Insertion) -> bool:
        """Return whether all limiters let the insertion in now; True as well if it was done before.

        A limiter that lets one item in, and nothing be sampled, lets in all of the insertion: waiting for room for all
        of its items would last for ever.
        """
        stream = self._streams.open.get(insertion.run_id)
        if stream is not None and insertion.sequence < stream.sequence:
            return True
        for name, items in insertion.items.items():
            table = self._table(name)
            if not table.formula.admits(table.counts, len(items)):
                return False
        return True

    def can_sample(self, table: str, num_items: int) -> int:
        """Return how many of `num_items` items may be sampled now."""
        return self._table(table).num_samples(num_items)

    def insert(self, insertion: Insertion) -> bool:
        """Add rows and items: all of them, or none if an error is raised. Limiters are not asked: see `can_insert`.

        Returns:
            False: this insertion was done before, and nothing changed.

        Raises:
            ValueError: earlier insertions of the stream are missing, rows or items do not fit the tables, or rows are
                named that are not there.
            MemoryError: there is no memory for the rows.
        """
        if not self._streams.is_new(insertion.run_id, insertion.sequence):
            return False
        if any(self._table(name).has_other_columns for name in insertion.items):
            insertion = separated(insertion)
        self._check(insertion)
        self._store.reserve(insertion.rows)
        for name, items in insertion.items.items():
            self._tables[name].reserve(len(items))
        known = self._add_rows(insertion)
        for name, items in insertion.items.items():
            if len(items):
                self._tables[name].add(self._found(insertion, items, known))
        self._move_windows(insertion, known)
        return True

    def sample(self, table: str, batch_size: int, allocate: Allocate = np.empty) -> Batch:
        """Sample items.

        Args:
            table: name of the table.
            batch_size: number of items.
            allocate: makes the arrays of the batch.

        Raises:
            ValueError: not as many may be sampled now (see `can_sample`).
        """
        of = self._table(table)
        if batch_size < 1:
            raise ValueError(f"a batch of {batch_size} items of table {table!r} was asked for; it must have at least 1")
        num = of.num_samples(batch_size)
        if num < batch_size:
            why = why_sample_waits(of.formula, of.counts, batch_size) or "its items leave it when they are sampled"
            raise ValueError(f"{num} of {batch_size} items of table {table!r} may be sampled now: {why}")
        return of.sample(batch_size, allocate)

    def update_priorities(self, table: str, keys: ArrayLike, priorities: ArrayLike) -> int:
        """Change priorities of items; those that are not there any more are ignored.

        Args:
            table: name of the table.
            keys: keys of items, shape (B,); where one is repeated, its last priority counts.
            priorities: finite and not negative, shape (B,).

        Returns:
            The number of items that were changed.

        Raises:
            ValueError: a priority is negative or not finite; nothing was changed.
        """
        numbers, values = np.asarray(keys, np.int64), np.asarray(priorities, np.float64)
        if numbers.ndim != 1 or numbers.shape != values.shape:
            raise ValueError(
                f"keys have shape {numbers.shape} and priorities {values.shape}; they need one axis of the same length"
            )
        check_priorities(table, values)
        return self._table(table).update_priorities(numbers, values)

    def delete(self, table: str, keys: ArrayLike) -> int:
        """Delete items; returns how many of them were there."""
        return self._table(table).delete(np.asarray(keys, np.int64))

    def keys(self, table: str) -> NDArray[np.int64]:
        """Return the keys of all items of a table, in the order in which they were inserted."""
        return self._table(table).keys()

    def reset(self, table: str) -> None:
        """Delete all items of a table, and set its counts to 0. Streams go on."""
        self._table(table).reset()

    def end_stream(self, run_id: str) -> None:
        """Free the rows that are kept for later insertions of a stream, which is over. Its items stay."""
        stream = self._streams.open.pop(run_id, None)
        if stream is None:
            return
        self._streams.ended[run_id] = stream.sequence
        for name, window in stream.windows.items():
            self._store.columns[name].release(window.slots)

    @property
    def num_ended_streams(self) -> int:
        """Number of streams, if all of them have ended; 0 if one may go on, or if there was none yet."""
        return 0 if self._streams.open else len(self._streams.ended)

    def next_sequence(self, run_id: str) -> int:
        """Return the number of the insertion that is the next one of a stream; 0 if it has none yet."""
        stream = self._streams.open.get(run_id)
        return stream.sequence if stream else self._streams.ended.get(run_id, 0)

    def set_limiter(self, table: str, limiter: Limiter) -> None:
        """Replace the limiter of a table; its counts go on.

        Raises:
            ValueError: the limiter does not suit the table.
        """
        of = self._table(table)
        of.settings.check_limiter(limiter)
        of.limiter, of.formula = limiter, limiter.formula()

    def begin_life(self, life: int) -> None:
        """Give new items from now on keys that items of other lives, which may be lost, have never had.

        Args:
            life: number of this life of the tables, whatever state it begins with.
        """
        self._life = life
        for table in self._tables.values():
            table.begin_life(life)

    def info(self) -> dict[str, TableInfo]:
        """Return facts about each table."""
        return {name: _info(table) for name, table in self._tables.items()}

    def snapshot(self) -> ReplaySnapshot:
        """Return everything as it is now, with rows that are read later, while replay goes on."""
        items = {name: table.frozen() for name, table in self._tables.items()}
        return ReplaySnapshot(self._store, self._streams, items, self._counts_and_limiters())

    def state_dict(self) -> dict[str, Array]:
        """Return everything that decides what comes next, as copies."""
        with self.snapshot() as snapshot:
            rows = {f"rows/{name}": snapshot.rows(name, 0, num) for name, num in snapshot.num_rows.items()}
            return snapshot.state_dict() | rows

    def load_state_dict(self, state: Mapping[str, Array]) -> tuple[str, ...]:
        """Replace everything by what was saved; limiters and all other settings stay as they are now.

        Returns:
            What is not as it was when the state was saved, one sentence each.
        """
        loaded = ReplayTables(self.tables)
        for name, table in self._tables.items():
            loaded.set_limiter(name, table.limiter)
        said = loaded._load_items(state)
        loaded.begin_life(self._life)
        self._store, self._streams, self._tables = loaded._store, loaded._streams, loaded._tables
        return tuple(said)

    def deadlock(self, inserting: Sequence[Insertion], sampling: Mapping[str, int]) -> str:
        """Say why nothing that waits can ever go on; empty: something may. See `explain_deadlock`.

        Args:
            inserting: the insertions that wait.
            sampling: by table, the smallest number of items that a waiting sampler needs at once.
        """
        tables = {name: LimitedTable(table.formula, table.counts) for name, table in self._tables.items()}
        return explain_deadlock(
            tables, [{name: len(of) for name, of in each.items.items()} for each in inserting], sampling
        )

    def _table(self, name: str) -> ItemTable:
        if name in self._tables:
            return self._tables[name]
        raise ValueError(f"there is no table {name!r}{instead_of(name, sorted(self._tables))}")

    def _counts_and_limiters(self) -> dict[str, Array]:
        state: dict[str, Array] = {}
        for name, table in self._tables.items():
            limiter, counts = table.formula, table.counts
            numbers = limiter.samples_per_insert, limiter.min_size, limiter.min_diff, limiter.max_diff
            state[f"tables/{name}/limiter"] = np.array(numbers, np.float64)
            state[f"tables/{name}/counts"] = np.array([counts.inserts, counts.deletes, counts.samples])
        return state

    def _load_items(self, state: Mapping[str, Array]) -> list[str]:
        rows = part_of(state, "rows/")
        self._store.reserve(rows)
        slots = {name: self._store.columns[name].add(array) for name, array in rows.items()}
        self._streams.load_state_dict(part_of(state, "streams/"), rows)
        for stream in self._streams.open.values():
            for name, window in stream.windows.items():
                self._store.columns[name].hold(window.slots)
        said: list[str] = []
        saved = {name.split("/")[1] for name in state if name.startswith("tables/")}
        for name in sorted(saved - self._tables.keys()):
            said.append(f"table {name!r} was saved and is not there any more: its items are left out")
        for name, table in self._tables.items():
            if name not in saved:
                said.append(f"table {name!r} was not saved: it starts empty")
                continue
            of = part_of(state, f"tables/{name}/")
            inserts, deletes, samples = of["counts"].tolist()
            ratio, min_size, *bounds = of["limiter"].tolist()
            before = RateLimiter(ratio, int(min_size), *bounds)
            if before != table.formula:
                said.append(f"table {name!r} was saved with {before} and goes on with {table.formula}")
            table.load_state_dict(of, TableCounts(inserts, deletes, samples))
        for name, numbers in slots.items():
            self._store.columns[name].release(numbers)
        return said

    def _check(self, insertion: Insertion) -> None:
        self._store.check(insertion.rows)
        checked: set[tuple[int, int, int]] = set()
        for name, items in insertion.items.items():
            table = self._table(name)
            check_items(table.settings, items)
            check_signature(table.settings, insertion)
            table.check_columns(items)
            for rows in items.columns.values():
                window = self._streams.window(insertion.run_id, rows.column)
                end = window.end + len(insertion.rows.get(rows.column, ()))
                # Columns often share one array of row numbers.
                if (seen := (id(rows.rows), window.start, end)) not in checked:
                    check_rows(insertion, name, rows, window.start, end)
                    checked.add(seen)

    def _add_rows(self, insertion: Insertion) -> dict[str, RowWindow]:
        """Store new rows, held by the stream; return all rows of the stream that may be named now, by column."""
        stream = self._streams.open.get(insertion.run_id)
        known = dict(stream.windows) if stream else {}
        for name, rows in insertion.rows.items():
            window = known.get(name) or RowWindow()
            slots = self._store.columns[name].add(rows)
            known[name] = RowWindow(window.start, np.concatenate((window.slots, slots)) if len(window.slots) else slots)
        return known

    def _found(self, insertion: Insertion, items: NewItems, known: dict[str, RowWindow]) -> FoundItems:
        slots: dict[str, tuple[str, Slots]] = {}
        for name, rows in items.columns.items():
            window = known[rows.column]
            if rows.rows.ndim == 1:
                slots[name] = rows.column, window.slots[rows.rows - window.start]
                continue
            # -1, no row, becomes -1, no slot.
            offsets = np.where(rows.rows < 0, len(window.slots), rows.rows - window.start)
            slots[name] = rows.column, np.append(window.slots, -1)[offsets]
        priorities = None if items.priorities is None else np.asarray(items.priorities, np.float64)
        return FoundItems(slots, priorities, insertion.run_id, insertion.version, len(items))

    def _move_windows(self, insertion: Insertion, known: dict[str, RowWindow]) -> None:
        stream = self._streams.open.setdefault(insertion.run_id, RowStream())
        for name, window in known.items():
            column = self._store.columns[name]
            start = first_kept(insertion.keep, name, window)
            num_dropped = start - window.start
            if num_dropped:
                column.release(window.slots[:num_dropped])
            stream.windows[name] = RowWindow(start, window.slots[num_dropped:])
        stream.sequence = insertion.sequence + 1


def _info(table: ItemTable) -> TableInfo:
    counts = table.counts
    return TableInfo(
        table.settings.name,
        counts.size,
        table.settings.max_size,
        table.num_bytes,
        counts.inserts,
        counts.samples,
        counts.deletes,
        why_insert_waits(table.formula, counts),
        why_sample_waits(table.formula, counts),
    )


__all__ = ["ReplayTables"]
