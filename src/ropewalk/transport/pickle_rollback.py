"""What is to be undone if a pickle is never sent: a second pickler had to be tried, a part could not be pickled.

PickleAttempt ─ pickling ─▶ __reduce__ of a handle: its depot hears that it is under way; `on_rollback(take that back)`
   └─ an error ─▶ what was noted is called           └─ else the trial around it decides, if there is one
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
    """A context in which something is pickled.

    Args:
        keep: False if nothing of it is sent in any case.
    """

    __slots__ = ("_keep", "_outer", "noted")

    def __init__(self, *, keep: bool = True) -> None:
        self._keep = keep
        self.noted: list[Callable[[], object]] = []
        """After the context: the calls to be made if what was pickled never arrives."""

    def __enter__(self) -> PickleAttempt:
        self._outer, _noted.calls = _noted.calls, []
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        calls, _noted.calls = _noted.calls, self._outer
        if not calls:
            return
        # An interrupt does not say whether it was sent, and neither does a lost peer.
        is_given_up = kind is not None and issubclass(kind, Exception) and not issubclass(kind, PeerLost)
        if is_given_up or not self._keep:
            for call in calls:
                call()
            return
        self.noted = calls
        if self._outer is not None:
            self._outer += calls


def on_rollback(call: Callable[[], object]) -> None:
    """From a `__reduce__`: have a call made if the pickle that is being made is never sent, as far as that is known."""
    if _noted.calls is not None:
        _noted.calls.append(call)


__all__ = ["PickleAttempt", "on_rollback"]
