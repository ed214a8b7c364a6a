"""Replay as plain lists, which the tests compare with the real one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from ropewalk.rl.replay.insertion import Insertion
from ropewalk.rl.replay.selectors import Fifo, Lifo, MaxHeap, MinHeap, Selector
from ropewalk.rl.replay.table import ReplayTable


@dataclass
class PlainItem:
    """An item; `rows` has (stream, column, row number) by column of the samples, None for no row."""

    number: int
    priority: float
    changed: int
    run_id: str
    version: int
    rows: dict[str, list[tuple[str, str, int] | None]]
    single: dict[str, bool]
    times_sampled: int = 0

    def row_names(self) -> set[tuple[str, str, int]]:
        return {row for rows in self.rows.values() for row in rows if row is not None}


RANKS: dict[type[Selector], Callable[[PlainItem], tuple[float, ...]]] = {
    Fifo: lambda item: (item.number,),
    Lifo: lambda item: (-item.number,),
    MinHeap: lambda item: (item.priority, item.changed),
    MaxHeap: lambda item: (-item.priority, item.changed),
}


@dataclass
class PlainTable:
    """Items in a list, removed one by one."""

    settings: ReplayTable
    row_bytes: dict[str, int]
    items: list[PlainItem] = field(default_factory=list)
    number: int = 0
    """Of the next item."""
    inserts: int = 0
    samples: int = 0
    deletes: int = 0
    largest: float = 0.0
    clock: int = 0

    def num_bytes(self) -> int:
        names = set().union(*(item.row_names() for item in self.items))
        return sum(self.row_bytes[column] for _, column, _ in names)

    def tick(self) -> int:
        self.clock += 1
        return self.clock

    def insert(self, insertion: Insertion) -> None:
        new = insertion.items[self.settings.name]
        priorities = [self.largest or 1.0] * len(new) if new.priorities is None else new.priorities.tolist()
        for i, priority in enumerate(priorities):
            rows = {name: np.atleast_1d(of.rows[i]).tolist() for name, of in new.columns.items()}
            named = {
                name: [None if row < 0 else (insertion.run_id, new.columns[name].column, row) for row in some]
                for name, some in rows.items()
            }
            single = {name: of.rows.ndim == 1 for name, of in new.columns.items()}
            item = PlainItem(self.number, priority, self.tick(), insertion.run_id, insertion.version, named, single)
            self.items.append(item)
            self.inserts, self.number = self.inserts + 1, self.number + 1
        self.largest = max([self.largest, *priorities])

    def surplus(self) -> bool:
        limit = self.settings.max_bytes
        return len(self.items) > self.settings.max_size or (
            limit is not None and self.num_bytes() > limit and len(self.items) > 1
        )

    def remove(self, item: PlainItem) -> None:
        self.items.remove(item)
        self.deletes += 1

    def update(self, item: PlainItem, priority: float) -> None:
        item.priority, item.changed = priority, self.tick()

    def best(self, selector: Selector) -> PlainItem:
        return min(self.items, key=RANKS[type(selector)])


@dataclass
class PlainStream:
    """All rows ever sent, by column, and the first one that is kept."""

    rows: dict[str, list[np.ndarray]] = field(default_factory=dict)
    kept: dict[str, int] = field(default_factory=dict)
    sequence: int = 0

    def end(self, column: str) -> int:
        return len(self.rows.get(column, []))
