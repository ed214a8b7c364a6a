"""Which calls to an object may run, and which have to wait. Pure.

    arrive ─▶ run now, or wait in its lane ─▶ begin_next ─▶ finish
                                   └─▶ withdraw (cancelled, or its caller is gone)

Calls to one object run one at a time, in the order in which they arrive: they share
one lane. A method marked `@concurrent(n)` has a lane of its own, in which n run.

A call that was made, directly or not, by the one that has the turn is admitted at
once: its caller waits for it, so it could not have its turn otherwise. (It may then
run beside code of the outer call, if that went on after asking for a future.)
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

from ropewalk.calls.messages import Origin
from ropewalk.errors import CallCycle

#: A chain of calls that is longer than this will not end by itself.
MAX_CHAIN = 64


class Waiting(Protocol):
    """A call, as far as its turn is concerned."""

    key: int
    chain: tuple[Origin, ...]
    label: str


class Lane:
    """Calls of which a limited number run at a time."""

    __slots__ = ("limit", "running", "waiting")

    def __init__(self, limit: int = 1) -> None:
        self.limit = limit
        self.running: dict[int, Waiting] = {}
        self.waiting: deque[Waiting] = deque()

    def arrive(self, call: Waiting) -> bool:
        """Whether a new call may run now; it has begun then. Otherwise it waits.

        Raises:
            CallCycle: its chain goes round in circles.
        """
        if not self.running and not self.waiting:
            self.running[call.key] = call
            return True
        if call.chain:
            if len(call.chain) >= MAX_CHAIN:
                raise CallCycle(_going_round(call), chain=tuple(origin.label for origin in call.chain))
            if any(origin.key in self.running for origin in call.chain):
                self.running[call.key] = call
                return True
        if len(self.running) < self.limit and not self.waiting:
            self.running[call.key] = call
            return True
        self.waiting.append(call)
        return False

    def finish(self, call: Waiting) -> bool:
        """A call has ended; True if another one may begin now."""
        del self.running[call.key]
        return bool(self.waiting) and len(self.running) < self.limit

    def begin_next(self) -> Waiting | None:
        """The next call that may run, which has begun then; None if none waits or none may."""
        if not self.waiting or len(self.running) >= self.limit:
            return None
        call = self.waiting.popleft()
        self.running[call.key] = call
        return call

    def withdraw(self, call: Waiting) -> bool:
        """Forget a call that waits; False if it does not wait (any more)."""
        try:
            self.waiting.remove(call)
        except ValueError:
            return False
        return True


def _going_round(call: Waiting) -> str:
    labels = [origin.label for origin in call.chain]
    # The circle itself: from the last call back to where it was made before.
    start = max((at for at, label in enumerate(labels[:-1]) if label == labels[-1]), default=0)
    circle = " → ".join([*labels[start:-1], call.label])
    return (
        f"{call.label} was called by a chain of {len(labels)} calls that each wait for the next one, which goes round: "
        f"{circle}. Let one of them return before the next call is made, or use .send(), which does not wait"
    )
