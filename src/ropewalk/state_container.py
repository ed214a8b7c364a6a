"""The file format of saved states: a manifest with parts, verified before any of it is used.

    magic, format, length of the manifest, SHA-256 of manifest and parts │ manifest (JSON) │ part │ part ...

The manifest is a JSON object. "sizes" holds the size of each part in bytes; the writer chooses the other keys:

    state of a service       "name", "replica", "facts"    a pickle and its buffers    program/checkpoints.py
    state of a population    "tree"                        arrays, as .npy each        population/state_file.py

The digest detects damage, not malice: code that unpickles a part must only read files that this user or root has
written. The checkpoint of a trainer is not such a file but a folder, because many hosts write it in parallel and other
programs read its tensors: training/checkpoint_files.py.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO, Protocol, cast

from ropewalk.errors import CheckpointCorrupt

_MAGIC = b"RWCHKPT\n"
_FORMAT = 1
_PREFIX = struct.Struct(">8sHI32s")


class Writable(Protocol):
    """The part of a file object that writing needs."""

    def write(self, data: Any, /) -> object:
        """Write all of `data`."""
        ...

    def flush(self) -> object:
        """Flush the buffers of this process."""
        ...


def write_container(
    file: Writable, manifest: Mapping[str, Any], parts: Sequence[bytes | memoryview], unless: bytes = b""
) -> bytes:
    """Write a manifest and its parts.

    Args:
        file: a file that is open for writing.
        manifest: data that JSON can represent; "sizes" is added.
        parts: contiguous buffers, which must not change during the call.
        unless: a digest; nothing is written if the digest of this content equals it.

    Returns:
        The SHA-256 digest of the content.

    Raises:
        OSError: the file cannot be written.
    """
    sizes = [memoryview(part).nbytes for part in parts]
    encoded = json.dumps({**manifest, "sizes": sizes}, separators=(",", ":")).encode()
    content = (encoded, *parts)
    seen = hashlib.sha256()
    for part in content:
        seen.update(part)
    digest = seen.digest()
    if digest != unless:
        file.write(_PREFIX.pack(_MAGIC, _FORMAT, len(encoded), digest))
        for part in content:
            file.write(part)
        file.flush()
    return digest


def read_container(file: BinaryIO, size_bytes: int, path: str) -> tuple[dict[str, Any], list[bytearray]]:
    """Read a manifest and its parts.

    Args:
        file: a file that is open for reading, at its beginning.
        size_bytes: size of the whole file in bytes; no more memory than this is allocated.
        path: the path that errors name.

    Returns:
        The manifest, and the parts, each in its own writable buffer.

    Raises:
        CheckpointCorrupt: the file is damaged, or is not a state container.
    """
    prefix = file.read(_PREFIX.size)
    if len(prefix) < _PREFIX.size:
        raise damaged(path, f"it ends after {size_bytes} bytes")
    magic, version, manifest_bytes, digest = _PREFIX.unpack(prefix)
    if magic != _MAGIC:
        raise damaged(path, f"it does not begin like a checkpoint but with {prefix[:16]!r}")
    if version != _FORMAT:
        raise damaged(path, f"it is of format {version}, and this version of Ropewalk reads format {_FORMAT}")
    if _PREFIX.size + manifest_bytes > size_bytes:
        raise damaged(path, f"it ends after {size_bytes} bytes, within its manifest of {manifest_bytes}")
    encoded = file.read(manifest_bytes)
    seen = hashlib.sha256(encoded)
    manifest, sizes = _decoded(encoded, path)
    expected = _PREFIX.size + manifest_bytes + sum(sizes)
    if expected != size_bytes:  # checked before any memory is allocated for the parts
        raise damaged(path, f"it is {size_bytes} bytes long, and its manifest speaks of {expected}")
    parts: list[bytearray] = []
    for part_bytes in sizes:
        part = bytearray(part_bytes)
        file.readinto(part)  # type: ignore[attr-defined]  # every binary file that can be read has it
        seen.update(part)
        parts.append(part)
    if seen.digest() != digest:
        raise damaged(path, "its bytes are not those that were written (SHA-256 differs)")
    return manifest, parts


def damaged(path: str, why: object) -> CheckpointCorrupt:
    """Return the error for a file that is damaged, or that Ropewalk did not write."""
    return CheckpointCorrupt(f"{path} is damaged: {why}", path=path)


def _decoded(encoded: bytes, path: str) -> tuple[dict[str, Any], list[int]]:
    try:
        manifest: Any = json.loads(encoded)
    except (ValueError, RecursionError) as error:
        raise damaged(path, f"its manifest cannot be read ({error})") from None
    sizes: Any = cast("dict[str, Any]", manifest).get("sizes") if isinstance(manifest, dict) else None
    if not isinstance(sizes, list) or not all(type(size) is int and size >= 0 for size in cast("list[Any]", sizes)):
        raise damaged(path, "its manifest does not say how long its parts are")
    return cast("dict[str, Any]", manifest), cast("list[int]", sizes)
