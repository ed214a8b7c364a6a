"""The checkpoints of one evaluation: the one from which it continues, and those that it writes."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any, NamedTuple

from ropewalk.population.checkpoint import CheckpointConfig, Checkpoints
from ropewalk.population.run import EvaluationLoop
from ropewalk.trusted_files import make_private_folder

logger = logging.getLogger(__name__)

_AGAIN_S = 3600.0
"""A disk that stays full is told of again after this long, in seconds."""


class RunKind(NamedTuple):
    """The properties that a run must share with the checkpoint from which it continues."""

    algorithm: str
    seed: int
    mode: str
    """Name of the pacing's class."""


class SavedRun:
    """The checkpoints of one run: the one from which it continues, and those that it writes.

    Args:
        checkpoint: the folder or config; None for no checkpoints.
        kind: the properties of this run.
        generation: the current generation of the algorithm, at which a run without a checkpoint begins.

    Attributes:
        path: path of the checkpoint from which the run continues; None if it starts from the beginning.
        begun_at: the algorithm's generation when the run began.
        failures: error messages of checkpoints that could not be written.
    """

    def __init__(self, checkpoint: CheckpointConfig | str | Path | None, kind: RunKind, generation: int) -> None:
        self._kind = kind
        self.failures: list[str] = []
        self._num_unsaved = 0
        """Number of checkpoints in a row that could not be written."""
        self._told_at = 0.0
        self._checkpoints: Checkpoints | None = None
        self.path: Path | None = None
        self._state: dict[str, Any] | None = None
        self.begun_at = generation
        if checkpoint is None:
            return
        options = checkpoint if isinstance(checkpoint, CheckpointConfig) else CheckpointConfig(checkpoint)
        # A disk that fills up later does not end a run, but a folder that cannot be created is a user's error.
        make_private_folder(options.folder)
        self._checkpoints = Checkpoints(options, self._failed)
        found = self._checkpoints.newest()
        if found is None:
            return
        self.path, self._state = found
        saved = RunKind(found[1]["kind"], found[1]["seed"], found[1]["mode"])
        if saved != kind:
            raise ValueError(
                f"{self.path} is a checkpoint of {saved.algorithm} with seed {saved.seed} ({saved.mode}), and this "
                f"run is of {kind.algorithm} with seed {kind.seed} ({kind.mode}); give another folder, or "
                f"CheckpointConfig(folder, resume=False) to start over there"
            )
        self.begun_at = found[1]["begun_at"]

    def restore(self, loop: EvaluationLoop) -> bool:
        """Restore a loop from the checkpoint; returns False if the run starts from the beginning."""
        if self._state is None:
            return False
        loop.load_state_dict(self._state["run"])
        self._state = None
        return True

    @property
    def is_kept(self) -> bool:
        """Whether the run can go on later."""
        return self._checkpoints is not None

    def save(self, loop: EvaluationLoop, generation: int) -> Path | None:
        """Write a checkpoint if checkpoints are enabled and one is due after this generation; returns its path."""
        if self._checkpoints is None:
            return None

        def state() -> dict[str, Any]:
            kind = self._kind
            return {
                "kind": kind.algorithm,
                "seed": kind.seed,
                "mode": kind.mode,
                "begun_at": self.begun_at,
                "run": loop.state_dict(),
            }

        path = self._checkpoints.save(generation, state)
        if path is not None and self._num_unsaved:
            logger.warning("checkpoints are written again, in %s; %d could not be", path.parent, self._num_unsaved)
            self._num_unsaved = 0
        return path

    def _failed(self, why: str) -> None:
        self.failures.append(why)
        self._num_unsaved += 1
        now = time.monotonic()
        if self._num_unsaved == 1 or now - self._told_at > _AGAIN_S:
            self._told_at = now
            logger.warning("%s; the run goes on, and tries again when the next checkpoint is due", why)


__all__ = ["RunKind", "SavedRun"]
