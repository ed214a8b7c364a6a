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
        self._next_states = 0
        """The first epoch whose state is still of use: the worker has taken one that is as new as those before."""
        self._end: Exception | None = None

    @property
    def epoch(self) -> int:
        """The epoch of the latest view; -1 before the first."""
        return self._view.epoch if self._view else -1

    @property
    def members(self) -> tuple[str, ...]:
        """The members of the latest view; none before the first."""
        return self._view.members if self._view else ()

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
            self._next_states = max(self._next_states, _first_epoch_of_step(view))
            self._states = {epoch: state for epoch, state in self._states.items() if epoch >= self._next_states}
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
            if epoch >= self._next_states:
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

    def wait_state(self, view: MembershipView) -> bytes:
        """Return the state that rank 0 sends to the new members, when it begins the step of this view.

        The state that an earlier epoch of the same step began with is as good. When members have done their last step,
        each change of epoch as they leave, and rank 0 sends its state in one of these epochs only.

        Args:
            view: the view whose members begin the step.

        Raises:
            ExchangeAborted: there is a later view already.
            Exception: the error that `end` was called with.
        """
        first = _first_epoch_of_step(view)

        def arrived() -> list[int]:
            return [epoch for epoch in self._states if first <= epoch <= view.epoch]

        what = f"the weights from rank 0 of epoch {view.epoch}"
        self._wait(lambda: bool(arrived()) or self.epoch > view.epoch, None, what)
        with self._news:
            if not (epochs := arrived()):
                raise ExchangeAborted(
                    f"epoch {view.epoch} ended before its newcomers had the weights", epoch=view.epoch
                )
            self._next_states = view.epoch + 1
            return self._states.pop(max(epochs))

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


def _first_epoch_of_step(view: MembershipView) -> int:
    """Return the first epoch whose rank 0 began the step of this view with the weights that all members then have.

    Before the first commit nobody has them: rank 0 of each epoch sends its own.
    """
    return view.epoch - len(view.before) if view.step else view.epoch
