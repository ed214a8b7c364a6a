"""The state of a service that is saved from time to time, and restored after a restart.

    is_due ─▶ begin: opens a file, then in a turn of the object takes the state ─▶ finish: until it is stored

Where a state may be taken depends on the object:

    no `run`                             between any two calls
    `run` that calls `checkpoint_here`   at that place, between two calls
    `state_dict` marked `@concurrent`    at any moment: it holds the locks that it needs
    any other `run`                      when it has ended: beside it, the state may be in the middle of a step
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, cast

from ropewalk.calls.frozen import Frozen
from ropewalk.calls.markers import methods_of
from ropewalk.calls.once import OnceTable
from ropewalk.program.checkpoint_pace import CheckpointPace
from ropewalk.program.checkpoints import Header
from ropewalk.program.forked_work import ForkedWorkFailed
from ropewalk.program.node_context import NodeContext
from ropewalk.program.saving import CheckpointWrite
from ropewalk.program.snapshot_costs import SnapshotCosts
from ropewalk.program.state_stores import StateStore

_END_S = 60.0
"""Seconds for which the end of a service waits for a checkpoint that is being written."""

TurnTaken = AbstractContextManager[bool]
"""A context in which a state may be taken; it yields False if the object has ended."""


def has_state(obj: object) -> bool:
    """Whether an object has `state_dict` and `load_state_dict`."""
    return callable(getattr(obj, "state_dict", None)) and callable(getattr(obj, "load_state_dict", None))


class _Whole:
    """An object with its record of done calls; both are taken in one turn, so that they match."""

    def __init__(self, obj: Any, once: OnceTable) -> None:
        self._obj = obj
        self._once = once

    def state_dict(self) -> Any:
        state = self._obj.state_dict()
        if not len(self._once):
            return state
        if isinstance(state, Frozen):
            return Frozen(_WithCalls(cast("Frozen[Any]", state).value, self._once.state_dict()))
        return _WithCalls(state, self._once.state_dict())

    def load_state_dict(self, state: Any) -> None:
        if isinstance(state, _WithCalls):
            self._once.load_state_dict(state.calls)
            state = state.state
        self._obj.load_state_dict(state)


@dataclass(frozen=True, slots=True)
class _WithCalls:
    """The saved state of an object that has calls which run once."""

    state: Any
    calls: dict[str, Any]


class KeptState:
    """Saves the state of one object.

    Args:
        obj: has `state_dict` and `load_state_dict`.
        context: of the object's node.
        store: where checkpoints are stored.
        note: reports something to the user.
        once: the record of calls that run once; part of the state.
        forks: whether this process may have children that write.
    """

    def __init__(
        self,
        obj: Any,
        context: NodeContext,
        store: StateStore,
        note: Callable[[str], object],
        once: OnceTable | None = None,
        *,
        forks: bool = False,
    ) -> None:
        self._whole = _Whole(obj, OnceTable() if once is None else once)
        self._context = context
        self._store = store
        self._note = note
        self._costs = SnapshotCosts(may_fork=forks)
        self._memory: list[bytearray] = []
        self._pace = CheckpointPace(context.checkpoint_s, time.monotonic())
        self._num_done = 0  # number of calls when it was last checked
        self._lock = threading.Condition()
        self._is_saving = False
        self._digest = b""
        """Digest of the stored checkpoint."""
        self.runs: bool = callable(getattr(obj, "run", None))
        """Whether the object has work of its own beside its calls."""
        owner: object = obj
        facts = methods_of(type(owner)).get("state_dict")
        self.takes_no_turn: bool = facts is not None and facts.concurrency > 0
        """Whether its state may be taken at any moment."""
        self._says_where = False
        self._told = False

    def restore(self) -> None:
        """Restore the state that was saved last, if there is one.

        Raises:
            CheckpointCorrupt: none of its saved states can be read.
        """
        context = self._context
        saved = self._store.find(context)
        if saved is not None:
            if saved.note:
                self._note(f"{context.label}: {saved.note}")
            self._whole.load_state_dict(saved.unpickled())
        elif context.generation and context.checkpoint_s is not None:
            self._note(
                f"{context.label} starts again without a saved state: it ended before its first checkpoint was written "
                f"(checkpoint_s={context.checkpoint_s:g})"
            )

    def is_due(self, num_done: int, now: float) -> bool:
        """Whether to save now, in a turn or, if it takes none, at any moment; then `begin` must follow.

        Args:
            num_done: number of calls that the object has answered so far.
            now: monotonic time in seconds.
        """
        if num_done != self._num_done or self.runs:
            self._num_done = num_done
            self._pace.changed()
        if self._says_where or not self._pace.is_due(now):
            return False
        if self.runs and not self.takes_no_turn:
            self._tell_where()
            return False
        return self._reserve()

    def is_due_here(self, now: float) -> bool:
        """As `is_due`, asked by code of the object, which from now on decides where the state may be saved."""
        self._says_where = True
        self._pace.changed()
        return self._pace.is_due(now) and self._reserve()

    def begin(self, turn: TurnTaken, *, for_good: bool = False) -> Callable[[], None] | None:
        """Take the state; return a function that waits until it is stored, or None if there is nothing to wait for.

        A failure is reported, and the state is saved the next time.

        Args:
            turn: entered while the state is taken.
            for_good: whether nothing will change the state any more.
        """
        context = self._context
        saving: CheckpointWrite | None = None
        self._pace.begun(time.monotonic())  # in case the checkpoint fails before it begins
        try:
            header = Header(context.name, context.replica, {"generation": context.generation})
            what, costs = f"{context.label}.state_dict()", None if for_good else self._costs
            new = self._store.new(context)
            saving = CheckpointWrite(self._whole, header, what, new, costs, self._memory, self._digest)
            with turn as granted:
                if granted:
                    self._pace.begun(time.monotonic())
                    saving.take()
        except Exception as error:
            self._over(saving, error)
            return None
        if not granted:
            self._over(saving)
            return None
        return lambda: self._finish(saving)

    def save_last(self) -> None:
        """Save once more, when no code of the object runs any more."""
        with self._lock:
            self._lock.wait_for(lambda: not self._is_saving, _END_S)
            self._is_saving = True
        finish = self.begin(contextlib.nullcontext(True), for_good=True)
        if finish:
            finish()

    def _reserve(self) -> bool:
        with self._lock:
            is_first, self._is_saving = not self._is_saving, True
        return is_first

    def _finish(self, saving: CheckpointWrite) -> None:
        try:
            self._digest = saving.finish()
        except Exception as error:
            self._over(saving, error)
        else:
            self._over(saving)

    def _over(self, saving: CheckpointWrite | None, error: Exception | None = None) -> None:
        if saving:
            saving.end()
            if saving.how and isinstance(error, ForkedWorkFailed):
                self._costs.failed(saving.how)
        self._pace.ended(time.monotonic(), error is None)
        with self._lock:
            self._is_saving = False
            self._lock.notify_all()
        if error:
            self._note(f"the state of {self._context.label} was not saved: {type(error).__name__}: {error}")

    def _tell_where(self) -> None:
        if not self._told:
            self._told = True
            self._note(
                f"the state of {self._context.label} is not saved while its run() works, as state_dict() may see it in "
                "the middle of a step. Call rw.checkpoint_here() in run() where the state is whole; or mark state_dict "
                "with @rw.concurrent(1), if it takes a lock that run() holds for each step"
            )
