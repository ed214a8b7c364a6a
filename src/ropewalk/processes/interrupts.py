"""Ctrl-C and other signals are postponed for a moment while the main thread changes state that other threads use.

Python raises KeyboardInterrupt, and runs handlers of signals, between any two steps of the main thread. In the middle
of handing out tasks an interrupt would leave some of them assigned but never sent, and the next `get` would never
return; in the middle of a frame it would truncate the frame; and a handler that puts into the queue into which the main
thread is putting would wait for a lock that the main thread holds. So the few places of ours where the main thread
changes shared state postpone signals until they are done, which takes microseconds. Waiting is never protected in this
way.
"""

from __future__ import annotations

import importlib
import math
import os
import threading
import time
from collections.abc import Callable
from threading import get_ident
from types import FrameType
from typing import Any

# The wrapper module, `signal`, converts handlers into enums and back, which takes longer than all the rest.
_signal: Any = importlib.import_module("_signal")
_handler_of: Callable[[int], object] = _signal.getsignal
_SIGINT, _SIGTERM = int(_signal.SIGINT), int(_signal.SIGTERM)
_HANDLED = [
    int(getattr(_signal, name))
    for name in (
        "SIGALRM",
        "SIGVTALRM",
        "SIGPROF",
        "SIGTERM",
        "SIGHUP",
        "SIGUSR1",
        "SIGUSR2",
        "SIGQUIT",
        "SIGXCPU",
        "SIGCHLD",
    )
]
"""Signals, besides SIGINT, for which programs have handlers: to raise in the main thread, as timeouts do with SIGALRM,
or to use objects that the main thread uses as well."""
_main_thread = threading.main_thread().ident


class _Deferral:
    """A context manager that postpones signals; does nothing outside of the main thread, and may be nested.

    It takes about two microseconds.
    """

    def __init__(self) -> None:
        self._note_it = self._note
        self._before: dict[int, Any] = {}  # the handlers that ours replaces, in one of their many types
        self._depth = 0
        self._came: dict[int, FrameType | None] = {}

    def __enter__(self) -> None:
        if threading.get_ident() == _main_thread:
            if self._depth:
                self._depth += 1
            else:
                self._begin()

    def __exit__(self, *exc: object) -> None:
        if self._depth and threading.get_ident() == _main_thread:
            self._depth -= 1
            if not self._depth:
                self._end()

    def suspend(self) -> bool:
        """Deliver signals for a while, inside the deferral; those that were noted come now.

        Returns whether it was done.
        """
        if self._depth != 1 or threading.get_ident() != _main_thread:
            return False
        self._depth = 0
        try:
            self._end()
        except BaseException:
            self._begin()
            raise
        return True

    def resume(self) -> None:
        """End a `suspend` that was done."""
        self._begin()

    def _begin(self) -> None:
        try:
            self._depth = 1  # a handler that comes in between and defers as well leaves the rest to us
            self._stand_for(_SIGINT)
            if any(map(callable, map(_handler_of, _HANDLED))):  # few programs have any of these, so ask without a loop
                for number in _HANDLED:
                    self._stand_for(number)
        except BaseException:  # from a handler
            self._depth = 0
            self._end()
            raise

    def _stand_for(self, number: int) -> None:
        handler = _handler_of(number)
        if callable(handler) and handler is not self._note_it:  # other handlers act at once, or not at all
            self._before[number] = handler
            try:
                _signal.signal(number, self._note_it)
            except ValueError:  # a subinterpreter
                del self._before[number]

    def _end(self) -> None:
        """Restore the handlers, and call those whose signals came."""
        for number in reversed(list(self._before)):  # SIGINT last
            handler = self._before.pop(number, None)
            if handler is not None:  # a handler that was just restored may have done the rest
                _signal.signal(number, handler)
        if self._came:
            came, self._came = self._came, {}
            self._tell(sorted(came.items(), key=lambda each: each[0] == _SIGINT))

    def _tell(self, came: list[tuple[int, FrameType | None]]) -> None:
        """Call handlers in this order, each of them even if others raise."""
        number, frame = came.pop()
        try:
            if came:
                self._tell(came)
        finally:
            handler: Any = _handler_of(number)
            if callable(handler):
                handler(number, frame)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._came[number] = frame


def _find_main_thread() -> None:
    global _main_thread
    _main_thread = threading.main_thread().ident


os.register_at_fork(after_in_child=_find_main_thread)

interrupts_deferred = _Deferral()
"""`with interrupts_deferred: ...` in any thread."""


class _Allowance:
    """A context manager that delivers signals during a wait inside of `interrupts_deferred`."""

    def __init__(self) -> None:
        self._suspended: list[bool] = []

    def __enter__(self) -> None:
        if threading.get_ident() == _main_thread:
            self._suspended.append(interrupts_deferred.suspend())

    def __exit__(self, *exc: object) -> None:
        if threading.get_ident() == _main_thread and self._suspended.pop():
            interrupts_deferred.resume()


interrupts_allowed = _Allowance()
"""`with interrupts_deferred: ... with interrupts_allowed: wait()`."""

_raise_interrupt: Any = _signal.default_int_handler
before_interrupt: list[Callable[[], object]] = []
"""Called immediately before KeyboardInterrupt is raised, by the handlers below; must take no lock."""

telling_handlers: list[object] = []
"""The signal handlers that make these calls."""
raising_handlers: list[object] = []
"""The handlers of other signals that only raise, or end the process: they make no calls to services."""


def tell_of_interrupt() -> None:
    """Make the calls of `before_interrupt`."""
    for call in before_interrupt:
        call()


SAME_REQUEST_S = 2.0
"""A SIGTERM that follows another within this time (seconds) belongs to the same request."""


class EndSignals:
    """Tells a second request to end from a copy of the first.

    What ends a whole job sends SIGTERM to each of its processes, such as a batch system, `timeout`, or systemd with
    `KillMode=control-group`; and a parent passes its own on. So one request may come twice to a process that is to save
    its state. A Ctrl-C is pressed by a person, and each one counts.

    Args:
        clock: returns the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._number = 0
        self._came = -math.inf

    def is_copy(self, number: int) -> bool:
        """Note a signal that has come; returns whether it asks for nothing that the one before did not."""
        now = self._clock()
        if number == self._number == _SIGTERM and now - self._came < SAME_REQUEST_S:
            return True
        self._number, self._came = number, now
        return False


def may_block() -> bool:
    """Return whether this thread may wait inside of a system call that takes bytes from a link.

    A handler of the program could make a call itself, which reads the same link; one that raises does no harm there.
    """
    if get_ident() != _main_thread:
        return True
    on_interrupt = _handler_of(_SIGINT)
    if not (on_interrupt is _raise_interrupt or on_interrupt in telling_handlers or not callable(on_interrupt)):
        return False
    return not any(map(callable, map(_handler_of, _HANDLED))) or _all_raise()


def _all_raise() -> bool:
    """Return whether handlers of other signals than SIGINT raise at most."""
    return all(handler in raising_handlers for handler in map(_handler_of, _HANDLED) if callable(handler))


def may_serve() -> bool:
    """Return whether nothing but an interrupt, which can be postponed, can raise in this thread at any moment."""
    return get_ident() != _main_thread or not any(map(callable, map(_handler_of, _HANDLED)))
