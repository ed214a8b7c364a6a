"""`Variables`: the weights that a learner publishes and policies act with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ropewalk.rl.environments.spec import Array
from ropewalk.rl.replay.bundles import bundled, can_be_bundled, received_bundle, sent_bundle, unbundled

_MOST_BUNDLED_BYTES = 256 << 10
"""Arrays of more bytes together travel one by one, as a copy of all of them would cost more than that."""


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

    def __reduce_ex__(self, protocol: Any) -> Any:
        arrays = self.arrays
        size_bytes = sum(array.nbytes for array in arrays.values())
        if protocol >= 5 and 0 < size_bytes <= _MOST_BUNDLED_BYTES and can_be_bundled(arrays):
            return _variables_of_bundle, (self.version, self.progress, *sent_bundle(bundled(arrays)))
        return Variables, (self.version, self.progress, arrays)


def _variables_of_bundle(version: int, progress: float, text: str, data: Any) -> Variables:
    """Return variables whose arrays share the memory of `data`."""
    fields = unbundled({"": received_bundle(text, data)})
    return Variables(version, progress, {name: field[0, ...] for name, field in fields.items()})


_EPOCH_BITS = 40
_UPDATES = (1 << _EPOCH_BITS) - 1


def numbered(epoch: int, updates: int) -> int:
    """Return the version after a number of updates in the learner's life number `epoch`: later lives come later."""
    return epoch << _EPOCH_BITS | updates


def epoch_of(version: int) -> int:
    """Return the number of the learner's life that a version is of."""
    return version >> _EPOCH_BITS


def version_lags(newest: int, versions: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return by how many updates each version is behind, at least; 0 for later updates of earlier lives.

    Args:
        newest: version of the newest weights.
        versions: any shape.
    """
    return np.maximum(0, (newest & _UPDATES) - (versions & _UPDATES))


def version_lag(newest: int, version: int) -> int:
    """Return by how many updates a version is behind, at least; 0 if it is of a later update of an earlier life."""
    return max(0, (newest & _UPDATES) - (version & _UPDATES))


def lag_metrics(newest: int, versions: NDArray[np.int64]) -> dict[str, float]:
    """Return the mean, the smallest and the largest lag of the versions that chose the actions of a batch.

    The unit is a version: a round in lock-step, an update otherwise.
    """
    lags = version_lags(newest, versions)
    return {
        "policy_lag": float(lags.mean()),
        "policy_lag_min": float(lags.min()),
        "policy_lag_max": float(lags.max()),
    }


__all__ = ["Variables", "epoch_of", "lag_metrics", "numbered", "version_lag", "version_lags"]
