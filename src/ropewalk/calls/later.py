"""Answers that come later: what a method returns that waits for something, without a thread that waits.

    def get(self):                        the loop goes on
        later = Later(self.give_up)  ──▶  ... an item arrives: later.answer(item)  ──▶  Answer
        self.waiting.append(later)        ... the caller gives up, or is gone: on_given_up()
        return later

A value that is *lent* counts as taken when the caller says so (`Taken`). Until then it is given back, with
`on_given_up`, if the caller gives up or dies: an answer may lie in the socket of a process that was killed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ropewalk.calls.incoming import Incoming


class Later:
    """Stands for the answer of one call until there is one; may be answered before it is returned.

    Args:
        on_given_up: called once, on the loop, when the caller cancels or is gone before it had the answer.
        on_taken: called once, on the loop, when the caller has a value that was lent.
    """

    __slots__ = ("_call", "_early", "_lent", "_on_given_up", "on_taken")

    def __init__(
        self, on_given_up: Callable[[], object] = lambda: None, on_taken: Callable[[], object] = lambda: None
    ) -> None:
        self._on_given_up = [on_given_up]
        self.on_taken = on_taken
        self._call: Incoming | None = None
        self._early: list[tuple[Any, BaseException | None]] = []
        self._lent = False

    def answer(self, value: Any, *, lent: bool = False) -> None:
        """End the call with a value; any thread, once."""
        self._lent = lent
        self._end(value, None)

    def fail(self, error: BaseException) -> None:
        """End the call with an exception; any thread, once."""
        self._end(None, error)

    def bind(self, call: Incoming) -> None:
        """The method has returned this: send the answer if it is there, and else when it comes."""
        self._call = call
        call.later = self
        if call.cancelled:  # while the method ran
            self.give_up()
        self._send_early()

    def give_up(self) -> None:
        """The caller has cancelled, or is gone."""
        with contextlib.suppress(IndexError):  # twice
            self._on_given_up.pop()()

    def _end(self, value: Any, error: BaseException | None) -> None:
        self._early.append((value, error))
        if self._call:
            self._send_early()

    def _send_early(self) -> None:
        # Whoever comes second, the one that binds or the one that answers, finds both; `pop` gives it to one of them.
        call = self._call
        assert call
        try:
            value, error = self._early.pop()
        except IndexError:
            return
        call.end_later(value, error, lent=self._lent)


__all__ = ["Later"]
