"""`SentStream`: what a stream has sent and may still need, so that it can start over when replay was lost. Pure.

    stream 2#0     insertion 0 .. 6 acknowledged, 7 and 8 under way; replay is lost, and comes back with 0 .. 3
    stream 2#0~1   insertion 0 = the rows that 7 and 8 still need of 0 .. 6, and 7;  insertion 1 = 8;  then 9, ...

Items of 4 .. 6 are lost with replay; nothing is sent twice to the same stream.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Mapping

import numpy as np

from ropewalk.rl.environments.spec import Array
from ropewalk.rl.replay.insertion import Insertion, NewItems, RowsOf


class SentStream:
    """The insertions of one run id, as their maker numbers them, and the stream that they are sent in.

    Args:
        run_id: run id of the insertions.
    """

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.name = run_id
        """Run id of the present stream."""
        self.waiting: deque[Insertion] = deque()
        """Insertions that are not acknowledged, as they were made."""
        self._num_restarts = 0
        self._first_sequence: int | None = None
        """Of the present stream, in the numbers of the maker."""
        self._base: dict[str, int] = {}
        """For each column, the row with which the present stream begins, in the numbers of the maker."""
        self._resent: dict[str, Array] = {}
        """Rows that the stream's first insertion needs of earlier ones."""
        self._kept: dict[str, deque[tuple[int, Array]]] = {}
        """Rows of acknowledged insertions that later ones may name, with the number of each part's first row."""
        self._ends: dict[str, int] = {}
        """For each column the number of rows in acknowledged insertions."""

    def add(self, insertion: Insertion) -> Insertion:
        """Note an insertion, and return it as it is to be sent."""
        if self._first_sequence is None:
            self._first_sequence = insertion.sequence
        self.waiting.append(insertion)
        return self.as_sent(insertion)

    def acknowledge(self, num: int) -> None:
        """The first `num` of the waiting insertions were done."""
        for _ in range(num):
            insertion = self.waiting.popleft()
            for name, rows in insertion.rows.items():
                start = self._ends.get(name, 0)
                self._kept.setdefault(name, deque()).append((start, rows))
                self._ends[name] = start + len(rows)
            for name, parts in self._kept.items():
                first = insertion.keep.get(name, self._ends[name])
                while parts and parts[0][0] + len(parts[0][1]) <= first:
                    parts.popleft()
                if parts and parts[0][0] < first:
                    start, rows = parts.popleft()
                    parts.appendleft((first, rows[first - start :]))

    @property
    def acknowledged(self) -> int:
        """Number, in the present stream, of the first insertion that is not acknowledged."""
        return (self.waiting[0].sequence if self.waiting else 0) - (self._first_sequence or 0)

    def begin_anew(self) -> list[Insertion]:
        """Begin another stream, and return the waiting insertions as they are to be sent in it."""
        self._num_restarts += 1
        self.name = f"{self.run_id}~{self._num_restarts}"
        self._first_sequence = self.waiting[0].sequence if self.waiting else None
        self._resent = {
            name: np.concatenate([rows for _, rows in parts]) for name, parts in self._kept.items() if parts
        }
        self._base = {name: end - len(self._resent.get(name, ())) for name, end in self._ends.items()}
        return [self.as_sent(insertion) for insertion in self.waiting]

    def as_sent(self, insertion: Insertion) -> Insertion:
        """Return an insertion with the numbers of the present stream."""
        if not self._num_restarts:
            return insertion
        sequence = insertion.sequence - (self._first_sequence or 0)
        rows = self._with_resent(insertion.rows) if sequence == 0 else insertion.rows
        items = {table: self._renumbered(new) for table, new in insertion.items.items()}
        keep = {name: row - self._base.get(name, 0) for name, row in insertion.keep.items()}
        return dataclasses.replace(insertion, run_id=self.name, sequence=sequence, rows=rows, items=items, keep=keep)

    def _with_resent(self, rows: Mapping[str, Array]) -> dict[str, Array]:
        joined = dict(rows)
        for name, resent in self._resent.items():
            joined[name] = np.concatenate([resent, rows[name]]) if name in rows else resent
        return joined

    def _renumbered(self, new: NewItems) -> NewItems:
        columns = {
            name: RowsOf(rows.column, np.where(rows.rows < 0, rows.rows, rows.rows - self._base.get(rows.column, 0)))
            for name, rows in new.columns.items()
        }
        return NewItems(columns, new.priorities)


__all__ = ["SentStream"]
