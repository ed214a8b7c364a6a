"""The saved state of a service: one file per replica, whole or not there, checked before it is used.

    save:  write NAME.0.writing ─▶ fsync ─▶ NAME.0.checkpoint becomes NAME.0.previous ─▶ NAME.0.writing becomes it
    load:  NAME.0.checkpoint, or if it is damaged or missing NAME.0.previous, with a note

A process may be killed, and the disk may fill up, at any moment: one whole
checkpoint is left in any case. A file is

    magic, format, length of the header, SHA-256 of header and parts | header (JSON) | pickle | buffer | buffer ...

The digest finds damage, not malice: a pickle runs code. So only files that belong
to this user, and that nobody else may write to, are read.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import math
import os
import stat
import struct
import urllib.parse
from collections.abc import Sequence
from io import BufferedReader
from pathlib import Path
from typing import Any

import msgspec

from ropewalk.errors import CheckpointCorrupt
from ropewalk.transport.frames import Part
from ropewalk.transport.serialization import Payload, loads

_MAGIC = b"RWCHKPT\n"
_FORMAT = 1
_PREFIX = struct.Struct(">8sHI32s")


class _Header(msgspec.Struct, frozen=True):
    name: str
    replica: int
    facts: dict[str, Any]
    sizes: tuple[int, ...]  # of the parts, in bytes


@dataclasses.dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint whose bytes are whole, not yet unpickled."""

    parts: Sequence[Part]
    """The pickle and its buffers, each in memory of its own."""
    facts: dict[str, Any]
    """What was known when it was saved, such as the generation."""
    path: str
    """The file that it came from."""
    note: str
    """Why it is not the newest one; empty if it is."""

    def unpickled(self) -> Any:
        """The state.

        Raises:
            Exception: what unpickling it raised; a note names the file.
        """
        try:
            return loads(self.parts[0], self.parts[1:])
        except Exception as error:
            error.add_note(f"The state came from the checkpoint {self.path}, whose bytes are as they were written.")
            raise


@dataclasses.dataclass(frozen=True, slots=True)
class Checkpoint:
    """A state that was read back."""

    state: Any
    """What was saved: anything that pickle can hold."""
    facts: dict[str, Any]
    """What was known when it was saved, such as the generation."""
    path: Path
    """The file that it came from."""
    note: str
    """Why it is not the newest one; empty if it is."""


def save(folder: Path, name: str, replica: int, payload: Payload, facts: dict[str, Any]) -> Path:
    """Write a checkpoint, and keep the one before it.

    One process at a time saves a replica.

    Args:
        folder: made if it is missing, for this user only.
        name: of the node.
        replica: its index.
        payload: the pickled state; its buffers lie in the state's own memory, which must not change meanwhile.
        facts: plain data (JSON) to be read back with the state.

    Returns:
        The file.

    Raises:
        OSError: it cannot be written (the disk is full, ...); the checkpoints from before are still good.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    current, previous, writing = _paths(folder, name, replica)
    try:
        writing.unlink(missing_ok=True)  # of a process that was killed while it wrote
        _write(writing, _Header(name, replica, facts, _sizes(payload)), payload)
        if current.exists():
            current.replace(previous)
        writing.replace(current)
        sync_folder(folder)
    except OSError as error:
        error.add_note(f"The checkpoint of {name}/{replica} was not saved in {folder}; the one before it is unchanged.")
        with contextlib.suppress(OSError):  # what is wrong is said by the first error
            writing.unlink(missing_ok=True)  # a full disk needs the room
        raise
    return current


def load(folder: Path, name: str, replica: int) -> Checkpoint | None:
    """The newest good checkpoint of a replica; None if it never had one.

    A damaged file that is not used is kept beside the others, with the ending ".damaged".

    Raises:
        CheckpointCorrupt: there are checkpoints, and each is damaged.
        PermissionError: a file belongs to another user, or others may write to it.
        Exception: what unpickling the state raised; a note names the file.
    """
    saved = find(folder, name, replica)
    return saved and Checkpoint(saved.unpickled(), saved.facts, Path(saved.path), saved.note)


def find(folder: Path, name: str, replica: int) -> Saved | None:
    """As `load`, without unpickling anything.

    Raises:
        CheckpointCorrupt, PermissionError: as `load`.
    """
    current, previous, _ = _paths(folder, name, replica)
    damages: list[CheckpointCorrupt] = []
    for path in (current, previous):
        try:
            header, parts = _read(path, name, replica)
        except FileNotFoundError:
            continue
        except CheckpointCorrupt as error:
            damages.append(error)
            continue
        note = ""
        if path is previous:
            why = str(damages[0]) if damages else f"{current} is missing; its writer was interrupted"
            note = f"{name}/{replica} goes back to the checkpoint before the newest: {why}"
        if damages:
            current.replace(current.with_suffix(".damaged"))  # else the next save would take it for the one before
        return Saved(parts, header.facts, str(path), note)
    if damages:
        message = " and ".join(map(str, damages))
        raise CheckpointCorrupt(
            f"no checkpoint of {name}/{replica} can be used: {message}; move them away to start without a state",
            path=str(current),
        )
    return None


class CheckpointPace:
    """Decides when the next checkpoint of a service is due. Pure: it writes nothing and reads no clock.

    Args:
        checkpoint_s: seconds from the beginning of one to the next; None: at least a second, and so long that
            saving takes at most a twentieth of the time. Nothing is due while no call has come since the last one.
        now: monotonic time in seconds; the state is new at this moment.
    """

    def __init__(self, checkpoint_s: float | None, now: float) -> None:
        if checkpoint_s is not None and not (isinstance(checkpoint_s, int | float) and checkpoint_s > 0):
            raise ValueError(f"checkpoint_s must be a number of seconds above 0, or None, not {checkpoint_s!r}")
        self._interval_s = checkpoint_s
        self._begun = now
        self._due = now + (1.0 if checkpoint_s is None else checkpoint_s)
        self._changed = False
        self._writing = False

    def called(self) -> None:
        """A call began that may change the state."""
        self._changed = True

    @property
    def next_due(self) -> float | None:
        """When the next one is to be written; None: not before another call comes, or while one is being written."""
        return self._due if self._changed and not self._writing and self._due < math.inf else None

    def is_due(self, now: float) -> bool:
        """Whether one is to be written now."""
        return self.next_due is not None and now >= self._due

    def begun(self, now: float) -> None:
        """The state is being taken; what calls change from here on is for the next one."""
        self._begun = now
        self._changed = False
        self._writing = True

    def ended(self, now: float, written: bool = True) -> None:
        """It has been written, or could not be: then it is tried again after the same time."""
        self._writing = False
        self._changed = self._changed or not written
        if self._interval_s is not None:
            self._due = self._begun + self._interval_s
        else:
            self._due = now + max(1.0, 20.0 * (now - self._begun))


# Files


def _paths(folder: Path, name: str, replica: int) -> tuple[Path, Path, Path]:
    stem = f"{urllib.parse.quote(name, safe='')}.{replica}"
    return folder / f"{stem}.checkpoint", folder / f"{stem}.previous", folder / f"{stem}.writing"


def _sizes(payload: Payload) -> tuple[int, ...]:
    return (len(payload.pickle), *(buffer.nbytes for buffer in payload.buffers))


def _write(path: Path, header: _Header, payload: Payload) -> None:
    encoded = msgspec.json.encode(header)
    parts: Sequence[bytes | memoryview] = (encoded, payload.pickle, *payload.buffers)
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with open(fd, "wb") as file:
        file.write(_PREFIX.pack(_MAGIC, _FORMAT, len(encoded), digest.digest()))
        for part in parts:
            file.write(part)
        file.flush()
        os.fsync(fd)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder last through a loss of power."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _read(path: Path, name: str, replica: int) -> tuple[_Header, list[bytearray]]:
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        facts = os.fstat(file.fileno())
        if not stat.S_ISREG(facts.st_mode) or facts.st_uid != os.geteuid() or facts.st_mode & 0o022:
            raise PermissionError(
                f"{path} is not used: it holds a pickle, which runs code, so it must be a file of user {os.geteuid()} "
                f"that nobody else may write to; it is of user {facts.st_uid}, mode {stat.filemode(facts.st_mode)}"
            )
        return _read_checked(file, facts.st_size, path, name, replica)


def _read_checked(
    file: BufferedReader, size_bytes: int, path: Path, name: str, replica: int
) -> tuple[_Header, list[bytearray]]:
    def corrupt(why: str) -> CheckpointCorrupt:
        return CheckpointCorrupt(f"{path} is damaged: {why}", path=str(path))

    prefix = file.read(_PREFIX.size)
    if len(prefix) < _PREFIX.size:
        raise corrupt(f"it ends after {size_bytes} bytes")
    magic, version, header_bytes, digest = _PREFIX.unpack(prefix)
    if magic != _MAGIC:
        raise corrupt("it does not begin like a checkpoint")
    if version != _FORMAT:
        raise corrupt(f"it is of format {version}, and this version of Ropewalk reads format {_FORMAT}")
    if _PREFIX.size + header_bytes > size_bytes:
        raise corrupt(f"it ends after {size_bytes} bytes, within its header of {header_bytes}")
    encoded = file.read(header_bytes)
    seen = hashlib.sha256(encoded)
    try:
        header = msgspec.json.decode(encoded, type=_Header)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise corrupt(f"its header cannot be read ({error})") from None
    expected = _PREFIX.size + header_bytes + sum(header.sizes)
    # Checked before any memory is taken for the parts.
    if expected != size_bytes or not header.sizes or min(header.sizes) < 0:
        raise corrupt(f"it is {size_bytes} bytes long, and its header speaks of {expected}")
    parts: list[bytearray] = []
    for part_bytes in header.sizes:
        part = bytearray(part_bytes)  # each in memory of its own: aligned, and arrays in it can be written to
        file.readinto(part)
        seen.update(part)
        parts.append(part)
    if seen.digest() != digest:
        raise corrupt("its bytes are not those that were written (SHA-256 differs)")
    if (header.name, header.replica) != (name, replica):
        raise corrupt(f"it is of {header.name}/{header.replica}, not of {name}/{replica}")
    return header, parts
