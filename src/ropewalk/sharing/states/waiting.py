"""The words in which states of shared objects speak: who asks, which call waits, and what a call ends with.

A state is a small machine without sockets, threads and clocks. Each of its remote methods takes the waiter of the call
and returns the outcomes of ALL calls that end now; a call that has none among them waits.

    get(waiter 1)        -> []                                    waits
    put(waiter 2, item)  -> [CallOutcome(waiter 2), CallOutcome(waiter 1, item, lent=True)]
    taken(waiter 1)      -> []                                    the item has arrived, and is nobody's loss any more
    give_up(waiter 1, ...), party_gone(process, name)             ... or it has not, and goes back
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol


@dataclass(frozen=True, slots=True)
class Party:
    """Who asks: a thread of a process."""

    process: str
    """One connection of one process; unique."""

    name: str = field(compare=False)
    """For people: "Process-3 (pid 12 on n2)"."""

    thread: int = 0
    """The thread that asks, where that matters: locks, conditions and barriers belong to threads."""


@dataclass(frozen=True, slots=True, eq=False)
class Waiter:
    """One call under way; equal to nothing but itself."""

    party: Party


@dataclass(frozen=True, slots=True)
class CallOutcome:
    """What a call ends with."""

    waiter: Waiter

    value: Any = None
    """What it returns: plain values, or an item of a user, which nobody here looks into."""

    more: Sequence[Any] = ()
    """Items that its caller may take without asking, after the value."""

    error: Exception | None = None
    """What it raises."""

    lent: bool = False
    """Whether the value counts as taken only when `taken(waiter)` comes: items of queues and messages of pipes, but
    also locks and permits, which would be lost with a caller that was interrupted in just that moment."""


class SizedItem(Protocol):
    """What users put into queues and pipes; opaque but for its size."""

    @property
    def size_bytes(self) -> int:
        """How much it weighs."""
        ...

    @property
    def is_light(self) -> bool:
        """Whether it may travel with others."""
        ...


class ItemLease(Protocol):
    """What a caller and the depot know of items, or of places for items, that are lent many at once.

    The first one counts as begun.
    """

    def open(self) -> None:
        """Begin to lend."""
        ...

    def close(self) -> int:
        """Take back what was not begun; returns how many were. May be called twice."""
        ...

    def watch(self) -> None:
        """Want to hear of the next one that is begun; one may have been begun before, so look at `num_begun` now."""
        ...

    @property
    def num_begun(self) -> int:
        """How many were begun by now."""
        ...


@dataclass(frozen=True, slots=True)
class Passed:
    """A value that is a descriptor: callers on this host get a duplicate, and all others None."""

    fd: int


class SharedState(Protocol):
    """What every state promises, beside its remote methods `method(waiter, *args) -> list[CallOutcome]`."""

    METHODS: ClassVar[frozenset[str]]
    """The names of its remote methods."""

    SEALED: ClassVar[frozenset[str]]
    """Those of them whose last argument is an opaque item."""

    def give_up(self, waiter: Waiter, timed_out: bool) -> list[CallOutcome]:
        """Hear that a call ends, or that what was lent to it has not arrived.

        Args:
            waiter: the call. One that has ended already is passed over.
            timed_out: its time is over: it ends with what its method says about that. Otherwise it was cancelled and
                gets no outcome.
        """
        ...

    def taken(self, waiter: Waiter) -> list[CallOutcome]:
        """Hear that what was lent to this call has arrived."""
        ...

    def party_gone(self, process: str, name: str) -> list[CallOutcome]:
        """Hear that a process is gone: its calls are forgotten, what was lent to it comes back, what it held is free.

        Args:
            process: `Party.process` of its calls.
            name: what to call it towards people.
        """
        ...
