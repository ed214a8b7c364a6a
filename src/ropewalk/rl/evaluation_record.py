"""`EvaluationRecord`: the evaluations of a run, the weights of the best one, and whether it is good enough. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ropewalk.rl.result import EvaluationScores
from ropewalk.rl.variables import Variables


class EvaluationRecord:
    """Keeps what evaluations found.

    Args:
        stop_at: the mean score with which the experiment ends; None: none does.

    Attributes:
        evaluations: in the order in which they came.
        best: the weights of the evaluation with the best mean, of equal ones the first; None before the first.
    """

    def __init__(self, stop_at: float | None = None) -> None:
        self._stop_at = stop_at
        self.evaluations: list[EvaluationScores] = []
        self.best: Variables | None = None
        self._best_mean = -float("inf")

    @property
    def is_good_enough(self) -> bool:
        """Whether an evaluation has reached the score that ends the experiment."""
        return self._stop_at is not None and any(scores.mean >= self._stop_at for scores in self.evaluations)

    def add(self, scores: EvaluationScores) -> bool:
        """Add an evaluation, unless its weights were evaluated before.

        Returns:
            Whether its weights are the best so far, and are to be given to `keep`.
        """
        if all(scores.version != known.version for known in self.evaluations):
            self.evaluations.append(scores)
        return scores.mean > self._best_mean

    def keep(self, scores: EvaluationScores, variables: Variables) -> None:
        """Keep the weights of an evaluation, if it is still the best."""
        if scores.mean > self._best_mean:
            self._best_mean, self.best = scores.mean, variables

    def state_dict(self) -> dict[str, Any]:
        """Return the evaluations and the best weights."""
        return {"evaluations": list(self.evaluations), "best": self.best, "best_mean": self._best_mean}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state."""
        self.evaluations = list(state["evaluations"])
        self.best, self._best_mean = state["best"], state["best_mean"]


__all__ = ["EvaluationRecord"]
