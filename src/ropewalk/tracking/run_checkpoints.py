"""The checkpoints of one run: which are written, what its store is told of them, and from where they are restored."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from ropewalk.tracking.checkpoints import CheckpointFolder, CheckpointPolicy, Restored, shown_step
from ropewalk.tracking.records import CheckpointKept, CheckpointRemoved, EventHappened, Metrics, Record
from ropewalk.tracking.run_identity import RunIdentity

_log = logging.getLogger(__name__)


class RunCheckpoints:
    """Writes and restores.

    Args:
        identity: the run.
        policy: which checkpoints are written and kept.
        put: takes records.
        warn: takes a kind of warning, and its text; gives one of each kind.
    """

    def __init__(
        self,
        identity: RunIdentity,
        policy: CheckpointPolicy,
        put: Callable[[Record], None],
        warn: Callable[[str, str], None],
    ) -> None:
        self.policy = policy
        self.newest_step = 0.0
        """Step of the newest checkpoint that was written or restored; 0 if there is none."""
        self._identity, self._put, self._warn = identity, put, warn
        self._folder = CheckpointFolder(identity.folder / "checkpoints")
        self._score: float | None = None
        self.report: Callable[[], tuple[float, dict[str, float]] | None] = lambda: None
        """Returns what is kept with each checkpoint as its report; see `SavedCheckpoint`."""
        self._unkept = UnkeptFiles(identity.name, put)

    def see(self, metrics: Metrics) -> None:
        """Look for the metric by which the best checkpoint is found, among numbers that are logged."""
        prefix = f"{metrics.group}/" if metrics.group else ""
        for name, value in zip(metrics.names, metrics.values, strict=True):
            if f"{prefix}{name}" == self.policy.best:
                self._score = value

    def write(self, step: float, state: Any, score: float | None) -> bool:
        """Write a checkpoint, and remove those that are no longer kept.

        Args:
            step: the step after which the state was taken.
            state: the tree.
            score: value of the metric by which the best one is found; None: the one that was seen last.

        Returns:
            Whether it was written: a disk may be full, of which a warning tells.

        Raises:
            TypeError: the state holds something that a checkpoint cannot hold.
        """
        if score is None and self.policy.best is not None:
            score = self._score
            if score is None:
                self._warn(
                    "no score",
                    f"the best checkpoint of run {self._identity.name} is to be found by the metric "
                    f"{self.policy.best!r}, which was not logged before run.checkpoint; log it, or give score=. The "
                    'name of a metric begins with its group: "validation/accuracy"',
                )
        try:
            saved = self._folder.write(step, state, score, self.report())
        except OSError as error:
            self._unkept.tell(f"the checkpoint of step {shown_step(step)}", error)
            return False
        self._unkept.written(f"checkpoints of run {self._identity.name} are written again, at step {shown_step(step)}")
        self.newest_step = step
        self._put(CheckpointKept(step, str(saved.path), saved.size_bytes, saved.time, score))
        try:
            for removed in self._folder.prune(self.policy, step):
                self._put(CheckpointRemoved(removed))
        except OSError as error:
            _log.warning("an old checkpoint of run %s cannot be removed: %s", self._identity.name, error)
        return True

    def restore(self, step: float | None) -> Restored | None:
        """Return the newest checkpoint that is whole: of this run, or of the one from which it was forked.

        Args:
            step: the checkpoint of this step, and no other.

        Raises:
            CheckpointCorrupt: there are checkpoints, and all of them are damaged.
            LookupError: there is none of that step; lists those that there are.
        """
        identity = self._identity
        found = None
        if step is None or identity.forked_from is None or self._folder.saved():
            found = self._folder.restore(step)
        if found is None and identity.forked_from is not None:
            parent = CheckpointFolder(identity.forked_from / "checkpoints")
            found = parent.restore(identity.forked_at if step is None else step)
        if found is not None:
            self.newest_step = found.step
            text = f"continues after step {shown_step(found.step)}"
            self._put(EventHappened("restored", text, time.time(), {"step": found.step, "path": str(found.path)}))
        return found


class UnkeptFiles:
    """Tells that files of a run cannot be written; the training goes on.

    Each is an event of the run. The log warns of the first one only until one is written again, since a loop may try to
    write one at each step.

    Args:
        run: name of the run.
        put: takes the events.
    """

    def __init__(self, run: str, put: Callable[[Record], None]) -> None:
        self._run, self._put = run, put
        self._is_failing = False

    def tell(self, what: str, error: OSError) -> None:
        """Tell that a file could not be written.

        Args:
            what: words for the file.
            error: why not.
        """
        text = f"{what} of run {self._run} was not kept: {error}"
        _log.log(logging.DEBUG if self._is_failing else logging.WARNING, "%s", text)
        self._is_failing = True
        self._put(EventHappened("file not kept", text, time.time()))

    def written(self, text: str) -> None:
        """Note that a file was written; `text` says that they are again, if that was told otherwise."""
        if self._is_failing:
            self._is_failing = False
            _log.warning("%s", text)


__all__ = ["RunCheckpoints", "UnkeptFiles"]
