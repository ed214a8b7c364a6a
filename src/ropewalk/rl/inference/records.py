"""Columns as one array of records, one for each row: what travels between actors and inference servers.

An array costs several microseconds at both ends of a call, an array of records no more than one of numbers:

    rows [N, 10], observation [N, ...], first [N] ─▶ `as_records` ─▶ one array [N] ─ sent, joined ─▶ `columns_of`

Records are numpy's structured arrays; their dtype says which columns they have.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from ropewalk.rl.environments.spec import Array

Records: TypeAlias = Array
"""A structured array, shape (rows,)."""


def as_records(columns: Mapping[str, Sequence[Array]]) -> Records:
    """Return columns as records.

    Args:
        columns: for each column its pieces, which are joined: shape (rows, ...) each, with the dtype of the first one.
    """
    layout = tuple((name, pieces[0].dtype, pieces[0].shape[1:]) for name, pieces in columns.items())
    made: Any = np.zeros(sum(map(len, next(iter(columns.values())))), _dtype_of(layout))
    for name, pieces in columns.items():
        if len(pieces) == 1:
            made[name] = pieces[0]
        else:
            np.concatenate(pieces, out=made[name])
    return made


def columns_of(rows: Records) -> dict[str, Array]:
    """Return the columns of records, as arrays of their own."""
    fields: Any = rows  # numpy's types know no names of fields
    return {name: np.ascontiguousarray(fields[name]) for name in rows.dtype.names or ()}


@functools.lru_cache(64)
def _dtype_of(layout: tuple[tuple[str, np.dtype[Any], tuple[int, ...]], ...]) -> np.dtype[Any]:
    return np.dtype(list(layout), align=True)


__all__ = ["Records", "as_records", "columns_of"]
