"""Ctrl-C and SIGTERM end a run in order: with a last checkpoint, and without a process that stays."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

from ropewalk.processes import interrupts

_DEFAULTS = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}


class Interruptions:
    """Turns SIGTERM into `SystemExit`, as Ctrl-C is `KeyboardInterrupt`, while it is entered.

    Only in the main thread, and not signals for which the script has a handler of its own. Those of `ropewalk run` and
    of a tracked run, which raise as well, are called instead of the default.

    Args:
        deferred: neither is raised before `check`, so that a checkpoint can be written first; a second request is
            raised at once.
    """

    def __init__(self, *, deferred: bool) -> None:
        self._deferred = deferred
        self._came: int | None = None
        self._signals = interrupts.EndSignals()
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interruptions:
        if threading.current_thread() is threading.main_thread():
            for number, default in _DEFAULTS.items():
                handler = signal.getsignal(number)
                is_default = handler is default and (self._deferred or number == signal.SIGTERM)
                if is_default or (self._deferred and _is_ours(handler)):
                    self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        while self._before:
            signal.signal(*self._before.popitem())

    @property
    def came(self) -> bool:
        """Whether a signal waits for `check`."""
        return self._came is not None

    def check(self) -> None:
        """Raise what a signal stands for, if one came.

        Raises:
            KeyboardInterrupt: it was Ctrl-C.
            SystemExit: it was SIGTERM.
        """
        if self._came is not None:
            self._raise(self._came, None)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._signals.is_copy(number):
            return
        if self._came is not None or not self._deferred:
            self._raise(number, frame)
        self._came = number

    def _raise(self, number: int, frame: FrameType | None) -> None:
        if callable(handler := self._before.get(number)):
            handler(number, frame)
        raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)


def _is_ours(handler: object) -> bool:
    """Return whether it is a handler of `ropewalk run` or of a tracked run, which raises and does nothing else."""
    return handler in interrupts.telling_handlers or handler in interrupts.raising_handlers


__all__ = ["Interruptions"]
