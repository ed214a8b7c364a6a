"""The launcher's end of `LauncherStore`: it writes and reads the checkpoints of services on other hosts, in pieces."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from ropewalk.program.checkpoints import FolderFiles, NewFile
from ropewalk.program.messages import (
    FindState,
    ReadState,
    SaveState,
    SetStateAside,
    StateAnswer,
    StateOrder,
    UnitName,
)
from ropewalk.program.state_stores import PIECE_BYTES
from ropewalk.transport.failures import failure_of
from ropewalk.transport.frames import Part

_END_S = 10.0
"""Seconds for which the end of a program waits for checkpoints that are being written."""


class StateArchive:
    """Reads and writes in one thread, in the order of the requests.

    So a restarted service finds the state that its predecessor saved last, however slow the disk is.

    Args:
        folder: as of `checkpoints.NewFile`.
        answer: sends a unit an answer; called in that thread.
    """

    def __init__(self, folder: Path, answer: Callable[[UnitName, StateAnswer, Sequence[Part]], object]) -> None:
        self._folder = folder
        self._answer = answer
        self._orders: queue.SimpleQueue[tuple[StateOrder, Sequence[Part]] | None] = queue.SimpleQueue()
        self._new: dict[tuple[str, int], NewFile] = {}
        """The checkpoints that are being written, by node and replica."""
        self._thread: threading.Thread | None = None

    def hear(self, order: StateOrder, parts: Sequence[Part]) -> None:
        """Take a unit's request to save or read a state; from the loop's thread."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="ropewalk-states", daemon=True)
            self._thread.start()
        self._orders.put((order, parts))

    def close(self) -> None:
        """Write the checkpoints that have arrived, and end."""
        if self._thread:
            self._orders.put(None)
            self._thread.join(_END_S)

    def _serve(self) -> None:
        while (received := self._orders.get()) is not None:
            order, parts = received
            try:
                answer, found = self._obey(order, parts)
            except Exception as error:  # the error is sent to the service
                answer, found = StateAnswer(order.number, failure=failure_of(error, __name__)), ()
            self._answer(order.name, answer, found)
        for new in self._new.values():
            new.discard()

    def _obey(self, order: StateOrder, parts: Sequence[Part]) -> tuple[StateAnswer, Sequence[Part]]:
        answer = StateAnswer(order.number)
        files = FolderFiles(self._folder, order.node, order.name.replica)
        match order:
            case SaveState():
                self._save(order, parts)
            case FindState():
                return StateAnswer(order.number, files.kept()), ()
            case SetStateAside():
                files.set_aside(order.file)
            case ReadState():
                file, _ = files.open(order.file)
                with file:
                    file.seek(order.offset)
                    return answer, [file.read(min(order.size_bytes, PIECE_BYTES))]
        return answer, ()

    def _save(self, order: SaveState, parts: Sequence[Part]) -> None:
        key = order.node, order.name.replica
        if order.step in ("begin", "drop") and (former := self._new.pop(key, None)):
            former.discard()  # of a process that was killed while it sent it
        if order.step == "begin":
            self._new[key] = NewFile(self._folder, *key)
        elif order.step != "drop":
            new = self._new[key]
            for part in parts:
                new.file.write(part)
            if order.step == "keep":
                self._new.pop(key).keep()


__all__ = ["StateArchive"]
