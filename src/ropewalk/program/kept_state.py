"""The state of a service that is saved now and then, and given back to it after a restart."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from ropewalk.program.checkpoints import CheckpointPace
from ropewalk.program.node_context import NodeContext
from ropewalk.program.state_stores import StateStore
from ropewalk.transport.serialization import dumps


def has_state(obj: object) -> bool:
    """Whether an object can give its state and take it back."""
    return callable(getattr(obj, "state_dict", None)) and callable(getattr(obj, "load_state_dict", None))


class KeptState:
    """Saves the state of one object; `save` must not run beside the object's methods.

    Args:
        obj: has `state_dict` and `load_state_dict`.
        context: whose state it is.
        store: where it is kept.
        note: is told what a person should know.
    """

    def __init__(self, obj: Any, context: NodeContext, store: StateStore, note: Callable[[str], object]) -> None:
        self._obj = obj
        self._context = context
        self._store = store
        self._note = note
        self._pace = CheckpointPace(context.checkpoint_s, time.monotonic())
        self._num_done = 0  # calls, when it was looked at last
        self._saving = False

    def restore(self) -> None:
        """Give the object the state that was saved last, if there is one.

        Raises:
            CheckpointCorrupt: no saved state of it can be read.
        """
        context = self._context
        saved = self._store.find(context)
        if saved is not None:
            if saved.note:
                self._note(f"{context.label}: {saved.note}")
            self._obj.load_state_dict(saved.unpickled())

    def is_due(self, num_done: int, now: float) -> bool:
        """Whether to save now; if so, it counts as under way until `save` has returned.

        Args:
            num_done: calls that the object has answered so far.
            now: monotonic time in seconds.
        """
        if num_done != self._num_done:
            self._num_done = num_done
            self._pace.called()
        if self._saving or not self._pace.is_due(now):
            return False
        self._saving = True
        return True

    def save(self) -> None:
        """Save the state; a failure is noted, and the state is saved the next time."""
        context = self._context
        self._pace.begun(time.monotonic())
        written = False
        try:
            payload = dumps(self._obj.state_dict(), what=f"{context.label}.state_dict()")
            self._store.save(context, payload, {"generation": context.generation})
            written = True
        except Exception as error:
            self._note(f"the state of {context.label} was not saved: {type(error).__name__}: {error}")
        finally:
            self._pace.ended(time.monotonic(), written)
            self._saving = False
