"""A tree of numbers, strings and arrays in one file: a `state_container` that is written atomically.

    manifest  {"tree": ... {"array": 3} ...}  ───▶  the fourth part: an array, as .npy

The file holds no pickle unless the caller puts one in as bytes. The digest detects damage, not malice; so only files
that no other user can have written are read.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import struct
import tokenize
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from ropewalk.atomic_files import StagedFile
from ropewalk.state_container import Writable, damaged, read_container, write_container
from ropewalk.trusted_files import open_own

_BEFORE = b"ropewalk state 1\n"
"""The first bytes of files in the first format."""
_LENGTH = struct.Struct("<Q")


def write_state(path: Path, tree: Any) -> int:
    """Write a tree to a file atomically; only this user can read it.

    After a crash at any moment, `path` holds either the old or the new file.

    Args:
        path: path of the file; its folder must exist.
        tree: None, booleans, numbers, strings, bytes, arrays, and lists, tuples and dicts (with string keys) of these.

    Returns:
        The size of the file in bytes.

    Raises:
        OSError: the file cannot be written; the previous file is still there.
        TypeError: a value in the tree cannot be saved; the message says where it is.
    """
    with StagedFile(path) as staged:
        _write(staged.file, tree)
        size_bytes = staged.file.tell()
        staged.commit()
    return size_bytes


def read_state(path: Path) -> Any:
    """Read a tree from a file that only this user and root can have written, because its bytes may be a pickle.

    Raises:
        OSError: there is no such file.
        FileNotTrusted: another user could have written it.
        CheckpointCorrupt: the file is damaged, or is not a state file.
    """
    with open_own(path) as file:
        return _read(file, os.fstat(file.fileno()).st_size, str(path))


def pack_state(tree: Any) -> bytes:
    """Encode a tree as bytes; see `write_state`."""
    file = io.BytesIO()
    _write(file, tree)
    return file.getvalue()


def unpack_state(data: bytes, where: str) -> Any:
    """Decode the bytes of `pack_state`; `where` names them in errors."""
    return _read(io.BytesIO(data), len(data), where)


def _write(file: Writable, tree: Any) -> None:
    arrays: list[NDArray[Any]] = []
    plain = _plain(tree, arrays, "state")
    write_container(file, {"tree": plain}, list(map(_as_npy, arrays)))


def _as_npy(array: NDArray[Any]) -> memoryview:
    file = io.BytesIO()
    np.lib.format.write_array(file, array, allow_pickle=False)
    return memoryview(file.getvalue())  # no copy; a buffer of it would complain if the collector closed the file first


def _read(file: BinaryIO, size_bytes: int, where: str) -> Any:
    if file.read(len(_BEFORE)) == _BEFORE:
        return _read_before(file.read(), where)
    file.seek(0)
    manifest, parts = read_container(file, size_bytes, where)
    try:
        return _rich(manifest["tree"], [_of_npy(part) for part in parts])
    except _MALFORMED as error:  # the digest fits: it was not written by `pack_state`
        raise damaged(where, f"it holds no saved state: {error or type(error).__name__}") from error


def _of_npy(part: bytearray) -> NDArray[Any]:
    return np.lib.format.read_array(io.BytesIO(part), allow_pickle=False)


_MALFORMED = (
    *(struct.error, ValueError, TypeError, AttributeError, LookupError, SyntaxError, EOFError),
    *(ArithmeticError, RecursionError, MemoryError, tokenize.TokenError),
)
"""Exceptions of Python's and NumPy's readers for malformed bytes."""


def _read_before(data: bytes, where: str) -> Any:
    """Read a file of the first format, from before there were containers.

    After `_BEFORE` come the SHA-256 of the rest, the length of the JSON of the tree, that JSON, and the arrays, each as
    .npy.
    """
    body = memoryview(data)[hashlib.sha256().digest_size :]
    if hashlib.sha256(body).digest() != data[: hashlib.sha256().digest_size]:
        raise damaged(where, "its bytes are not those that were written (SHA-256 differs)")
    try:
        (length,) = _LENGTH.unpack_from(body)
        end = _LENGTH.size + length
        if end > len(body):
            raise ValueError(f"its tree would have {length} bytes, and it ends after {len(body)}")
        file = io.BytesIO(body[end:])
        arrays: list[NDArray[Any]] = []
        while file.tell() < len(body) - end:
            arrays.append(np.lib.format.read_array(file, allow_pickle=False))
        return _rich(json.loads(bytes(body[_LENGTH.size : end])), arrays)
    except _MALFORMED as error:  # the digest fits: it was not written by us
        raise damaged(where, f"it holds no saved state: {error or type(error).__name__}") from error


def is_plain(value: Any) -> bool:
    """Whether a state file restores the value exactly, including types, so that it need not be pickled."""
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
