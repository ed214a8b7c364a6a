"""The saved state of a service: one file per replica, whole or not there, checked before it is used.

    save:  a staged file ─▶ fsync ─▶ NAME.0.checkpoint becomes NAME.0.previous ─▶ the new one becomes NAME.0.checkpoint
    load:  NAME.0.checkpoint, or if it is damaged or missing NAME.0.previous, with a note

A process may be killed, and the disk may fill up, at any moment: one whole
checkpoint is left in any case. A file is a `state_container` whose manifest is a
`Header` and whose parts are a pickle and its buffers. A pickle runs code, so only
files that belong to this user, and that nobody else may write to, are read.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import urllib.parse
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import msgspec

from ropewalk.atomic_files import StagedFile
from ropewalk.errors import CheckpointCorrupt
from ropewalk.state_container import Writable, damaged, read_container, write_container
from ropewalk.transport.frames import Part
from ropewalk.transport.serialization import Payload, loads
from ropewalk.trusted_files import make_private_folder, open_own


class Header(msgspec.Struct, frozen=True):
    """What a checkpoint says of itself."""

    name: str
    replica: int
    facts: dict[str, Any]
    """Plain data (JSON) that is read back with the state, such as the generation."""


@dataclasses.dataclass(frozen=True, slots=True)
class CheckpointBytes:
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
class RestoredState:
    """A state that was read back."""

    state: Any
    """What was saved: anything that pickle can hold."""
    facts: dict[str, Any]
    """What was known when it was saved, such as the generation."""
    path: Path
    """The file that it came from."""
    note: str
    """Why it is not the newest one; empty if it is."""


class CheckpointFile(msgspec.Struct, array_like=True, frozen=True):
    """A file that holds a checkpoint of a replica."""

    path: str
    size_bytes: int
    is_newest: bool


class Files(Protocol):
    """The checkpoints of one replica, wherever they lie."""

    def kept(self) -> list[CheckpointFile]:
        """The files that there are, the newest first."""
        ...

    def open(self, kept: CheckpointFile) -> BinaryIO:
        """Read one of them.

        Raises:
            FileNotTrusted: it belongs to another user, or others may write to it or to its folder.
        """
        ...

    def set_aside(self, kept: CheckpointFile) -> None:
        """It is damaged: keep it beside the others, but never use it again."""
        ...


class FolderFiles:
    """The checkpoints of a replica in a folder of this host."""

    def __init__(self, folder: Path, name: str, replica: int) -> None:
        stem = f"{urllib.parse.quote(name, safe='')}.{replica}"
        self.current, self.previous = folder / f"{stem}.checkpoint", folder / f"{stem}.previous"

    def kept(self) -> list[CheckpointFile]:
        """See `Files`."""
        found: list[CheckpointFile] = []
        for path in (self.current, self.previous):
            with contextlib.suppress(FileNotFoundError):
                found.append(CheckpointFile(str(path), os.lstat(path).st_size, path is self.current))
        return found

    def open(self, kept: CheckpointFile) -> BinaryIO:
        """See `Files`."""
        return open_own(self.current if kept.is_newest else self.previous)

    def set_aside(self, kept: CheckpointFile) -> None:
        """See `Files`."""
        path = self.current if kept.is_newest else self.previous
        path.replace(path.with_suffix(".damaged"))


class NewFile:
    """A checkpoint that is being written; until `keep` it is not there.

    One process at a time writes for a replica.

    Args:
        folder: made if it is missing, for this user only.
        name: of the node.
        replica: its index.

    Raises:
        OSError: it cannot be written; the checkpoints from before are still good.
        FileNotTrusted: other users may replace what lies in the folder.
    """

    def __init__(self, folder: Path, name: str, replica: int) -> None:
        self._label = f"{name}/{replica}"
        self._folder = folder
        make_private_folder(folder)
        self._files = FolderFiles(folder, name, replica)
        with self._explained():
            self._staged = StagedFile(self._files.current)
        self.file: BinaryIO = self._staged.file
        """Where it is written, by this process or by a child of it."""

    def write(self, header: Header, payload: Payload) -> None:
        """Write the checkpoint.

        Raises:
            OSError: the disk is full, ...
        """
        with self._explained():
            write(self.file, header, payload)

    def keep(self) -> Path:
        """It is written; it is brought to the disk and becomes the newest one. Returns the file.

        Raises:
            OSError: it does not; those from before are still good.
        """
        with self._explained():
            self._staged.commit(previous=self._files.previous)
        self._staged.close()
        return self._files.current

    def discard(self) -> None:
        """It will not be one; may be called twice, and after `keep`."""
        self._staged.close()

    @contextlib.contextmanager
    def _explained(self) -> Generator[None]:
        try:
            yield
        except OSError as error:
            error.add_note(
                f"The checkpoint of {self._label} was not saved in {self._folder}; the one before it is unchanged."
            )
            raise


def save(folder: Path, name: str, replica: int, payload: Payload, facts: dict[str, Any]) -> Path:
    """Write a checkpoint, and keep the one before it; see `NewFile`.

    Args:
        folder: made if it is missing.
        name: of the node.
        replica: its index.
        payload: the pickled state; its buffers lie in the state's own memory, which must not change meanwhile.
        facts: see `Header`.

    Returns:
        The file.

    Raises:
        OSError: it cannot be written (the disk is full, ...); the checkpoints from before are still good.
    """
    new = NewFile(folder, name, replica)
    try:
        new.write(Header(name, replica, facts), payload)
        return new.keep()
    finally:
        new.discard()


def load(folder: Path, name: str, replica: int) -> RestoredState | None:
    """The newest good checkpoint of a replica; None if it never had one.

    A damaged file that is not used is kept beside the others, with the ending ".damaged".

    Raises:
        CheckpointCorrupt: there are checkpoints, and each is damaged.
        FileNotTrusted: a file belongs to another user, or others may write to it or to its folder.
        Exception: what unpickling the state raised; a note names the file.
    """
    saved = find(FolderFiles(folder, name, replica), name, replica)
    return saved and RestoredState(saved.unpickled(), saved.facts, Path(saved.path), saved.note)


def find(files: Files, name: str, replica: int) -> CheckpointBytes | None:
    """As `load`, without unpickling anything.

    Raises:
        CheckpointCorrupt, FileNotTrusted: as `load`.
    """
    corrupt: list[tuple[CheckpointFile, CheckpointCorrupt]] = []
    for kept in files.kept():
        try:
            with files.open(kept) as file:
                header, parts = _read(file, kept, name, replica)
        except CheckpointCorrupt as error:
            corrupt.append((kept, error))
            continue
        note = ""
        if not kept.is_newest:
            why = str(corrupt[0][1]) if corrupt else "the newest one is missing; its writer was interrupted"
            note = f"{name}/{replica} goes back to the checkpoint before the newest: {why}"
        for other, _ in corrupt:
            files.set_aside(other)  # else the next save would take it for the one before
        return CheckpointBytes(parts, header.facts, kept.path, note)
    if corrupt:
        message = " and ".join(str(error) for _, error in corrupt)
        raise CheckpointCorrupt(
            f"no checkpoint of {name}/{replica} can be used: {message}; move them away to start without a state",
            path=corrupt[0][0].path,
        )
    return None


# Bytes


def write(file: Writable, header: Header, payload: Payload, unless: bytes = b"") -> bytes:
    """Write a checkpoint to any file.

    Args:
        file: open for writing.
        header: what the checkpoint says of itself.
        payload: the state.
        unless: a digest; nothing is written if that of this checkpoint is the same.

    Returns:
        The digest.
    """
    return write_container(file, msgspec.to_builtins(header), (payload.pickle, *payload.buffers), unless)


def _read(file: BinaryIO, kept: CheckpointFile, name: str, replica: int) -> tuple[Header, list[bytearray]]:
    manifest, parts = read_container(file, kept.size_bytes, kept.path)
    try:
        header = msgspec.convert(manifest, Header)
    except msgspec.ValidationError as error:
        raise damaged(kept.path, f"its manifest cannot be read ({error})") from None
    if not parts:
        raise damaged(kept.path, "there is no state in it")
    if (header.name, header.replica) != (name, replica):
        raise damaged(kept.path, f"it is of {header.name}/{header.replica}, not of {name}/{replica}")
    return header, parts
