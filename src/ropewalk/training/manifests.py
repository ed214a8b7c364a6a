"""What a checkpoint consists of, written down in its manifest: files and tensors, and how to know them again.

The manifest says of each file how long it is and its SHA-256, of each tensor where it
lies and its CRC-32, and begins with its own SHA-256. They find damage, not malice; but
nothing in a checkpoint is a pickle, so that reading what others wrote runs no code of theirs.

Nothing here needs torch.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from io import BufferedReader
from pathlib import Path
from typing import Any

import msgspec

from ropewalk.errors import CheckpointCorrupt

MANIFEST = "manifest.json"
_FORMAT = 1
_CHUNK_BYTES = 1 << 20


class TensorRecord(msgspec.Struct, frozen=True):
    """Where a tensor lies in a file, and how to know it again."""

    dtype: str
    """As safetensors calls it: F32, BF16, ..."""
    shape: tuple[int, ...]
    begin: int
    """Of its first byte, from the beginning of the file."""
    size_bytes: int
    crc32: int


class FileRecord(msgspec.Struct, frozen=True):
    """One file of a checkpoint."""

    size_bytes: int
    sha256: str
    tensors: dict[str, TensorRecord]
    """Empty for a file that holds none."""


class PartRecord(msgspec.Struct, frozen=True):
    """What one writer wrote."""

    name: str
    parameters: tuple[str, ...]
    buffers: tuple[str, ...]
    files: dict[str, FileRecord]


class Manifest(msgspec.Struct, frozen=True):
    """What is in a checkpoint."""

    step: int
    facts: dict[str, Any]
    """Of the run as a whole: plain data, such as "num_steps" and "seed"."""
    parts: tuple[PartRecord, ...]


class _Sealed(msgspec.Struct, frozen=True):
    format: int
    sha256: str
    manifest: msgspec.Raw


def write_manifest(save: Path, manifest: Manifest) -> None:
    """Write it into the folder of a checkpoint; returns when it is on the disk.

    Raises:
        OSError: it cannot be written.
        TypeError: its facts are no plain data.
    """
    content = msgspec.json.encode(manifest)
    seal = f'{{"format":{_FORMAT},"sha256":"{hashlib.sha256(content).hexdigest()}","manifest":'
    write_file(save / MANIFEST, [seal.encode(), content, b"}\n"])


def read_manifest(save: Path) -> Manifest:
    """What is in a checkpoint.

    Raises:
        CheckpointCorrupt: its manifest is damaged or missing.
        FileNotFoundError: there is no such folder, or not any more.
    """
    path = save / MANIFEST
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        if save.is_dir():
            raise CheckpointCorrupt(f"{path} is missing", path=str(path)) from None
        raise _gone(save) from None
    try:
        sealed = msgspec.json.decode(content, type=_Sealed)
        if sealed.format != _FORMAT:
            raise damaged(path, f"it is of format {sealed.format}, and this version of Ropewalk reads format {_FORMAT}")
        if hashlib.sha256(sealed.manifest).hexdigest() != sealed.sha256:
            raise damaged(path, "its bytes are not those that were written (SHA-256 differs)")
        return msgspec.json.decode(sealed.manifest, type=Manifest)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise damaged(path, f"it cannot be read ({error})") from None


def opened(save: Path, file: str, record: FileRecord) -> BufferedReader:
    """A file of a checkpoint, to be read.

    Raises:
        CheckpointCorrupt: it is missing, or not as long as it was.
        FileNotFoundError: the whole checkpoint was removed, because newer ones came.
    """
    path = save / file
    try:
        found = open(path, "rb")  # noqa: SIM115
    except FileNotFoundError:
        if (save / MANIFEST).exists():
            raise CheckpointCorrupt(f"{path} is missing, which the manifest names", path=str(path)) from None
        raise _gone(save) from None
    size_bytes = os.fstat(found.fileno()).st_size
    if size_bytes != record.size_bytes:
        found.close()
        raise damaged(path, f"it is {size_bytes} bytes long, and was written with {record.size_bytes}")
    return found


def chunks(save: Path, file: str, record: FileRecord) -> Iterator[bytes]:
    """The bytes of a file, in pieces; after the last one it is known that each is as it was written.

    Raises:
        CheckpointCorrupt: it is not.
        FileNotFoundError: the whole checkpoint was removed, because newer ones came.
    """
    digest = hashlib.sha256()
    with opened(save, file, record) as content:
        while chunk := content.read(_CHUNK_BYTES):
            digest.update(chunk)
            yield chunk
    if digest.hexdigest() != record.sha256:
        raise damaged(save / file, "its bytes are not those that were written (SHA-256 differs)")


def check_digest(save: Path, file: str, record: FileRecord) -> None:
    """Read a file to its end; raises as `chunks`."""
    for _ in chunks(save, file, record):
        pass


def write_file(path: Path, parts: Iterable[bytes | memoryview]) -> tuple[int, str]:
    """Write a new file, and return when it is on the disk.

    Returns:
        Its length and SHA-256.

    Raises:
        OSError: it cannot be written, or is there.
    """
    digest, size_bytes = hashlib.sha256(), 0
    with open(path, "xb") as file:
        for part in parts:
            digest.update(part)
            size_bytes += file.write(part)
        file.flush()
        os.fsync(file.fileno())
    return size_bytes, digest.hexdigest()


def damaged(path: Path, why: str) -> CheckpointCorrupt:
    """The error for a file that is not as it was written."""
    return CheckpointCorrupt(f"{path} is damaged: {why}; load another checkpoint, or save again", path=str(path))


def _gone(save: Path) -> FileNotFoundError:
    return FileNotFoundError(
        f"the checkpoint {save} is not there, or was removed while it was read, because newer ones came; read the "
        f"newest of {save.parent}, or save with a larger keep"
    )


__all__ = [
    "MANIFEST",
    "FileRecord",
    "Manifest",
    "PartRecord",
    "TensorRecord",
    "check_digest",
    "chunks",
    "damaged",
    "opened",
    "read_manifest",
    "write_file",
    "write_manifest",
]
