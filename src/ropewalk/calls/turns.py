"""Decides which calls to an object may run, and which have to wait. Pure.

    arrive ─▶ run now, or wait in its lane ─▶ begin_next ─▶ finish
                                   └─▶ withdraw (cancelled, or its caller is gone)

Calls to one object run one at a time, in the order in which they arrive: they share one lane. A method marked
`@concurrent(n)` has a lane of its own, in which n calls run.

A call that was made, directly or not, by the call that has the turn is admitted at once: its caller waits for it, so it
could not get a turn otherwise. (It may then run beside code of the outer call, if that went on after asking for a
future.)
"""

from __future__ import annotations

import sys
from collections import deque
from typing import Generic, Protocol, TypeVar

from ropewalk.calls.messages import Origin
from ropewalk.errors import CallCycle

MAX_CHAIN = 64
"""A chain of calls longer than this is taken for an endless recursion."""


class Waiting(Protocol):
    """A call, as far as its turn is concerned."""

    key: int
    chain: tuple[Origin, ...]
    label: str


W = TypeVar("W", bound=Waiting)


FREE = sys.maxsize
"""The limit of a lane in which any number of calls may run."""


class CallLane(Generic[W]):
    """Calls of which a limited number run at a time."""

    __slots__ = ("limit", "running", "waiting")

    def __init__(self, limit: int = 1) -> None:
        self.limit: int = limit
        self.running: dict[int, W] = {}
        self.waiting: deque[W] = deque()

    def arrive(self, call: W) -> bool:
        """Note that a call has arrived; return whether it may run now, which begins it. Otherwise it waits.

        Raises:
            CallCycle: its chain contains a cycle.
        """
        if not self.running and not self.waiting:
            self.running[call.key] = call
            return True
        if call.chain:
            check_depth(call)
            if self.holds_caller_of(call):
                self.running[call.key] = call
                return True
        if len(self.running) < self.limit and not self.waiting:
            self.running[call.key] = call
            return True
        self.waiting.append(call)
        return False

    def begin_alone(self, call: W) -> bool:
        """The fast path of `arrive`: whether a call has begun because the lane is empty."""
        if self.waiting or (self.running and self.limit != FREE):
            return False
        self.running[call.key] = call
        return True

    def holds_caller_of(self, call: Waiting) -> bool:
        """Whether a call that runs here waits for this one."""
        return any(origin.key in self.running for origin in call.chain)

    def finish(self, call: W) -> bool:
        """Note that a call has ended; return whether another one may begin now."""
        del self.running[call.key]
        return bool(self.waiting) and len(self.running) < self.limit

    def begin_next(self) -> W | None:
        """Begin and return the next call that may run; None if none waits or none may."""
        if not self.waiting or len(self.running) >= self.limit:
            return None
        call = self.waiting.popleft()
        self.running[call.key] = call
        return call

    def withdraw(self, call: W) -> bool:
        """Remove a waiting call; False if it does not wait, or no longer."""
        try:
            self.waiting.remove(call)
        except ValueError:
            return False
        return True


def check_depth(call: Waiting) -> None:
    """Refuse a call whose chain is longer than `MAX_CHAIN`.

    Raises:
        CallCycle: its chain contains a cycle.
    """
    if call.chain and call.chain[-1].depth >= MAX_CHAIN:
        line = _line(call.chain)
        raise CallCycle(_going_round(line, call.label), chain=(*line, call.label))


def _line(chain: tuple[Origin, ...]) -> list[str]:
    """One line of calls from the outermost to the last; the chain of a batch holds those of all its calls."""
    line = [chain[-1]]
    for origin in reversed(chain):
        if origin.depth == line[-1].depth - 1:
            line.append(origin)
    return [origin.label for origin in reversed(line)]


def _going_round(line: list[str], label: str) -> str:
    # The cycle itself: from the previous call of the same method.
    start = max((at for at, made in enumerate(line) if made == label), default=0)
    circle = " → ".join([*line[start:], label])
    return (
        f"{label} was called by a chain of {len(line)} calls that each wait for the next one, which goes round: "
        f"{circle}. Let one of them return before the next call is made, or use .send(), which does not wait"
    )
