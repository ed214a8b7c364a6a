"""The saved state of a service: one file per replica, complete or absent, verified before it is used.

    save:  a staged file ─▶ fsync ─▶ NAME.0.checkpoint becomes NAME.0.previous ─▶ the new one becomes NAME.0.checkpoint
    load:  NAME.0.checkpoint, or if it is damaged or missing NAME.0.previous, with a note

A process may be killed, and the disk may fill up, at any moment: one complete checkpoint is left in any case. A file is
a `state_container` whose manifest is a `Header` and whose parts are a pickle and its buffers. A pickle runs code, so
only files are read that belong to this user and that no other user may write to.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import urllib.parse
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import msgspec

from ropewalk.atomic_files import StagedFile, told_of_room
from ropewalk.errors import CheckpointCorrupt
from ropewalk.state_container import Writable, damaged, read_container, write_container
from ropewalk.transport.frames import Part
from ropewalk.transport.serialization import Payload, loads
from ropewalk.trusted_files import make_private_folder, open_own


class Header(msgspec.Struct, frozen=True):
    """The manifest of a checkpoint."""

    name: str
    replica: int
    facts: dict[str, Any]
    """Plain data (JSON) that is read back with the state, such as the generation."""


@dataclasses.dataclass(frozen=True, slots=True)
class CheckpointBytes:
    """The bytes of a verified checkpoint, not yet unpickled."""

    parts: Sequence[Part]
    """The pickle and its buffers, each in memory of its own."""
    facts: dict[str, Any]
    """The facts stored when it was saved, such as the generation."""
    path: str
    """The file from which it was read."""
    note: str
    """The reason why it is not the newest one; empty if it is."""

    def unpickled(self) -> Any:
        """Unpickle the state.

        Raises:
            Exception: the error of unpickling it; a note names the file.
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
    """The saved state: any object that can be pickled."""
    facts: dict[str, Any]
    """The facts stored when it was saved, such as the generation."""
    path: Path
    """The file from which it was read."""
    note: str
    """The reason why it is not the newest one; empty if it is."""


class CheckpointFile(msgspec.Struct, array_like=True, frozen=True):
    """A file that holds a checkpoint of a replica."""

    path: str
    size_bytes: int
    is_newest: bool


class Files(Protocol):
    """The checkpoints of one replica, wherever they are stored."""

    def kept(self) -> list[CheckpointFile]:
        """The existing files, the newest first."""
        ...

    def open(self, kept: CheckpointFile) -> tuple[BinaryIO, int]:
        """Open one of them for reading; returns its size in bytes, too, as it may be another than that which was found.

        Raises:
            FileNotTrusted: it belongs to another user, or others may write to it or to its folder.
            FileNotFoundError: its writer has just given it another name.
        """
        ...

    def set_aside(self, kept: CheckpointFile) -> None:
        """Keep a damaged file beside the others, but never use it again."""
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

    def open(self, kept: CheckpointFile) -> tuple[BinaryIO, int]:
        """See `Files`."""
        file = open_own(self.current if kept.is_newest else self.previous)
        return file, os.fstat(file.fileno()).st_size

    def set_aside(self, kept: CheckpointFile) -> None:
        """See `Files`."""
        path = self.current if kept.is_newest else self.previous
        path.replace(path.with_suffix(".damaged"))


class NewFile:
    """A checkpoint that is being written; it does not exist for readers until `keep`.

    Only one process at a time writes for a replica.

    Args:
        folder: made if it is missing, for this user only.
        name: of the node.
        replica: its index.

    Raises:
        OSError: it cannot be written; the earlier checkpoints are still good.
        FileNotTrusted: other users may replace files in the folder.
    """

    def __init__(self, folder: Path, name: str, replica: int) -> None:
        self._label = f"{name}/{replica}"
        self._folder = folder
        make_private_folder(folder)
        self._files = FolderFiles(folder, name, replica)
        with self._explained():
            self._staged = StagedFile(self._files.current)
        self.file: Writable = _NamedFile(self._staged)
        """The open file, to be written by this process or by a child of it."""

    def write(self, header: Header, payload: Payload) -> None:
        """Write the checkpoint.

        Raises:
            OSError: the disk is full, ...
        """
        with self._explained():
            write(self.file, header, payload)

    def keep(self) -> Path:
        """Sync the written file to the disk, and make it the newest checkpoint. Returns the file.

        Raises:
            OSError: this fails; the earlier checkpoints are still good.
        """
        with self._explained(), self._staged:
            self._staged.commit(previous=self._files.previous)
        return self._files.current

    def discard(self) -> None:
        """Drop the file; may be called twice, and after `keep`."""
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


class _NamedFile:
    """A staged file, whose errors name it also where a child of this process writes to it."""

    def __init__(self, staged: StagedFile) -> None:
        self._staged = staged

    def write(self, data: Part) -> int:
        """Write all of `data`."""
        with told_of_room(self._staged.path, self._staged.file):
            return self._staged.file.write(data)

    def flush(self) -> None:
        """Hand to the kernel what is still in this process."""
        with told_of_room(self._staged.path, self._staged.file):
            self._staged.file.flush()


def save(
    folder: Path,
    name: str,
    replica: int,
    payload: Payload,
    facts: dict[str, Any],
    before_keeping: Callable[[], object] = lambda: None,
) -> Path:
    """Write a checkpoint, and keep the previous one; see `NewFile`.

    Args:
        folder: made if it is missing.
        name: of the node.
        replica: its index.
        payload: the pickled state; its buffers are in the state's own memory, which must not change meanwhile.
        facts: see `Header`.
        before_keeping: is called when all is written; if it raises, the checkpoints stay as they were.

    Returns:
        The file.

    Raises:
        OSError: it cannot be written (the disk is full, ...); the earlier checkpoints are still good.
    """
    new = NewFile(folder, name, replica)
    try:
        new.write(Header(name, replica, facts), payload)
        before_keeping()
        return new.keep()
    finally:
        new.discard()


def load(folder: Path, name: str, replica: int) -> RestoredState | None:
    """Load the newest good checkpoint of a replica; None if it never had one.

    A damaged file that is not used is kept beside the others, with the suffix ".damaged".

    Raises:
        CheckpointCorrupt: there are checkpoints, and each is damaged.
        FileNotTrusted: a file belongs to another user, or others may write to it or to its folder.
        Exception: the error of unpickling the state; a note names the file.
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
            file, size_bytes = files.open(kept)
            with file:
                header, parts = _read(file, kept.path, size_bytes, name, replica)
        except FileNotFoundError:  # a writer that lives has renamed it since: there are others now
            return find(files, name, replica)
        except CheckpointCorrupt as error:
            corrupt.append((kept, error))
            continue
        note = ""
        if not kept.is_newest:
            why = str(corrupt[0][1]) if corrupt else "the newest one is missing; its writer was interrupted"
            note = f"{name}/{replica} goes back to the checkpoint before the newest: {why}"
        for other, _ in corrupt:
            files.set_aside(other)  # otherwise the next save would take it for the previous one
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
        header: the manifest.
        payload: the state.
        unless: a digest; nothing is written if the digest of this checkpoint equals it.

    Returns:
        The digest.
    """
    return write_container(file, msgspec.to_builtins(header), (payload.pickle, *payload.buffers), unless)


def _read(file: BinaryIO, path: str, size_bytes: int, name: str, replica: int) -> tuple[Header, list[bytearray]]:
    manifest, parts = read_container(file, size_bytes, path)
    try:
        header = msgspec.convert(manifest, Header)
    except msgspec.ValidationError as error:
        raise damaged(path, f"its manifest cannot be read ({error})") from None
    if not parts:
        raise damaged(path, "there is no state in it")
    if (header.name, header.replica) != (name, replica):
        raise damaged(path, f"it is of {header.name}/{header.replica}, not of {name}/{replica}")
    return header, parts
