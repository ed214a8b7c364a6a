"""Stores for the states of services, with the launcher, so that they outlive the host of a service.

    on its host:    KeptState ─▶ FolderStore ─▶ files in the run folder
    elsewhere:      KeptState ─▶ LauncherStore ══ SaveState, FindState, ReadState ══▶ StateArchive ─▶ the same files
                                               ◀══════════ StateAnswer ══════════════

Between hosts a file travels in pieces of 2 MiB, each of which is answered before the next one is sent: neither side
buffers more of it, and other messages get through in between. Nothing is written on hosts other than the launcher's,
and the launcher never unpickles a state.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import select
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import msgspec

from ropewalk.errors import LinkClosed
from ropewalk.processes.notifier import Notifier
from ropewalk.program.checkpoints import CheckpointBytes, CheckpointFile, Files, FolderFiles, NewFile, find
from ropewalk.program.messages import FindState, ReadState, SaveState, SetStateAside, StateAnswer
from ropewalk.program.node_context import NodeContext
from ropewalk.state_container import Writable
from ropewalk.transport.failures import rebuild_error
from ropewalk.transport.frames import Part

PIECE_BYTES = 2 << 20
"""Size of the pieces in which a checkpoint travels."""


class NewState(Protocol):
    """A checkpoint that is being written to a store; it does not exist for readers until `keep`."""

    @property
    def file(self) -> Writable:
        """The file to write to, here or in a forked child."""
        ...

    def expect_child(self) -> None:
        """Prepare for a forked child of this process, instead of the process itself, to write."""
        ...

    def follow(self, silent_s: float) -> None:
        """In the parent of a child that writes: pass on its data until the child has closed its end.

        Args:
            silent_s: timeout in seconds for each piece of data.

        Raises:
            TimeoutError: no data came for `silent_s` seconds.
            OSError, LinkClosed: the checkpoint cannot be stored.
        """
        ...

    def keep(self) -> object:
        """Sync the written checkpoint to the disk, and make it the newest.

        Raises:
            OSError, LinkClosed: this fails.
        """
        ...

    def discard(self) -> None:
        """Drop the checkpoint; may be called twice, and after `keep`."""
        ...


class StateStore(Protocol):
    """Stores the states of replicas; a checkpoint is stored completely, or the previous one remains."""

    def new(self, context: NodeContext) -> NewState:
        """Begin a checkpoint.

        Raises:
            OSError, LinkClosed: it cannot be stored.
        """
        ...

    def find(self, context: NodeContext) -> CheckpointBytes | None:
        """The state that was stored last, if there is one.

        Raises:
            CheckpointCorrupt: none of its stored states is undamaged.
            LinkClosed: the launcher is gone.
        """
        ...


class FolderStore:
    """Stores states in a folder of this host."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def new(self, context: NodeContext) -> NewState:
        """See `StateStore`."""
        return _InFolder(self._folder, context.name, context.replica)

    def find(self, context: NodeContext) -> CheckpointBytes | None:
        """See `StateStore`."""
        return find(FolderFiles(self._folder, context.name, context.replica), context.name, context.replica)


class _InFolder(NewFile):
    """A new file, which may be written by a child or by its parent."""

    def expect_child(self) -> None:
        """See `NewState`: the child has the file as well."""

    def follow(self, silent_s: float) -> None:
        """See `NewState`: the child writes the file itself."""


class LauncherStore:
    """Has the launcher store states; `hear` and `end` are for the loop's thread, the rest for any other.

    Args:
        say: sends the launcher a message with its parts.
    """

    def __init__(self, say: Callable[[msgspec.Struct, Sequence[Part]], object]) -> None:
        self._say = say
        self._numbers = itertools.count(1)
        self._answers: dict[int, tuple[StateAnswer, list[Part]]] = {}
        self._news = Notifier()
        self._ended = ""

    def new(self, context: NodeContext) -> NewState:
        """See `StateStore`."""
        return _WithLauncher(self, context)

    def find(self, context: NodeContext) -> CheckpointBytes | None:
        """See `StateStore`."""
        return find(_FilesOfLauncher(self, context), context.name, context.replica)

    def hear(self, answer: StateAnswer, parts: list[Part]) -> None:
        """Take an answer of the launcher."""
        self._answers[answer.number] = answer, parts
        self._news.ring()

    def end(self, why: str) -> None:
        """Fail all requests: no answers will come any more."""
        self._ended = why
        self._news.ring()

    def ask(self, make: Callable[[int], msgspec.Struct], parts: Sequence[Part] = ()) -> tuple[StateAnswer, list[Part]]:
        """Send the launcher a request, made with its number, and wait for the answer.

        Raises:
            LinkClosed: the launcher is gone.
            Exception: the launcher's own error.
        """
        number = next(self._numbers)
        self._say(make(number), parts)
        self._news.wait_until(lambda: number in self._answers or self._ended)
        if number not in self._answers:
            raise LinkClosed(f"the launcher, which keeps states, is gone: {self._ended}")
        answer, found = self._answers.pop(number)
        if answer.failure is not None:
            raise rebuild_error(answer.failure, "the launcher")
        return answer, found


class _WithLauncher:
    """A file that is written here, or by a child of this process, and stored by the launcher.

    Not a class of `io`, which would flush its buffer when it is garbage-collected, at any moment and in any thread.
    """

    def __init__(self, store: LauncherStore, context: NodeContext) -> None:
        self._store = store
        self._context = context
        self._held = bytearray()
        self._is_open = True
        self._pipe = -1
        self._into: BinaryIO | None = None
        self._send("begin")

    def expect_child(self) -> None:
        """See `NewState`."""
        self._pipe, into = os.pipe()
        self._into = os.fdopen(into, "wb")

    @property
    def file(self) -> Writable:
        """See `NewState`."""
        return self._into or self

    def write(self, data: Any) -> None:
        """Send data, as soon as there is enough of it."""
        view = memoryview(data).cast("B")
        while view.nbytes:
            taken = view[: PIECE_BYTES - len(self._held)]
            self._held += taken
            view = view[taken.nbytes :]
            if len(self._held) >= PIECE_BYTES:
                self.flush()

    def flush(self) -> None:
        """Send the buffered data."""
        held, self._held = self._held, bytearray()
        if held:
            self._send("go on", held)

    def follow(self, silent_s: float) -> None:
        """See `NewState`."""
        assert self._into
        self._into.close()  # the child has an end of its own
        poll = select.poll()
        poll.register(self._pipe, select.POLLIN)
        while poll.poll(1000 * silent_s):
            data = os.read(self._pipe, PIECE_BYTES)
            if not data:
                self.flush()
                return
            self.write(data)
        raise TimeoutError(f"the process that writes the state has written nothing for {silent_s:g} s")

    def keep(self) -> None:
        """See `NewState`."""
        self._send("keep")
        self._is_open = False

    def discard(self) -> None:
        """See `NewState`."""
        if self._is_open:
            self._is_open = False
            with contextlib.suppress(Exception):  # any error was reported before
                self._send("drop")
        if self._into:
            with contextlib.suppress(OSError):
                self._into.close()
            self._into = None
            os.close(self._pipe)

    def _send(self, step: Any, *parts: Part) -> None:
        context = self._context
        self._store.ask(lambda number: SaveState(number, context.unit, context.name, step), parts)


class _FilesOfLauncher(Files):
    """The checkpoints of a replica that the launcher stores."""

    def __init__(self, store: LauncherStore, context: NodeContext) -> None:
        self._store = store
        self._context = context

    def kept(self) -> list[CheckpointFile]:
        """See `Files`."""
        unit, node = self._context.unit, self._context.name
        return self._store.ask(lambda number: FindState(number, unit, node))[0].files

    def open(self, kept: CheckpointFile) -> tuple[BinaryIO, int]:
        """See `Files`."""
        return io.BufferedReader(_Reading(self._store, self._context, kept), PIECE_BYTES), kept.size_bytes

    def set_aside(self, kept: CheckpointFile) -> None:
        """See `Files`."""
        unit, node = self._context.unit, self._context.name
        self._store.ask(lambda number: SetStateAside(number, unit, node, kept))


class _Reading(io.RawIOBase):
    """A file that the launcher stores, read from its beginning to its end."""

    def __init__(self, store: LauncherStore, context: NodeContext, kept: CheckpointFile) -> None:
        super().__init__()
        self._store = store
        self._context = context
        self._kept = kept
        self._offset = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        target = memoryview(buffer).cast("B")[:PIECE_BYTES]
        unit, node = self._context.unit, self._context.name
        _, parts = self._store.ask(
            lambda number: ReadState(number, unit, node, self._kept, self._offset, target.nbytes)
        )
        size_bytes = memoryview(parts[0]).nbytes if parts else 0
        if size_bytes:
            target[:size_bytes] = parts[0]
            self._offset += size_bytes
        return size_bytes


__all__ = ["PIECE_BYTES", "FolderStore", "LauncherStore", "NewState", "StateStore"]
