"""Which calls of a stream an object has done, so that one that comes again is answered, and not done again. Pure.

    caller: numbers its calls ── stream, sequence, which are answered ──▶ arrive ─▶ NEW    do it, then `done`
                                                                              ├─▶ RUNS   answer both when it is done
                                                                              ├─▶ Done   the answer from then
                                                                              └─▶ OLD    nobody waits for it

A stream is one life of one caller. What was done is part of the object's state: it is saved with it and given back with
it, so after a restart the calls that the state does not contain are done again, and no others. Answers are kept until
their caller says that it has them, which it does with its next call.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ropewalk.transport.failures import Failure


class CallStanding(enum.Enum):
    """How a call that has come stands."""

    NEW = "it is to be done"
    RUNS = "it came before, and is being done"
    OLD = "its caller has its answer, or lives no longer"


class Done(msgspec.Struct, array_like=True, frozen=True):
    """The answer to a call that was done."""

    parts: list[bytes]
    """Of the value."""
    failure: Failure | None = None
    """What it raised instead."""


@dataclass(frozen=True, slots=True)
class CallName:
    """A call among all calls that an object ever gets."""

    owner: str
    """The caller, in all its lives."""
    generation: int
    """Which of its lives."""
    sequence: int


@dataclass(slots=True)
class _Stream:
    generation: int
    acked: int = 0
    done: dict[int, Done] = field(default_factory=dict[int, Done])
    running: set[int] = field(default_factory=set[int])


class OnceTable:
    """The streams of one object. The caller of its methods sees to it that they do not run beside each other."""

    def __init__(self) -> None:
        self._streams: dict[str, _Stream] = {}

    def arrive(self, name: CallName, acked: int, also_acked: Sequence[int] = ()) -> CallStanding | Done:
        """A call has come.

        Args:
            name: of the call.
            acked: its caller has the answers to all calls up to this number.
            also_acked: and to these.
        """
        stream = self._streams.get(name.owner)
        if stream is None or stream.generation < name.generation:
            stream = self._streams[name.owner] = _Stream(name.generation)
        if stream.generation > name.generation:
            return CallStanding.OLD
        if acked > stream.acked:
            stream.acked = acked
            stream.done = {sequence: done for sequence, done in stream.done.items() if sequence > acked}
        for sequence in also_acked:
            stream.done.pop(sequence, None)
        if name.sequence <= stream.acked:
            return CallStanding.OLD
        if name.sequence in stream.running:
            return CallStanding.RUNS
        if name.sequence not in stream.done:
            stream.running.add(name.sequence)
            return CallStanding.NEW
        return stream.done[name.sequence]

    def done(self, name: CallName, answer: Done) -> None:
        """A call was done."""
        stream = self._of(name)
        if stream:
            stream.running.discard(name.sequence)
            if name.sequence > stream.acked:
                stream.done[name.sequence] = answer

    def undone(self, name: CallName) -> None:
        """A call has ended without having been done: if it comes again, it is new."""
        stream = self._of(name)
        if stream:
            stream.running.discard(name.sequence)

    def state_dict(self) -> dict[str, Any]:
        """What was done so far; calls that run are not among it. Calls may arrive in another thread meanwhile."""
        streams = list(self._streams.items())  # one step, as the copies of the answers are
        return {owner: (stream.generation, stream.acked, dict(stream.done)) for owner, stream in streams}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self._streams = {
            owner: _Stream(generation, acked, dict(done)) for owner, (generation, acked, done) in state.items()
        }

    def __len__(self) -> int:
        return len(self._streams)

    def _of(self, name: CallName) -> _Stream | None:
        stream = self._streams.get(name.owner)
        return stream if stream and stream.generation == name.generation else None


__all__ = ["CallName", "CallStanding", "Done", "OnceTable"]
