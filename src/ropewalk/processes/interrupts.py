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
from types import FrameType
from typing import Any

# The wrapper, `signal`, turns handlers into enums and back, which takes longer than all the rest.
_signal: Any = importlib.import_module("_signal")
_SIGINT = int(_signal.SIGINT)
_main_thread = threading.main_thread().ident


class _Deferral:
    """A context manager; does nothing outside of the main thread, and may be nested. About a microsecond."""

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
            self._came = False
            try:
                _signal.signal(_SIGINT, self._handler)
            except ValueError:  # a subinterpreter
                return
            self._before, self._depth = current, 1  # nothing can come between: from here on it is put off

    def __exit__(self, *exc: object) -> None:
        if not self._depth or threading.get_ident() != _main_thread:
            return
        self._depth -= 1
        if not self._depth:
            before, self._before = self._before, None
            _signal.signal(_SIGINT, before)
            if self._came:
                self._came, frame = False, self._frame
                self._frame = None
                before(_SIGINT, frame)

    def _note(self, _number: int, frame: FrameType | None) -> None:
        self._came, self._frame = True, frame


def _find_main_thread() -> None:
    global _main_thread
    _main_thread = threading.main_thread().ident


os.register_at_fork(after_in_child=_find_main_thread)

#: `with interrupts_deferred: ...` in any thread.
interrupts_deferred = _Deferral()
