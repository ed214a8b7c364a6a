"""Decides when the state of a service is saved next."""

from __future__ import annotations

import math


class CheckpointPace:
    """Decides when the next checkpoint of a service is due. Pure: it writes nothing and reads no clock.

    Args:
        checkpoint_s: seconds from the beginning of one checkpoint to that of the next. None: at least a second, and
            saving takes at most a twentieth of the time; nothing is due then unless the state may have changed.
        now: monotonic time in seconds; the state is new at this moment.
    """

    def __init__(self, checkpoint_s: float | None, now: float) -> None:
        if checkpoint_s is not None and not (isinstance(checkpoint_s, int | float) and checkpoint_s > 0):
            raise ValueError(f"checkpoint_s must be a number of seconds above 0, or None, not {checkpoint_s!r}")
        self._interval_s = checkpoint_s
        self._begun = now
        self._due = now + (1.0 if checkpoint_s is None else checkpoint_s)
        self._changed = False
        self._writing = False

    def changed(self) -> None:
        """The state may have changed: a call began, or the service's own work goes on."""
        self._changed = True

    @property
    def next_due(self) -> float | None:
        """When the next checkpoint is due; None until the state changes, and while a checkpoint is being written."""
        # A user who sets an interval may know of changes that are not reported, by threads of the service's own.
        wanted = self._changed or self._interval_s is not None
        return self._due if wanted and not self._writing and self._due < math.inf else None

    def is_due(self, now: float) -> bool:
        """Whether a checkpoint is due."""
        return self.next_due is not None and now >= self._due

    def begun(self, now: float) -> None:
        """The state is being taken; changes from here on belong to the next checkpoint."""
        self._begun = now
        self._changed = False
        self._writing = True

    def ended(self, now: float, written: bool = True) -> None:
        """The checkpoint was written, or could not be: then it is tried again after the same time."""
        self._writing = False
        self._changed = self._changed or not written
        if self._interval_s is not None:
            self._due = self._begun + self._interval_s
        else:
            self._due = now + max(1.0, 20.0 * (now - self._begun))
