"""Ctrl-C waits for a moment while something is changed that other threads use as well.

Python raises KeyboardInterrupt between any two steps of the main thread. In the middle
of handing out tasks that would leave some of them assigned but never sent, and the next
`get` would wait for ever; in the middle of a frame it would cut the frame. So the few
places of ours where the main thread changes shared state put the interrupt off until
they are through, which takes microseconds. Waiting is never protected in this way.
"""

from __future__ import annotations

import importlib
import os
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

# The wrapper, `signal`, turns handlers into enums and back, which takes longer than all the rest.
_signal: Any = importlib.import_module("_signal")
_handler_of: Callable[[int], object] = _signal.getsignal
_SIGINT = int(_signal.SIGINT)
_main_thread = threading.main_thread().ident


class _Deferral:
    """A context manager; does nothing outside of the main thread, and may be nested. About a microsecond.

    The handler of another signal may defer interrupts as well, also while it is being entered or left.
    """

    def __init__(self) -> None:
        self._handler = self._note
        self._before: Any = None  # a signal's handler, in one of its many types
        self._depth = 0
        self._came = False
        self._frame: FrameType | None = None

    def __enter__(self) -> None:
        if threading.get_ident() != _main_thread:
            return
        current = _signal.getsignal(_SIGINT)
        if current is self._handler:
            self._depth += 1
        elif callable(current):  # one who has no handler of Python's is ended at once, or not disturbed at all
            try:
                _signal.signal(_SIGINT, self._handler)
            except ValueError:  # a subinterpreter
                return
            self._before, self._depth = current, 1  # no interrupt can come between: from here on it is put off

    def __exit__(self, *exc: object) -> None:
        if not self._depth or threading.get_ident() != _main_thread:
            return
        self._depth -= 1
        if not self._depth:
            before, self._before = self._before, None
            if before is None:
                # This is in the handler of another signal, which came while the code that it interrupted began or ended
                # its own deferral: that code has the handler, and goes on.
                return
            _signal.signal(_SIGINT, before)
            if self._came:
                self._tell(before)

    def suspend(self) -> None:
        """Inside the deferral: let interrupts come for a while; one that is noted comes now."""
        if self._depth == 1 and threading.get_ident() == _main_thread:
            _signal.signal(_SIGINT, self._before)
            if self._came:
                self._tell(self._before)

    def resume(self) -> None:
        """End a `suspend`."""
        if self._depth == 1 and threading.get_ident() == _main_thread:
            _signal.signal(_SIGINT, self._handler)

    def _tell(self, handler: Any) -> None:
        # Kept, the frame would keep all that is in it, such as handles of shared objects, until the next interrupt.
        self._came, frame = False, self._frame
        self._frame = None
        handler(_SIGINT, frame)

    def _note(self, _number: int, frame: FrameType | None) -> None:
        self._came, self._frame = True, frame


def _find_main_thread() -> None:
    global _main_thread
    _main_thread = threading.main_thread().ident


os.register_at_fork(after_in_child=_find_main_thread)

#: `with interrupts_deferred: ...` in any thread.
interrupts_deferred = _Deferral()


class _Allowance:
    """A context manager for a wait inside of `interrupts_deferred`."""

    def __enter__(self) -> None:
        interrupts_deferred.suspend()

    def __exit__(self, *exc: object) -> None:
        interrupts_deferred.resume()


#: `with interrupts_deferred: ... with interrupts_allowed: wait()`.
interrupts_allowed = _Allowance()

#: Called right before KeyboardInterrupt is raised, by the handlers below; must take no lock.
before_interrupt: list[Callable[[], object]] = []

#: The handlers of signals that do so.
telling_handlers: list[object] = []


def tell_of_interrupt() -> None:
    """Make the calls of `before_interrupt`."""
    for call in before_interrupt:
        call()


#: Signals whose handlers programs use to raise in the main thread, such as time limits by SIGALRM.
_RAISING = [
    int(getattr(_signal, name))
    for name in ("SIGALRM", "SIGVTALRM", "SIGPROF", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGQUIT", "SIGXCPU")
]


def may_serve() -> bool:
    """Whether nothing can raise in this thread at any moment but an interrupt, which can be put off."""
    return threading.get_ident() != _main_thread or not any(map(callable, map(_handler_of, _RAISING)))
