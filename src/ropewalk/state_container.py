"""The file that a saved state lies in: a manifest with parts, checked before any of it is used.

    magic, format, length of the manifest, SHA-256 of manifest and parts │ manifest (JSON) │ part │ part ...

The manifest is a JSON object. "sizes" are those of the parts in bytes; the rest is the writer's:

    state of a service       "name", "replica", "facts"    a pickle and its buffers    program/checkpoints.py
    state of a population    "tree"                        arrays, as .npy each        population/state_file.py

The digest finds damage, not malice: whoever unpickles a part reads files that only this user and root can have
written. The checkpoint of a training is no such file but a folder, because many hosts write it side by side, and other
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
    """A file, as far as it is written to."""

    def write(self, data: Any, /) -> object:
        """Write all of it."""
        ...

    def flush(self) -> object:
        """Have it leave this process."""
        ...


def write_container(
    file: Writable, manifest: Mapping[str, Any], parts: Sequence[bytes | memoryview], unless: bytes = b""
) -> bytes:
    """Write a manifest and parts.

    Args:
        file: open for writing.
        manifest: plain data (JSON); "sizes" are added.
        parts: contiguous memory, which must not change meanwhile.
        unless: a digest; nothing is written if that of this content is the same.

    Returns:
        The digest.

    Raises:
        OSError: it cannot be written.
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
    """The manifest and the parts, as they were written.

    Args:
        file: at its beginning.
        size_bytes: of the whole file; never is more memory taken.
        path: for errors.

    Returns:
        The manifest, and the parts, each in memory of its own, which can be written to.

    Raises:
        CheckpointCorrupt: the file is damaged, or something else.
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
    if expected != size_bytes:  # before any memory is taken for the parts
        raise damaged(path, f"it is {size_bytes} bytes long, and its manifest speaks of {expected}")
    parts: list[bytearray] = []
    for part_bytes in sizes:
        part = bytearray(part_bytes)
        file.readinto(part)  # type: ignore[attr-defined]  # any file that is read has it
        seen.update(part)
        parts.append(part)
    if seen.digest() != digest:
        raise damaged(path, "its bytes are not those that were written (SHA-256 differs)")
    return manifest, parts


def damaged(path: str, why: object) -> CheckpointCorrupt:
    """The error for a file that is not as it was written, or was not written by us."""
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
