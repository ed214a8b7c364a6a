"""The record of the calls of a stream that an object has done: a repeated call is answered and not run again. Pure.

    caller: numbers its calls ── stream, sequence, answered ones ──▶ arrive ─▶ NEW    run it, then `done`
                                                                           ├─▶ RUNS   answer both when it is done
                                                                           ├─▶ Done   the recorded answer
                                                                           └─▶ OLD    its answer is no longer wanted

A stream belongs to one generation of one caller. The record is part of the object's state: it is saved and restored
with it, so after a restart exactly the calls that the state does not contain run again. An answer is kept until its
caller acknowledges it, which it does with its next call.
"""

from __future__ import annotations

import enum
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ropewalk.transport.failures import Failure


class CallStanding(enum.Enum):
    """The standing of a call that has arrived."""

    NEW = "it is to be done"
    RUNS = "it came before, and is being done"
    OLD = "its caller has its answer, or lives no longer"


class Done(msgspec.Struct, array_like=True, frozen=True):
    """The answer to a call that has run."""

    parts: list[bytes]
    """The pickled value."""
    failure: Failure | None = None
    """The exception, if it raised one."""


@dataclass(frozen=True, slots=True)
class CallName:
    """The name of a call, unique among all calls that an object ever gets."""

    owner: str
    """The caller, the same in all of its generations."""
    generation: int
    """The caller's generation."""
    sequence: int


@dataclass(slots=True)
class _Stream:
    generation: int
    acked: int = 0
    also_acked: NumberRuns = field(default_factory=lambda: NumberRuns())
    """Later calls that are over, too. Not saved: what could still arrive is on links that end with this process."""
    done: dict[int, Done] = field(default_factory=dict[int, Done])
    running: set[int] = field(default_factory=set[int])

    def is_over(self, sequence: int) -> bool:
        """Whether the caller wants no answer to this call any more."""
        return sequence <= self.acked or sequence in self.also_acked


class NumberRuns:
    """A set of numbers, kept as runs of neighbours: all but a few numbers up to the last one are in it."""

    def __init__(self) -> None:
        self._bounds: list[int] = []
        """The first number of each run, and the one behind its last."""

    @property
    def num_runs(self) -> int:
        """How many runs there are."""
        return len(self._bounds) // 2

    def __contains__(self, number: int) -> bool:
        return bisect_right(self._bounds, number) % 2 == 1

    def add(self, number: int) -> None:
        """Add a number; may be called twice."""
        bounds, at = self._bounds, bisect_right(self._bounds, number)
        if at % 2 == 0:
            ends_before, begins_behind = bounds[at - 1 : at] == [number], bounds[at : at + 1] == [number + 1]
            run = [number] * (not ends_before) + [number + 1] * (not begins_behind)
            bounds[at - ends_before : at + begins_behind] = run

    def drop_to(self, last: int) -> None:
        """Remove all numbers up to one."""
        self._bounds = [last + 1] * (last + 1 in self) + self._bounds[bisect_right(self._bounds, last + 1) :]


class OnceTable:
    """The streams of one object. Its methods must not run at the same time; the caller provides the locking."""

    def __init__(self) -> None:
        self._streams: dict[str, _Stream] = {}

    def arrive(self, name: CallName, acked: int, also_acked: Sequence[int] = ()) -> CallStanding | Done:
        """Note that a call has arrived, and return its standing, or its answer if it has run.

        Args:
            name: of the call.
            acked: its caller has the answers to all calls up to this number.
            also_acked: further calls to which it has the answers.
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
            stream.also_acked.add(sequence)
        stream.also_acked.drop_to(stream.acked)
        if stream.is_over(name.sequence):  # it was late, on a link that its caller has given up
            return CallStanding.OLD
        if name.sequence in stream.running:
            return CallStanding.RUNS
        if name.sequence not in stream.done:
            stream.running.add(name.sequence)
            return CallStanding.NEW
        return stream.done[name.sequence]

    def done(self, name: CallName, answer: Done) -> None:
        """Record the answer to a call that has run."""
        stream = self._of(name)
        if stream:
            stream.running.discard(name.sequence)
            if not stream.is_over(name.sequence):
                stream.done[name.sequence] = answer

    def undone(self, name: CallName) -> None:
        """Note that a call ended without having run: if it arrives again, it is new."""
        stream = self._of(name)
        if stream:
            stream.running.discard(name.sequence)

    def state_dict(self) -> dict[str, Any]:
        """The record so far, without calls that still run. Calls may arrive in another thread meanwhile."""
        streams = list(self._streams.items())  # one step, as are the copies of the answers
        return {owner: (stream.generation, stream.acked, dict(stream.done)) for owner, stream in streams}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the record."""
        self._streams = {
            owner: _Stream(generation, acked, done=dict(done)) for owner, (generation, acked, done) in state.items()
        }

    def __len__(self) -> int:
        return len(self._streams)

    def _of(self, name: CallName) -> _Stream | None:
        stream = self._streams.get(name.owner)
        return stream if stream and stream.generation == name.generation else None


__all__ = ["CallName", "CallStanding", "Done", "OnceTable"]
