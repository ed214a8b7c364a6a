"""`Variables`: the weights that a learner publishes and policies act with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ropewalk.rl.environments.spec import Array


@dataclass(frozen=True, slots=True)
class Variables:
    """One version of what policies need.

    Attributes:
        version: 0 before the first update, one more with each publication; never goes back, also not after a restart.
        progress: share of the experiment's steps that were done, 0 to 1, for schedules such as epsilon's.
        arrays: weights and statistics by name; not written to any more.
    """

    version: int
    progress: float
    arrays: Mapping[str, Array]


__all__ = ["Variables"]
