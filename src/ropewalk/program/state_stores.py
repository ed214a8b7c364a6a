"""Where the states of services are kept: with the launcher, so that they outlive the host of a service.

    on its host:    KeptState ─▶ FolderStore ─▶ files in the run folder
    elsewhere:      KeptState ─▶ LauncherStore ══ SaveState, FindState ══▶ StateArchive ─▶ the same files
                                               ◀═════ StateAnswer ════════

Nothing is written on hosts other than the launcher's, and the launcher never unpickles a state.
"""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

from ropewalk.errors import LinkClosed, RopewalkError
from ropewalk.processes.bell import Bell
from ropewalk.program import checkpoints
from ropewalk.program.checkpoints import Saved
from ropewalk.program.messages import FindState, SaveState, StateAnswer, UnitName
from ropewalk.program.node_context import NodeContext
from ropewalk.quantities import shown_size
from ropewalk.transport.failures import failure_of, rebuild_error
from ropewalk.transport.frames import Part
from ropewalk.transport.serialization import Payload

#: A state is one message to the launcher, which holds it in memory until it is written.
MOST_BYTES = 1 << 30
#: How long the end of a program waits for what is being written.
_END_S = 10.0


class StateTooLarge(RopewalkError):
    """A state is larger than what a service on another host may send to the launcher."""


class StateStore(Protocol):
    """Keeps the states of replicas; what is saved is whole, or the one before it is still there."""

    def save(self, context: NodeContext, payload: Payload, facts: dict[str, Any]) -> None:
        """Keep a state; returns when it is kept.

        Raises:
            OSError: it cannot be written.
            StateTooLarge: it cannot be sent.
            LinkClosed: the launcher is gone.
        """

    def find(self, context: NodeContext) -> Saved | None:
        """The state that was kept last, if there is one.

        Raises:
            CheckpointCorrupt: no kept state of it is whole.
            LinkClosed: the launcher is gone.
        """


class FolderStore:
    """Keeps states in a folder of this host."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def save(self, context: NodeContext, payload: Payload, facts: dict[str, Any]) -> None:
        """See `StateStore`."""
        checkpoints.save(self._folder, context.name, context.replica, payload, facts)

    def find(self, context: NodeContext) -> Saved | None:
        """See `StateStore`."""
        return checkpoints.find(self._folder, context.name, context.replica)


class LauncherStore:
    """Has the launcher keep states; `hear` and `end` are for the loop's thread, the rest for any other.

    Args:
        say: sends the launcher a message with its parts.
    """

    def __init__(self, say: Callable[[msgspec.Struct, Sequence[Part]], object]) -> None:
        self._say = say
        self._numbers = itertools.count(1)
        self._answers: dict[int, tuple[StateAnswer, list[Part]]] = {}
        self._news = Bell()
        self._ended = ""

    def save(self, context: NodeContext, payload: Payload, facts: dict[str, Any]) -> None:
        """See `StateStore`."""
        if payload.size_bytes > MOST_BYTES:
            raise StateTooLarge(
                f"state_dict() gave {shown_size(payload.size_bytes)}, and a service on another host than the "
                f"launcher's sends at most {shown_size(MOST_BYTES)}; write what is large to a shared folder, and give "
                "its path as the state"
            )
        number = next(self._numbers)
        # The buffers lie in the state's own memory: they must not change until the answer says that all is there.
        self._ask(SaveState(number, context.unit, context.name, facts), number, [payload.pickle, *payload.buffers])

    def find(self, context: NodeContext) -> Saved | None:
        """See `StateStore`."""
        number = next(self._numbers)
        answer, parts = self._ask(FindState(number, context.unit, context.name), number)
        if not answer.found:
            return None
        writable = [bytearray(part) if isinstance(part, bytes) else part for part in parts]
        return Saved(writable, answer.facts, answer.path, answer.note)

    def hear(self, answer: StateAnswer, parts: list[Part]) -> None:
        """The launcher answers."""
        self._answers[answer.number] = answer, parts
        self._news.ring()

    def end(self, why: str) -> None:
        """No answers will come any more."""
        self._ended = why
        self._news.ring()

    def _ask(self, question: msgspec.Struct, number: int, parts: Sequence[Part] = ()) -> tuple[StateAnswer, list[Part]]:
        self._say(question, parts)
        self._news.wait_until(lambda: number in self._answers or self._ended)
        if number not in self._answers:
            raise LinkClosed(f"the launcher, which keeps states, is gone: {self._ended}")
        answer, found = self._answers.pop(number)
        if answer.failure is not None:
            raise rebuild_error(answer.failure, "the launcher")
        return answer, found


class StateArchive:
    """The launcher's end of `LauncherStore`: one thread reads and writes, in the order in which it was asked.

    So a service that is started again finds what its predecessor saved last, however slow the disk is.

    Args:
        folder: as of `checkpoints.save`.
        answer: sends a unit an answer; called in that thread.
    """

    def __init__(self, folder: Path, answer: Callable[[UnitName, StateAnswer, Sequence[Part]], object]) -> None:
        self._folder = folder
        self._answer = answer
        self._orders: queue.SimpleQueue[tuple[SaveState | FindState, Sequence[Part]] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def hear(self, order: SaveState | FindState, parts: Sequence[Part]) -> None:
        """A unit saves a state, or asks for it; from the loop's thread."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="ropewalk-states", daemon=True)
            self._thread.start()
        self._orders.put((order, parts))

    def close(self) -> None:
        """Write what has come, and end."""
        if self._thread:
            self._orders.put(None)
            self._thread.join(_END_S)

    def _serve(self) -> None:
        while (order := self._orders.get()) is not None:
            message, parts = order
            try:
                answer, found = self._save(message, parts) if isinstance(message, SaveState) else self._find(message)
            except Exception as error:  # the service shall hear of it
                answer, found = StateAnswer(message.number, False, {}, "", "", failure_of(error, __name__)), ()
            self._answer(message.name, answer, found)

    def _save(self, order: SaveState, parts: Sequence[Part]) -> tuple[StateAnswer, Sequence[Part]]:
        pickled, *buffers = parts
        payload = Payload(bytes(pickled), tuple(memoryview(buffer) for buffer in buffers), frozenset())
        checkpoints.save(self._folder, order.node, order.name.replica, payload, order.facts)
        return StateAnswer(order.number, True, {}, "", "", None), ()

    def _find(self, order: FindState) -> tuple[StateAnswer, Sequence[Part]]:
        saved = checkpoints.find(self._folder, order.node, order.name.replica)
        if saved is None:
            return StateAnswer(order.number, False, {}, "", "", None), ()
        return StateAnswer(order.number, True, saved.facts, saved.path, saved.note, None), saved.parts


__all__ = ["MOST_BYTES", "FolderStore", "LauncherStore", "StateArchive", "StateStore", "StateTooLarge"]
