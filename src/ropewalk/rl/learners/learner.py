"""`Learner`: turns batches into better weights."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ropewalk.rl.environments.spec import Array
from ropewalk.rl.replay.batch import Batch

if TYPE_CHECKING:
    from ropewalk.rl.learners.gradient_step import GradientStep


@dataclass(frozen=True, slots=True)
class Update:
    """What an update tells.

    Attributes:
        metrics: numbers for the log, such as "loss" and "entropy".
        priorities: new priorities of the batch's items, shape (B,); None leaves them as they are.
    """

    metrics: Mapping[str, float]
    priorities: NDArray[np.float64] | None = None


class Learner(ABC):
    """Owns the weights that are trained. Deterministic: equal states and equal batches give equal bits.

    Attributes:
        version: version of the newest weights that were published, by which the age of a sample is measured; set by the
            code that publishes them.
    """

    version: int = 0

    def __repr__(self) -> str:
        return f"<{type(self).__name__} version={self.version}>"

    @abstractmethod
    def update(self, batch: Batch, progress: float) -> Update:
        """Learn from one batch.

        Args:
            batch: what was sampled; its arrays are not kept.
            progress: share of the experiment's steps that were done, 0 to 1, for schedules.

        Raises:
            NotFinite: the loss or a gradient is NaN or infinite, and the policy for that is "raise".
        """

    def usable(self, batch: Batch) -> Batch:
        """Return the items that `update` would learn from; those that it would drop are counted as dropped."""
        return batch

    def gradient_steps(self) -> Sequence[GradientStep]:
        """Return the optimizers whose gradients several learners can average, to have equal weights at all times.

        Raises:
            ValueError: weights would differ, as updates depend on the batch in other ways too.
        """
        raise ValueError(
            f"{type(self).__name__} does not say by which optimizers it learns, so its gradients cannot be averaged "
            "over several learners; implement gradient_steps, or use learners=1"
        )

    @abstractmethod
    def variables(self) -> dict[str, Array]:
        """Return copies of what policies need, by name."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Return everything that later updates depend on: weights, optimizer, targets, random generators, counts."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state."""


__all__ = ["Learner", "Update"]
