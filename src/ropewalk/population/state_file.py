"""A tree of numbers, strings and arrays in one file, written whole or not at all.

    ropewalk state 1 │ SHA-256 of the rest │ length of the JSON │ JSON of the tree │ arrays, as .npy each
                                                    {"array": 3} ───────────────────▶ the fourth

No pickle but where the caller puts one in, as bytes. The digest finds damage, not malice; so only files are read that
nobody else can have written.
"""

from __future__ import annotations

import hashlib
import io
import json
import struct
import tokenize
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from ropewalk.atomic_files import replace_file
from ropewalk.errors import CheckpointCorrupt
from ropewalk.trusted_files import open_own

_MAGIC = b"ropewalk state 1\n"
_LENGTH = struct.Struct("<Q")


def write_state(path: Path, tree: Any) -> int:
    """Write a tree for this user alone, so that `path` holds the old or the new one whole, whenever the machine stops.

    Args:
        path: of the file; its folder exists.
        tree: None, booleans, numbers, strings, bytes, arrays, and lists, tuples and dicts (with string keys) of these.

    Returns:
        The size of the file in bytes.

    Raises:
        OSError: it cannot be written; what was there before is still there.
        TypeError: something in the tree cannot be saved; says where.
    """
    return replace_file(path, [pack_state(tree)])


def read_state(path: Path) -> Any:
    """The tree in a file that nobody but this user and root can have written: the bytes in it may be a pickle.

    Raises:
        OSError: there is no such file.
        FileNotTrusted: another user could have written it.
        CheckpointCorrupt: it is damaged, or something else.
    """
    with open_own(path) as file:
        return unpack_state(file.read(), str(path))


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
    try:
        return _unpacked(body)
    except _MALFORMED as error:  # the digest fits: it was not written by `pack_state`
        raise CheckpointCorrupt(f"{where} is no saved state: {error or type(error).__name__}", path=where) from error


#: What Python's and NumPy's readers raise for bytes that are not theirs.
_MALFORMED = (
    *(struct.error, ValueError, TypeError, AttributeError, LookupError, SyntaxError, EOFError),
    *(ArithmeticError, RecursionError, MemoryError, tokenize.TokenError),
)


def _unpacked(body: memoryview) -> Any:
    (length,) = _LENGTH.unpack_from(body)
    end = _LENGTH.size + length
    if end > len(body):
        raise ValueError(f"its tree would have {length} bytes, and it ends after {len(body)}")
    file = io.BytesIO(body[end:])
    arrays: list[NDArray[Any]] = []
    while file.tell() < len(body) - end:
        arrays.append(np.lib.format.read_array(file, allow_pickle=False))
    return _rich(json.loads(bytes(body[_LENGTH.size : end])), arrays)


def is_plain(value: Any) -> bool:
    """Whether a value comes back from a file as it was, types included, so that nobody has to pickle it."""
    match value:
        case np.ndarray():
            array = cast("NDArray[Any]", value)
            return type(array) is np.ndarray and not array.dtype.hasobject
        case list() | tuple():
            each = cast("list[Any] | tuple[Any, ...]", value)
            return type(each) in (list, tuple) and all(map(is_plain, each))
        case dict():
            entries = cast("dict[Any, Any]", value)
            return type(entries) is dict and all(type(key) is str and is_plain(part) for key, part in entries.items())
        case _:
            return type(value) in (type(None), bool, int, float, str, bytes)


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
