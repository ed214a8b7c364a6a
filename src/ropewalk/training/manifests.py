"""The manifest of a checkpoint: its files and tensors, with the checksums that verify them.

The manifest states the length and SHA-256 of each file, and the position and CRC-32 of each
tensor, and begins with its own SHA-256. Checksums find damage, not malice; but nothing in a
checkpoint is a pickle, so that reading a file from another person runs no code of theirs.
A manifest is accepted only if this module could have written it: the names of files follow
from those of the parts, their headers and sizes from the tensors. So it leads to no file
elsewhere, to no pipe or device, and never to more memory than there are bytes on the disk.

Nothing here needs torch.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
import urllib.parse
from collections.abc import Iterable, Iterator
from io import BufferedReader
from pathlib import Path
from typing import Annotated, Any

import msgspec

from ropewalk.atomic_files import write_new_file
from ropewalk.errors import CheckpointCorrupt
from ropewalk.sealed_json import BrokenSeal, sealed, unsealed
from ropewalk.tensor_header import ITEM_BYTES, lay_out

MANIFEST = "manifest.json"
_CHUNK_BYTES = 1 << 20
_MOST_JSON_BYTES = 1 << 28
"""The limit for a manifest, and for the values of a part, which are read into memory; a million tensors need less."""
_SHA256 = re.compile(r"[0-9a-f]{64}")
_NOFOLLOW = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


_Size = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
"""Numbers of bytes and steps, and the numbers of dimensions that torch's own loops support."""
_Shape = Annotated[tuple[_Size, ...], msgspec.Meta(max_length=64)]


class TensorRecord(msgspec.Struct, frozen=True):
    """The position of a tensor in a file, and its checksum."""

    dtype: str
    """The dtype as safetensors names it: F32, BF16, ..."""
    shape: _Shape
    begin: _Size
    """The offset of its first byte from the beginning of the file."""
    size_bytes: _Size
    crc32: _Size


class FileRecord(msgspec.Struct, frozen=True):
    """A file of a checkpoint."""

    size_bytes: _Size
    sha256: str
    tensors: dict[str, TensorRecord]
    """Empty for a file that holds no tensors."""


class PartRecord(msgspec.Struct, frozen=True):
    """The files of one writer."""

    name: str
    parameters: tuple[str, ...]
    buffers: tuple[str, ...]
    files: dict[str, FileRecord]


class Manifest(msgspec.Struct, frozen=True):
    """The contents of a checkpoint."""

    step: _Size
    facts: dict[str, Any]
    """Facts about the run as a whole: plain data, such as "num_steps" and "seed"."""
    parts: tuple[PartRecord, ...]


def write_manifest(save: Path, manifest: Manifest) -> None:
    """Write the manifest into the folder of a checkpoint; returns when it is on the disk.

    Raises:
        OSError: the manifest cannot be written.
        TypeError: its facts are not plain data.
    """
    write_file(save / MANIFEST, [sealed(manifest)])


def read_manifest(save: Path) -> Manifest:
    """Read the manifest of a checkpoint.

    Raises:
        CheckpointCorrupt: the manifest is damaged or missing.
        FileNotFoundError: there is no such folder, or it was removed.
    """
    path = save / MANIFEST
    try:
        with _open(path) as file:
            size_bytes = os.fstat(file.fileno()).st_size
            if size_bytes > _MOST_JSON_BYTES:
                raise damaged(path, f"it is {size_bytes} bytes long, and a manifest has at most {_MOST_JSON_BYTES}")
            content = file.read()
    except FileNotFoundError:
        if save.is_dir():
            raise CheckpointCorrupt(f"{path} is missing", path=str(path)) from None
        raise _gone(save) from None
    try:
        manifest = unsealed(content, Manifest)
    except BrokenSeal as error:
        raise damaged(path, str(error)) from None
    if odd := _oddity(manifest):
        raise damaged(path, odd)
    return manifest


def file_names(part: str) -> tuple[str, str, str]:
    """Return the names of a part's files: weights, tensors of the state, the rest of the state."""
    stem = urllib.parse.quote(part, safe="")
    return f"weights-{stem}.safetensors", f"state-{stem}.safetensors", f"state-{stem}.json"


def _oddity(manifest: Manifest) -> str:
    """Describe an entry that no manifest of ours would have; empty if there is none."""
    names: set[str] = set()
    for part in manifest.parts:
        try:
            own = file_names(part.name)
        except UnicodeError:
            return f"a part has the name {part.name!r}"
        if part.files.keys() != set(own):
            return f"the part {part.name!r:.80} has the files {sorted(part.files)!s:.300}, and not {sorted(own)}"
        for file, record in part.files.items():
            if odd := _oddity_of_file(file, record):
                return f"of {file} it says {odd}"
        here = (f"part {part.name!r}", *part.parameters, *part.buffers)
        if part.files[own[0]].tensors.keys() != set(here[1:]):
            return f"the parameters and buffers of part {part.name!r} are not those in {own[0]}"
        if len(set(here)) < len(here) or names & set(here):
            return f"something in part {part.name!r} is named twice"
        names.update(here)
    return ""


def _oddity_of_file(file: str, record: FileRecord) -> str:
    if not _SHA256.fullmatch(record.sha256):
        return f"that its SHA-256 is {record.sha256!r:.80}"
    if not file.endswith(".safetensors"):
        too_long = not 0 <= record.size_bytes <= _MOST_JSON_BYTES
        return f"that it has {record.size_bytes} bytes" if too_long else "that it holds tensors" * bool(record.tensors)
    for name, one in record.tensors.items():
        if one.dtype not in ITEM_BYTES:
            return f"that {name!r} is of the type {one.dtype!r:.80}"
    _, places, size_bytes = lay_out(_specs(record))
    if size_bytes != record.size_bytes:
        return f"that it has {record.size_bytes} bytes, where its tensors need {size_bytes}"
    for name, one in record.tensors.items():
        if (one.begin, one.size_bytes) != places[name]:
            return f"that {name!r} has {one.size_bytes} bytes from {one.begin} on, and not {places[name]}"
    return ""


def _specs(record: FileRecord) -> dict[str, tuple[str, tuple[int, ...]]]:
    return {name: (one.dtype, one.shape) for name, one in record.tensors.items()}


def opened(save: Path, file: str, record: FileRecord) -> BufferedReader:
    """Open a file of a checkpoint, to be read from its beginning.

    Raises:
        CheckpointCorrupt: the file is missing, or has another length, or its header contradicts the manifest.
        FileNotFoundError: the whole checkpoint was removed, because newer ones were written.
    """
    path = save / file
    try:
        found = _open(path)
    except FileNotFoundError:
        if (save / MANIFEST).exists():
            raise CheckpointCorrupt(f"{path} is missing, which the manifest names", path=str(path)) from None
        raise _gone(save) from None
    try:
        size_bytes = os.fstat(found.fileno()).st_size
        if size_bytes != record.size_bytes:
            raise damaged(path, f"it is {size_bytes} bytes long, and was written with {record.size_bytes}")
        if file.endswith(".safetensors"):
            head, _, _ = lay_out(_specs(record))
            if found.read(len(head)) != head:
                raise damaged(
                    path, "its head, which tells other readers where tensors are, is not that of the manifest"
                )
            found.seek(0)
    except BaseException:
        found.close()
        raise
    return found


def _open(path: Path) -> BufferedReader:
    """Open a file of a checkpoint: no link, which could lead anywhere, and nothing that would block a reader."""
    try:
        descriptor = os.open(path, _NOFOLLOW)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO, errno.ENAMETOOLONG):  # a link, a socket, a name that is too long
            raise damaged(path, f"it is not a file ({error.strerror})") from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise damaged(path, "it is not a file")
    return open(descriptor, "rb")


def chunks(save: Path, file: str, record: FileRecord) -> Iterator[bytes]:
    """Yield the bytes of a file, in pieces; once the last one is consumed, the file is known to be as it was written.

    Raises:
        CheckpointCorrupt: the file is damaged.
        FileNotFoundError: the whole checkpoint was removed, because newer ones were written.
    """
    digest = hashlib.sha256()
    with opened(save, file, record) as content:
        while chunk := content.read(_CHUNK_BYTES):
            digest.update(chunk)
            yield chunk
    if digest.hexdigest() != record.sha256:
        raise damaged(save / file, "its bytes are not those that were written (SHA-256 differs)")


def check_digest(save: Path, file: str, record: FileRecord) -> None:
    """Read a file to its end; raises the same errors as `chunks`."""
    for _ in chunks(save, file, record):
        pass


def write_file(path: Path, parts: Iterable[bytes | memoryview]) -> tuple[int, str]:
    """Write a new file, and return when it is on the disk.

    Returns:
        Its length and SHA-256.

    Raises:
        OSError: the file cannot be written, or exists.
    """
    digest = hashlib.sha256()

    def seen() -> Iterator[bytes | memoryview]:
        for part in parts:
            digest.update(part)
            yield part

    # Anyone who may enter the folder may read its files; no other user may write to it, whatever the umask is.
    size_bytes = write_new_file(path, seen(), mode=0o600 | path.parent.stat().st_mode & 0o044)
    return size_bytes, digest.hexdigest()


def damaged(path: Path, why: str) -> CheckpointCorrupt:
    """Return the error for a file that is not as it was written."""
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
    "file_names",
    "opened",
    "read_manifest",
    "write_file",
    "write_manifest",
]
