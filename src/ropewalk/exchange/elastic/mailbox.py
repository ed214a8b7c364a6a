"""`Mailbox`: messages of the coordinator to a worker, kept until the worker reads them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from ropewalk.errors import ExchangeAborted, ExchangeStalled
from ropewalk.exchange.elastic.membership import Commit, MembershipView

_LOOK_S = 0.5
"""Seconds between two looks of a waiting thread, so that a signal is handled in the main thread."""


class Mailbox:
    """The latest view, the latest commit, and received states; any thread may call the `put` methods, which are fast.

    Args:
        on_view: called with each new view, in the thread that delivers it.
    """

    def __init__(self, on_view: Callable[[MembershipView], object]) -> None:
        self._on_view = on_view
        self._news = threading.Condition()
        self._view: MembershipView | None = None
        self._commit: Commit | None = None
        self._states: dict[int, bytes] = {}
        self._end: Exception | None = None

    @property
    def epoch(self) -> int:
        """The epoch of the latest view; -1 before the first."""
        return self._view.epoch if self._view else -1

    @property
    def has_ended(self) -> bool:
        """Whether nothing more will come."""
        return self._end is not None

    def put_view(self, view: MembershipView) -> None:
        """Deliver a view: the members have changed."""
        with self._news:
            if view.epoch <= self.epoch:
                return
            self._view = view
            self._states = {epoch: state for epoch, state in self._states.items() if epoch >= view.epoch}
            self._news.notify_all()
        self._on_view(view)

    def put_commit(self, commit: Commit) -> None:
        """Deliver a commit: a step counts."""
        with self._news:
            self._commit = commit
            self._news.notify_all()

    def put_state(self, epoch: int, state: bytes) -> None:
        """Deliver the state that rank 0 of an epoch sends to new members."""
        with self._news:
            if epoch >= self.epoch:
                self._states[epoch] = state
                self._news.notify_all()

    def end(self, error: Exception) -> None:
        """Record that nothing more will come: waiting threads raise `error`."""
        with self._news:
            self._end = self._end or error
            self._news.notify_all()

    def wait_view(self, after_epoch: int, timeout_s: float | None = None) -> MembershipView:
        """Return the latest view, once its epoch is later than `after_epoch`.

        Args:
            after_epoch: the epoch that the view must be later than.
            timeout_s: seconds to wait; None waits for ever.

        Raises:
            ExchangeStalled: no such view came within `timeout_s`.
            Exception: the error that `end` was called with.
        """
        self._wait(lambda: self.epoch > after_epoch, timeout_s, f"a view after epoch {after_epoch}")
        assert self._view is not None
        return self._view

    def wait_outcome(self, epoch: int, step: int) -> Commit | None:
        """Return the commit of a step that this worker has voted for; None if it was not committed in this epoch."""

        def is_known() -> bool:
            return (self._commit is not None and self._commit.step >= step) or self.epoch > epoch

        self._wait(is_known, None, f"the outcome of step {step}")
        with self._news:
            if self._commit is not None and self._commit.step == step:
                return self._commit
            assert self._view is not None
            if self._view.step > step:  # the view tells the same as the commit would
                return Commit(epoch, step, (), self._view.loss, changes=True)
            return None

    def wait_state(self, epoch: int) -> bytes:
        """Return the state that rank 0 sends to the new members of this epoch, when it begins its next step.

        Args:
            epoch: the epoch whose state it is.

        Raises:
            ExchangeAborted: there is a later epoch already.
            Exception: the error that `end` was called with.
        """
        what = f"the weights from rank 0 of epoch {epoch}"
        self._wait(lambda: epoch in self._states or self.epoch > epoch, None, what)
        with self._news:
            if epoch not in self._states:
                raise ExchangeAborted(f"epoch {epoch} ended before its newcomers had the weights", epoch=epoch)
            return self._states.pop(epoch)

    def _wait(self, is_here: Callable[[], bool], timeout_s: float | None, what: str) -> None:
        due = None if timeout_s is None else time.monotonic() + timeout_s
        with self._news:
            while not is_here():
                if self._end is not None:
                    raise self._end
                left_s = _LOOK_S if due is None else min(_LOOK_S, due - time.monotonic())
                if left_s <= 0:
                    raise ExchangeStalled(f"{what} did not come within {timeout_s:g} s", waited_s=timeout_s or 0.0)
                self._news.wait(left_s)
