"""Checks of insertions: against the signature of a table, at the writer too, and against the items that are there."""

from __future__ import annotations

import numpy as np

from ropewalk.rl.replay.insertion import Insertion, NewItems
from ropewalk.rl.replay.table import ReplayTable


def check_signature(table: ReplayTable, insertion: Insertion) -> None:
    """Check the items for a table against its signature; where rows are made, so that nothing wrong travels.

    A column of which the insertion has no new rows is not checked: it was checked with its rows.

    Raises:
        ValueError: columns, shapes or dtypes differ from the signature.
    """
    items = insertion.items.get(table.name)
    if items is None or table.signature is None:
        return
    if items.columns.keys() != table.signature.keys():
        raise ValueError(
            f"items for table {table.name!r} have columns {sorted(items.columns)}; its signature has "
            f"{sorted(table.signature)}"
        )
    for name, spec in table.signature.items():
        rows = insertion.rows.get(items.columns[name].column)
        if rows is not None and (rows.shape[1:], rows.dtype) != (spec.shape, np.dtype(spec.dtype)):
            raise ValueError(
                f"rows of column {name!r} for table {table.name!r} have shape {rows.shape[1:]} and dtype {rows.dtype}; "
                f"its signature says {spec.shape} and {spec.dtype}"
            )


def check_items(table: ReplayTable, items: NewItems) -> None:
    """Check that new items are complete.

    Raises:
        ValueError: columns have different numbers of items, or priorities are negative or not finite.
    """
    lengths = {name: len(rows.rows) for name, rows in items.columns.items()}
    if len(set(lengths.values())) != 1:
        raise ValueError(f"items for table {table.name!r} have columns of different lengths: {lengths}")
    if len(items) > table.max_size:
        raise ValueError(
            f"an insertion has {len(items)} items for table {table.name!r}, which keeps max_size={table.max_size}: "
            "some would be removed before they could be sampled; insert fewer items at once, or use a larger table"
        )
    for name, rows in items.columns.items():
        if rows.rows.ndim not in (1, 2) or rows.rows.dtype.kind not in "iu":
            raise ValueError(
                f"items for table {table.name!r} name rows of column {name!r} in an array of shape {rows.rows.shape} "
                f"and dtype {rows.rows.dtype}; it has to be integers, of shape (items,) or (items, L)"
            )
    if items.priorities is not None:
        if items.priorities.shape != (len(items),):
            raise ValueError(
                f"priorities for table {table.name!r} have shape {items.priorities.shape}; there are {len(items)} items"
            )
        check_priorities(table.name, items.priorities)


def check_priorities(table: str, priorities: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> None:
    """Check that priorities are not negative, and finite.

    Raises:
        ValueError: some are not; says which.
    """
    wrong = np.flatnonzero(~((priorities >= 0) & (priorities < np.inf)))
    if len(wrong):
        raise ValueError(
            f"priorities for table {table!r} must be finite and not negative; entry {wrong[0]} is "
            f"{priorities[wrong[0]]}, and {len(wrong)} of {len(priorities)} are wrong"
        )


__all__ = ["check_items", "check_priorities", "check_signature"]
