"""Ctrl-C and SIGTERM end a run in order: with a last checkpoint, and without a process that stays."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any


class Interruptions:
    """Turns SIGTERM into `SystemExit`, as Ctrl-C is `KeyboardInterrupt`, while it is entered.

    Only in the main thread, and only signals for which the script has no handler of its own.

    Args:
        deferred: neither is raised before `check`, so that a checkpoint can be written first; a second signal is
            raised at once.
    """

    def __init__(self, *, deferred: bool) -> None:
        self._deferred = deferred
        self._came: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interruptions:
        if threading.current_thread() is threading.main_thread():
            for number, default in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL)):
                if signal.getsignal(number) is default and (self._deferred or number == signal.SIGTERM):
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
            raise _exception(self._came)

    def _note(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self._came is not None or not self._deferred:
            raise _exception(number)
        self._came = number


def _exception(number: int) -> BaseException:
    return KeyboardInterrupt() if number == signal.SIGINT else SystemExit(128 + number)


__all__ = ["Interruptions"]
