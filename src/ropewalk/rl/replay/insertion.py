"""`Insertion`: rows and items that a stream adds to replay, in one message.

A stream's *rows* are numbered from 0 in each of its columns. A row is stored once. *Items* of tables name rows: an item
of a table of transitions names row 7 of "observation" as its observation and row 10 as its next observation. Rows are
freed when no item refers to them and their stream does not need them any more.

    insertion 0:  rows 0..79 of "observation", items that name rows 0..77
    insertion 1:  rows 80..159, items that name rows 78..157: that is why insertion 0 says `keep = {"observation": 78}`
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ropewalk.rl.environments.spec import Array
from ropewalk.rl.replay.bundles import packed, received_bundle, sent_bundle, unbundled, unpacked


@dataclass(frozen=True, slots=True)
class RowsOf:
    """Which rows of a stored column each of some items has.

    Attributes:
        column: name of the stored column.
        rows: row numbers within the stream, int64: shape (items,), or (items, L) where an item has L rows of it. In the
            latter case -1 stands for no row: a shorter item is filled with -1 at its end, which is zeros in a batch.
    """

    column: str
    rows: NDArray[np.int64]

    def __reduce__(self) -> Any:
        return RowsOf, (self.column, self.rows)  # dataclasses with slots are pickled by Python code, field by field


@dataclass(frozen=True, slots=True)
class NewItems:
    """Items for one table.

    Attributes:
        columns: for each column of the table's samples, the rows of each item.
        priorities: float64, shape (items,); None: the largest priority the table has had so far, or 1.
    """

    columns: Mapping[str, RowsOf]
    priorities: NDArray[np.float64] | None = None

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())).rows)

    def __reduce__(self) -> Any:
        return NewItems, (self.columns, self.priorities)


@dataclass(frozen=True, slots=True)
class Insertion:
    """What a stream adds at once: all of it or nothing.

    Attributes:
        run_id: the stream: which life of which actor.
        sequence: number of this insertion within its stream, from 0; one that was done already is not done again.
        rows: new rows of each column, shape (rows, ...), numbered on from those of the last insertion.
        items: new items by table.
        keep: for each column, the first row that later insertions of the stream may name; a column that is missing
            keeps none.
        version: version of the weights that chose the actions.
        steps: environment steps in it, for the counters.
    """

    run_id: str
    sequence: int
    rows: Mapping[str, Array]
    items: Mapping[str, NewItems]
    keep: Mapping[str, int] = field(default_factory=dict[str, int])
    version: int = 0
    steps: int = 0

    def __reduce_ex__(self, protocol: Any) -> Any:
        if protocol >= 5 and (alone := self._bundle_alone()) is not None:
            return _insertion_of_bundle, alone
        rows = {name: packed(array) for name, array in self.rows.items()}
        return _insertion, (self.run_id, self.sequence, rows, self.items, self.keep, self.version, self.steps)

    def _bundle_alone(self) -> tuple[Any, ...] | None:
        """Return the arguments of `_insertion_of_bundle`, if it is one bundle and one item that has it.

        That is what a block of an on-policy agent is. As plain values it takes a fraction of the time of six objects.
        """
        if len(self.rows) != 1 or len(self.items) != 1 or self.keep:
            return None
        ((column, row),), ((table, items),) = self.rows.items(), self.items.items()
        named = items.columns.get(column)
        if row.dtype.names is None or len(row) != 1 or len(items.columns) != 1 or named is None:
            return None
        if named.column != column or named.rows.shape != (1,) or items.priorities is not None:
            return None
        number = int(named.rows[0])
        return self.run_id, self.sequence, self.version, self.steps, table, column, number, *sent_bundle(row)


def _insertion_of_bundle(
    run_id: str, sequence: int, version: int, steps: int, table: str, column: str, number: int, text: str, data: Any
) -> Insertion:
    items = NewItems({column: RowsOf(column, np.array([number], np.int64))})
    return Insertion(
        run_id, sequence, {column: received_bundle(text, data)}, {table: items}, version=version, steps=steps
    )


def _insertion(run_id: str, sequence: int, rows: Mapping[str, Any], *others: Any) -> Insertion:
    return Insertion(run_id, sequence, {name: unpacked(each) for name, each in rows.items()}, *others)


def separated(insertion: Insertion) -> Insertion:
    """Return an insertion whose bundles are columns of their own, as tables from older checkpoints have them."""
    fields = {name: array.dtype.names for name, array in insertion.rows.items() if array.dtype.names is not None}
    if not fields:
        return insertion

    def apart(items: NewItems) -> NewItems:
        columns: dict[str, RowsOf] = {}
        for name, rows in items.columns.items():
            each = {field: RowsOf(field, rows.rows) for field in fields.get(rows.column, ())}
            columns |= each or {name: rows}
        return NewItems(columns, items.priorities)

    return dataclasses.replace(
        insertion,
        rows=unbundled(insertion.rows),
        items={table: apart(items) for table, items in insertion.items.items()},
    )


__all__ = ["Insertion", "NewItems", "RowsOf", "separated"]
