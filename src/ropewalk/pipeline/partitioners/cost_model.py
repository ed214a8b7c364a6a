"""The interface of cost models whose maximum over stages `exact` can minimise in place of the planner's objective."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class StageColumns:
    """Candidates for a stage, one entry each: the operators between two nested down-closed sets."""

    compute_s: NDArray[np.float64]
    """Seconds of forward and whole backward on a device of speed 1."""
    weight_bytes: NDArray[np.float64]
    """Bytes of the parameters, each counted once."""
    before_bytes: NDArray[np.float64]
    """Bytes of all values that cross the cut before the stage, and the cut after it, whichever stage reads them; the
    model's inputs are not counted."""
    after_bytes: NDArray[np.float64]
    is_first: NDArray[np.bool_]
    is_last: NDArray[np.bool_]


class CostModel(Protocol):
    """The seconds per mini-batch of a replicated stage; a plan is as slow as its slowest stage."""

    def bottleneck_s(self, stages: StageColumns, replicas: int, bandwidth: float) -> NDArray[np.float64]:
        """Return the seconds of each candidate.

        Args:
            stages: the candidates.
            replicas: number of devices that run each.
            bandwidth: bytes per second of the links that join the devices.

        Returns:
            Float64 seconds per mini-batch, one entry for each candidate.
        """
        ...
