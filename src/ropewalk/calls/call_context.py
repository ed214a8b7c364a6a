"""The context of the call that the running code serves: its chain, its deadline, whether its answer is still wanted.

    with rw.deadline(2.0):
        learner.step(batch)        # this call, and the calls that it makes, end within two seconds

The context belongs to the thread or asyncio task (`contextvars`); a thread that a method starts by itself begins
without one.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Callable, Generator
from contextvars import ContextVar
from numbers import Real
from typing import Protocol

from ropewalk.argument_kinds import check_number
from ropewalk.calls.messages import Origin

_keys = itertools.count()


def renew_keys() -> None:
    """Start new keys; also in a forked child, whose keys must differ from its parent's."""
    global _keys
    _keys = itertools.count(int.from_bytes(os.urandom(5), "little") << 22)


renew_keys()
os.register_at_fork(after_in_child=renew_keys)


def new_key() -> int:
    """A key for a call that this process runs, different from the keys of all other calls and processes."""
    return next(_keys)


class Numbered(Protocol):
    """A call under way, with its number."""

    number: int


class CallContext:
    """The context that code inherits from the call that it serves."""

    __slots__ = ("cancelled", "chain", "deadline", "key", "label", "waits_for")
    waits_for: tuple[str, Numbered] | None
    """Address of the process, and the call there, for which the running code waits without a limit.

    Not set before the code has waited for the first time.
    """

    def __init__(self, chain: tuple[Origin, ...], deadline: float | None, label: str = "") -> None:
        self.chain: tuple[Origin, ...] = chain
        """The calls that led to this one, without this one; the last of them made it."""
        self.deadline: float | None = deadline
        """Monotonic time after which the answer is no longer wanted, or None."""
        self.label: str = label
        """Service and method; empty if there is only a deadline and no call."""
        self.key: int = new_key() if label else 0
        self.cancelled: str = ""
        """The reason why the answer is no longer wanted; empty while it is."""

    def chain_here(self) -> tuple[Origin, ...]:
        """The chain of a call that is made now."""
        return (*self.chain, Origin(self.key, self.label, self.depth)) if self.label else self.chain

    @property
    def depth(self) -> int:
        """Depth of the call: 1 if it was made outside of any call."""
        return self.chain[-1].depth + 1 if self.chain else 1

    @property
    def call(self) -> CallContext | None:
        """The call that this code serves; None if there is none."""
        return self if self.label else None

    @property
    def given_up(self) -> str:
        """The reason why the answer, or any of a batch's answers, is no longer wanted; empty while it is."""
        return self.cancelled

    @property
    def ending(self) -> str:
        """The reason why the service of this call is being stopped; empty if it is not."""
        return ""

    @property
    def watched(self) -> tuple[int, ...]:
        """The keys of the calls whose end is the end of this one."""
        return (self.key,)


class _Block(CallContext):
    """Code with a deadline of its own, inside or outside of a call."""

    __slots__ = ("_outer",)

    def __init__(self, outer: CallContext | None, deadline: float) -> None:
        super().__init__(outer.chain_here() if outer else (), deadline)
        self._outer = outer

    @property
    def call(self) -> CallContext | None:
        return self._outer.call if self._outer else None


current: ContextVar[CallContext | None] = ContextVar("ropewalk_call", default=None)

_watchers: dict[int, list[Callable[[], object]]] = {}
"""Callbacks for calls that end while they still run, by the keys of the calls. They are stored beside the calls,
because few calls are watched and a field would cost memory in all of them."""


def watch(frame: CallContext, callback: Callable[[], object]) -> None:
    """Have a function called, in a thread of its own, when a call is over; perhaps more than once."""
    for key in frame.watched:
        _watchers.setdefault(key, []).append(callback)


def unwatch(frame: CallContext, callback: Callable[[], object]) -> None:
    """Cancel a `watch`."""
    for key in frame.watched:
        callbacks = _watchers.get(key, [])
        with contextlib.suppress(ValueError):
            callbacks.remove(callback)
        if not callbacks:
            _watchers.pop(key, None)


def forget_watchers(frame: CallContext) -> None:
    """Remove the watchers of a call that has returned."""
    if _watchers:
        for key in frame.watched:
            _watchers.pop(key, None)


def watchers(key: int) -> list[Callable[[], object]]:
    """The callbacks to run when a call is over."""
    return list(_watchers.get(key, ()))


@contextlib.contextmanager
def deadline(seconds: float) -> Generator[None, None, None]:
    """Limit the time of calls inside the block, and of the calls that these make in turn.

    A deadline inside another one can only shorten it.

    Example:
        >>> import time
        >>> import ropewalk as rw
        >>> class Sleeper:
        ...     def sleep(self, seconds):
        ...         time.sleep(seconds)
        >>> program = rw.Program("waiting")
        >>> sleeper = program.add(rw.Service(Sleeper))
        >>> with program.launch("threads") as running:
        ...     with rw.deadline(0.1):
        ...         try:
        ...             running.client(sleeper).sleep(0.5)
        ...         except rw.DeadlineExceeded:
        ...             print("too late")
        too late

    Args:
        seconds: time from now at which calls inside the block end.

    Raises:
        DeadlineExceeded: by a call inside the block that takes longer.
        ValueError: `seconds` is negative or NaN.
        TypeError: `seconds` is not a number.
    """
    check_number("a deadline", seconds, Real, "a number of seconds", least=0, required=True)
    due = time.monotonic() + seconds
    outer = current.get()
    if outer is not None and outer.deadline is not None:
        due = min(due, outer.deadline)
    token = current.set(_Block(outer, due))
    try:
        yield
    finally:
        current.reset(token)
