"""Calls that undo the effects of pickling if a pickle is never sent.

That happens when a second pickler was tried, or a part could not be pickled.

PickleAttempt ─ pickling ─▶ __reduce__ of a handle: tells its depot that it is in transit; `on_rollback(undo that)`
   └─ an error ─▶ the noted calls are made           └─ else the enclosing attempt decides, if there is one
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType

from ropewalk.errors import PeerLost


class _Noted(threading.local):
    calls: list[Callable[[], object]] | None = None


_noted = _Noted()


class PickleAttempt:
    """A context in which a value is pickled.

    Args:
        keep: False if nothing of it is sent in any case.
    """

    __slots__ = ("_keep", "_outer", "noted")

    def __init__(self, *, keep: bool = True) -> None:
        self._keep = keep
        self.noted: list[Callable[[], object]] = []
        """After the context: the calls to be made if the pickle never arrives."""

    def __enter__(self) -> PickleAttempt:
        self._outer, _noted.calls = _noted.calls, []
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        calls, _noted.calls = _noted.calls, self._outer
        if not calls:
            return
        # An interrupt does not say whether the pickle was sent, and neither does a lost peer.
        is_given_up = kind is not None and issubclass(kind, Exception) and not issubclass(kind, PeerLost)
        if is_given_up or not self._keep:
            for call in calls:
                call()
            return
        self.noted = calls
        if self._outer is not None:
            self._outer += calls


def on_rollback(call: Callable[[], object]) -> None:
    """Have a call made, from a `__reduce__`, if the current pickle is never sent, as far as that is known."""
    if _noted.calls is not None:
        _noted.calls.append(call)


__all__ = ["PickleAttempt", "on_rollback"]
