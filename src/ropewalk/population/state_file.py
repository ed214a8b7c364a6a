"""A tree of numbers, strings and arrays in one file, written whole or not at all.

    ropewalk state 1 │ SHA-256 of the rest │ length of the JSON │ JSON of the tree │ arrays, as .npy each
                                                    {"array": 3} ───────────────────▶ the fourth

No pickle but where the caller puts one in, as bytes. The digest finds damage, not malice.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import struct
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from ropewalk.errors import CheckpointCorrupt

_MAGIC = b"ropewalk state 1\n"
_LENGTH = struct.Struct("<Q")


def write_state(path: Path, tree: Any) -> int:
    """Write a tree, so that `path` holds the old or the new one whole, whenever the machine stops.

    Args:
        path: of the file; its folder exists.
        tree: None, booleans, numbers, strings, bytes, arrays, and lists, tuples and dicts (with string keys) of these.

    Returns:
        The size of the file in bytes.

    Raises:
        OSError: it cannot be written; what was there before is still there.
        TypeError: something in the tree cannot be saved; says where.
    """
    data = pack_state(tree)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with beside.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    return len(data)


def read_state(path: Path) -> Any:
    """The tree in a file.

    Raises:
        OSError: there is no such file.
        CheckpointCorrupt: it is damaged, or something else.
    """
    return unpack_state(path.read_bytes(), str(path))


def pack_state(tree: Any) -> bytes:
    """A tree as bytes; see `write_state`."""
    arrays: list[NDArray[Any]] = []
    text = json.dumps(_plain(tree, arrays, "state")).encode()
    body = io.BytesIO()
    body.write(_LENGTH.pack(len(text)))
    body.write(text)
    for array in arrays:
        np.lib.format.write_array(body, array, allow_pickle=False)
    data = body.getbuffer()
    return b"".join((_MAGIC, hashlib.sha256(data).digest(), data))


def unpack_state(data: bytes, where: str) -> Any:
    """`pack_state` undone; `where` is for errors."""
    begin = len(_MAGIC) + hashlib.sha256().digest_size
    if data[: len(_MAGIC)] != _MAGIC:
        raise CheckpointCorrupt(f"{where} is no saved state: it begins with {data[:16]!r}", path=where)
    body = memoryview(data)[begin:]
    if hashlib.sha256(body).digest() != data[len(_MAGIC) : begin]:
        raise CheckpointCorrupt(
            f"{where} is damaged: its {len(data)} bytes do not have the SHA-256 that they were written with", path=where
        )
    (length,) = _LENGTH.unpack_from(body)
    text = bytes(body[_LENGTH.size : _LENGTH.size + length])
    file = io.BytesIO(body[_LENGTH.size + length :])
    arrays: list[NDArray[Any]] = []
    while file.tell() < len(body) - _LENGTH.size - length:
        arrays.append(np.lib.format.read_array(file, allow_pickle=False))
    return _rich(json.loads(text), arrays)


def _plain(value: Any, arrays: list[NDArray[Any]], where: str) -> Any:
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if np.isfinite(value) else {"float": repr(value)}
    if isinstance(value, np.generic):
        return _plain(cast("Any", value).item(), arrays, where)
    if isinstance(value, np.ndarray):
        array = cast("NDArray[Any]", value)
        if array.dtype.hasobject:
            raise TypeError(f"{where} is an array of objects; save a list")
        arrays.append(array)
        return {"array": len(arrays) - 1}
    if isinstance(value, bytes | bytearray):
        arrays.append(np.frombuffer(value, np.uint8))
        return {"bytes": len(arrays) - 1}
    if isinstance(value, list):
        return [_plain(each, arrays, f"{where}[{at}]") for at, each in enumerate(cast("list[Any]", value))]
    if isinstance(value, tuple):
        parts = cast("tuple[Any, ...]", value)
        return {"tuple": [_plain(each, arrays, f"{where}[{at}]") for at, each in enumerate(parts)]}
    if isinstance(value, dict):
        entries = cast("dict[Any, Any]", value)
        for key in entries:
            if not isinstance(key, str):
                raise TypeError(f"{where} has the key {key!r}; keys of what is saved are strings")
        return {"dict": {key: _plain(each, arrays, f"{where}[{key!r}]") for key, each in entries.items()}}
    raise TypeError(f"{where} is {value!r:.60} of type {type(value).__name__}, which cannot be saved")


def _rich(value: Any, arrays: list[NDArray[Any]]) -> Any:
    if isinstance(value, list):
        return [_rich(each, arrays) for each in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = cast("dict[str, Any]", value).items()
    match kind:
        case "array":
            return arrays[int(content)]
        case "bytes":
            return arrays[int(content)].tobytes()
        case "float":
            return float(content)
        case "tuple":
            return tuple(_rich(each, arrays) for each in content)
        case _:
            return {key: _rich(each, arrays) for key, each in content.items()}
