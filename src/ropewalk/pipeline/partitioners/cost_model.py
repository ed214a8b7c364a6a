"""Another cost of a stage for `exact` to minimise the maximum of, in place of the planner's objective."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class StageColumns:
    """Candidates for a stage, one entry for each: what lies between two nested down-closed sets."""

    #: Forward and whole backward on a device of speed 1.
    compute_s: NDArray[np.float64]
    #: Parameters, each once.
    weight_bytes: NDArray[np.float64]
    #: All values that cross the cut before it, whoever reads them, and the cut after it; without the model's inputs.
    before_bytes: NDArray[np.float64]
    after_bytes: NDArray[np.float64]
    is_first: NDArray[np.bool_]
    is_last: NDArray[np.bool_]


class CostModel(Protocol):
    """Seconds per mini-batch at which a replicated stage keeps up; a plan is as slow as its slowest stage."""

    def bottleneck_s(self, stages: StageColumns, replicas: int, bandwidth: float) -> NDArray[np.float64]:
        """The seconds of each candidate, if this many devices run it, joined at `bandwidth` bytes per second."""
        ...
