"""`Variables`: the weights that a learner publishes and policies act with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ropewalk.rl.environments.spec import Array


@dataclass(frozen=True, slots=True)
class Variables:
    """One version of what policies need.

    Attributes:
        version: in lock-step, the number of rounds that were learned; otherwise `numbered`, which never goes back, not
            even when a learner was restarted.
        progress: share of the experiment's steps that were done, 0 to 1, for schedules such as epsilon's.
        arrays: weights and statistics by name; not written to any more.
    """

    version: int
    progress: float
    arrays: Mapping[str, Array]


_EPOCH_BITS = 40


def numbered(epoch: int, updates: int) -> int:
    """Return the version after a number of updates in the learner's life number `epoch`: later lives come later."""
    return epoch << _EPOCH_BITS | updates


def version_lag(newest: int, version: int) -> int:
    """Return by how many updates a version is behind, at least; 0 if it is of a later update of an earlier life."""
    mask = (1 << _EPOCH_BITS) - 1
    return max(0, (newest & mask) - (version & mask))


__all__ = ["Variables", "numbered", "version_lag"]
