"""The types that states of shared objects use: the party that calls, the waiting call, and the outcome of a call.

A state is a small machine without sockets, threads and clocks. Each of its remote methods takes the waiter of the call
and returns the outcomes of ALL calls that end now; a call without an outcome among them waits.

    get(waiter 1)        -> []                                    waits
    put(waiter 2, item)  -> [CallOutcome(waiter 2), CallOutcome(waiter 1, item, lent=True)]
    taken(waiter 1)      -> []                                    the item has arrived, and cannot come back any more
    give_up(waiter 1, ...), party_gone(process, name)             ... or it has not, and goes back
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol


@dataclass(frozen=True, slots=True)
class Party:
    """The caller: a thread of a process."""

    process: str
    """One connection of one process; unique."""

    name: str = field(compare=False)
    """Its name in messages: "Process-3 (pid 12 on n2)"."""

    thread: int = 0
    """The calling thread, where that matters: locks, conditions and barriers belong to threads."""


WaiterKey = tuple[int, int, int]
"""How a call is known outside of the process that keeps it: the number of its process, a number there, its thread."""


class Waiters(Protocol):
    """Finds calls, and threads that call."""

    def waiter(self, key: WaiterKey) -> Waiter:
        """Return a call by its key."""
        ...

    def party(self, process: int, thread: int) -> Party:
        """Return a thread of a process by the number of the process."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Waiter:
    """A call under way; equal only to itself."""

    party: Party

    @property
    def key(self) -> WaiterKey:
        """How it is known outside of this process; calls of `recorded` states have one."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class CallOutcome:
    """The outcome of a call."""

    waiter: Waiter

    value: Any = None
    """The result: plain values, or an opaque item of a user."""

    more: Sequence[Any] = ()
    """Further items that its caller may take without asking."""

    error: Exception | None = None
    """The exception to raise."""

    lent: bool = False
    """Whether the value counts as taken only when `taken(waiter)` comes: items of queues and messages of pipes, but
    also locks and permits, which would be lost with a caller that was interrupted in just that moment."""


class SizedItem(Protocol):
    """An item in a queue or pipe; opaque except for its size."""

    @property
    def size_bytes(self) -> int:
        """Its size in bytes."""
        ...

    @property
    def is_light(self) -> bool:
        """Whether it is small enough to be batched with others."""
        ...


class ItemLease(Protocol):
    """The memory in which a caller and the depot share the state of several lent items, or places for items.

    The first one counts as begun.
    """

    def open(self) -> None:
        """Start lending."""
        ...

    def close(self) -> int:
        """Take back those that were not begun; returns how many were. May be called twice."""
        ...

    def watch(self) -> None:
        """Ask to be told of the next one that is begun; one may have been begun before, so read `num_begun` now."""
        ...

    @property
    def num_begun(self) -> int:
        """The number that were begun so far."""
        ...


@dataclass(frozen=True, slots=True)
class Passed:
    """A value that is a descriptor: callers on this host get a duplicate, all others None."""

    fd: int


class SharedState(Protocol):
    """The interface of every state, besides its remote methods `method(waiter, *args) -> list[CallOutcome]`."""

    METHODS: ClassVar[frozenset[str]]
    """The names of its remote methods."""

    SEALED: ClassVar[frozenset[str]]
    """The remote methods whose last argument is an opaque item."""

    def give_up(self, waiter: Waiter, timed_out: bool) -> list[CallOutcome]:
        """End a call, or handle that the value lent to it has not arrived.

        Args:
            waiter: the call. One that has ended already is ignored.
            timed_out: its timeout has passed: it ends as its method says for that case. Otherwise it was cancelled and
                gets no outcome.
        """
        ...

    def taken(self, waiter: Waiter) -> list[CallOutcome]:
        """Record that the value lent to this call has arrived."""
        ...

    def party_gone(self, process: str, name: str) -> list[CallOutcome]:
        """Handle the end of a process: drop its calls, take back the values lent to it, and free what it held.

        Args:
            process: `Party.process` of its calls.
            name: its name in messages.
        """
        ...
