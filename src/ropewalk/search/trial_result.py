"""`TrialResult`: what is known of one trial of a search."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ropewalk.misplaced_options import tells_names
from ropewalk.search.optuna_names import OF_RESULT
from ropewalk.tracking.checkpoints import CheckpointFolder, Restored


@tells_names(OF_RESULT)
@dataclass(frozen=True)
class TrialResult:
    """A trial at the end of a search, or now.

    Attributes:
        number: from 0, in the order of the starts.
        run: id of its run, for `ropewalk runs show`.
        state: "running", "waiting", "paused", "done", "stopped" or "failed".
        hyperparameters: values by dotted name.
        step: the last step that it reported; 0: none.
        values: the metrics of the last report, as they were logged; empty if there is none.
        best: the best value of the first metric at any step; of a member of a population the last value, as its earlier
            states are gone; None if there is none.
        attempts: number of processes that worked on it, one after the other.
        bracket: the bracket of the scheduler's rungs.
        scores: the first metric by step, to be maximised.
        why: why it failed or was stopped; empty otherwise.
        folder: folder of its checkpoints and artifacts.
        excluded_hosts: hosts on which log policies did not let it begin again.
    """

    number: int
    run: str
    state: str
    hyperparameters: Mapping[str, Any]
    step: float
    values: Mapping[str, float]
    best: float | None
    attempts: int
    bracket: int
    scores: Mapping[float, float]
    why: str
    folder: Path
    excluded_hosts: tuple[str, ...] = ()

    def restore(self, step: float | None = None) -> Restored:
        """Return its best checkpoint: of those that are kept, the one after which the first metric was the best.

        Args:
            step: the checkpoint of this step, and no other.

        Raises:
            LookupError: there is none, or none of that step; lists those that there are.
            CheckpointCorrupt: it is damaged.
        """
        kept = CheckpointFolder(self.folder / "checkpoints")
        if step is None:
            saved = [(self._score(one.step), one.step) for one in kept.saved()]
            if not saved:
                raise LookupError(
                    f"trial {self.number} has no checkpoint in {kept.folder}; `run.checkpoint(state)` in its function "
                    "writes one"
                )
            step = max(saved)[1]
        found = kept.restore(step)
        assert found is not None
        return found

    def _score(self, step: float) -> float:
        score = self.scores.get(step, math.nan)
        return -math.inf if math.isnan(score) else score


__all__ = ["TrialResult"]
