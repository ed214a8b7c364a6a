"""The header of a file of the safetensors format, which is determined to the last byte by the tensors in the file.

    8 bytes: length of the header │ header (JSON): name ─▶ dtype, shape, place │ bytes of one tensor after the other

So a manifest that states the dtype, shape and position of each tensor determines the header as well: other readers of
the file see the same as we do, or the file is damaged. Nothing here needs torch.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from typing import Any

ITEM_BYTES = {
    "F64": 8,
    "F32": 4,
    "F16": 2,
    "BF16": 2,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "C64": 8,
    "I64": 8,
    "I32": 4,
    "I16": 2,
    "I8": 1,
    "U64": 8,
    "U32": 4,
    "U16": 2,
    "U8": 1,
    "BOOL": 1,
}
"""Bytes per element, by the format's name for the dtype."""
PREFIX = struct.Struct("<Q")


def lay_out(tensors: Mapping[str, tuple[str, tuple[int, ...]]]) -> tuple[bytes, dict[str, tuple[int, int]], int]:
    """Return the layout of a file with these tensors.

    Args:
        tensors: dtype and shape by name.

    Returns:
        The header; for each tensor, in file order, its offset and size in bytes; and the size of the file in bytes.
    """
    # Larger elements first, as the format's own writer does, so that each tensor is aligned for its dtype.
    names = sorted(tensors, key=lambda name: -ITEM_BYTES[tensors[name][0]])
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    sizes: dict[str, int] = {}
    end = 0
    for name in names:
        dtype, shape = tensors[name]
        sizes[name] = math.prod(shape) * ITEM_BYTES[dtype]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [end, end + sizes[name]]}
        end += sizes[name]
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % PREFIX.size)
    head = PREFIX.pack(len(encoded)) + encoded
    places: dict[str, tuple[int, int]] = {}
    begin = len(head)
    for name in names:
        places[name] = begin, sizes[name]
        begin += sizes[name]
    return head, places, begin


__all__ = ["ITEM_BYTES", "PREFIX", "lay_out"]
