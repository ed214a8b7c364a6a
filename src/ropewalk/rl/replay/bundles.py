"""Bundles: several columns of replay as the fields of one, for items that share no rows with others.

A column costs the same in each insertion and in each sample, however few bytes its rows have. A block of CartPole has
eight columns of 160 to 2,688 bytes; as a bundle it is one row of one column:

    observation [21, 8, 4], reward [20, 8], ... ─▶ `bundled` ─▶ one row ─ stored ─▶ `unbundled`: a view for each field

The dtype of a bundle is a structured one of numpy, whose fields are the columns.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pickle import PickleBuffer
from typing import Any

import numpy as np

from ropewalk.rl.environments.spec import Array

_ALIGN = 64
"""Fields begin at multiples of this many bytes, so that their arrays are aligned for everything."""


def can_be_bundled(columns: Mapping[str, Array]) -> bool:
    """Whether all columns have plain numbers, flags, dates or text."""
    return all(array.dtype.kind not in "OV" for array in columns.values())


def bundled(columns: Mapping[str, Array]) -> Array:
    """Return columns as one row, shape (1,), with a field for each; see `can_be_bundled`."""
    layout = tuple((name, array.dtype.str, array.shape) for name, array in columns.items())
    row = np.zeros(1, _dtype_of(layout))
    for name, array in columns.items():
        row[name][0] = array
    return row


def unbundled(columns: Mapping[str, Array]) -> dict[str, Array]:
    """Return columns with the fields of bundles in place of the bundles; they share the bundles' memory."""
    found: dict[str, Array] = {}
    for name, array in columns.items():
        if array.dtype.names is None:
            found[name] = array
        else:
            fields: Any = array  # numpy's types know no names of fields
            found |= {field: fields[field] for field in array.dtype.names}
    return found


def raw(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype as which rows of this one are copied: numpy copies structured rows field by field."""
    return dtype if dtype.names is None else np.dtype((np.void, dtype.itemsize))


def packed(rows: Array) -> Array | tuple[str, Array]:
    """Return rows as what is pickled quickly: of a bundle its dtype as text, and its bytes."""
    return rows if rows.dtype.names is None else (_text_of(rows.dtype), rows.view(np.uint8))


def unpacked(rows: Array | tuple[str, Array]) -> Array:
    """Return the rows of `packed`; they share its memory."""
    return rows[1].view(_dtype_of_text(rows[0])) if isinstance(rows, tuple) else rows


def sent_bundle(rows: Array) -> tuple[str, PickleBuffer]:
    """Return the dtype of a bundle as text, and its memory, which travels beside a pickle of protocol 5."""
    data: Any = rows.view(np.uint8)  # numpy's types do not say that an array is a buffer
    return _text_of(rows.dtype), PickleBuffer(data)


def received_bundle(text: str, data: Any) -> Array:
    """Return the rows of `sent_bundle`; they share the memory that arrived."""
    return np.frombuffer(data, _dtype_of_text(text))


@functools.lru_cache(64)
def _dtype_of(layout: tuple[tuple[str, str, tuple[int, ...]], ...]) -> np.dtype[Any]:
    names, formats, offsets, end = list[str](), list[Any](), list[int](), 0
    for name, dtype, shape in layout:
        names.append(name)
        formats.append((np.dtype(dtype), shape))
        offsets.append(end)
        end += -(-np.dtype(formats[-1]).itemsize // _ALIGN) * _ALIGN
    return np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": end})


@functools.lru_cache(64)
def _text_of(dtype: np.dtype[Any]) -> str:
    assert dtype.names is not None
    fields = [dtype[name] for name in dtype.names]
    return json.dumps([(name, of.base.str, of.shape) for name, of in zip(dtype.names, fields, strict=True)])


@functools.lru_cache(64)
def _dtype_of_text(text: str) -> np.dtype[Any]:
    return _dtype_of(tuple((name, dtype, tuple(shape)) for name, dtype, shape in json.loads(text)))


__all__ = ["bundled", "can_be_bundled", "packed", "raw", "received_bundle", "sent_bundle", "unbundled", "unpacked"]
