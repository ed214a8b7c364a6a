"""An archive of earlier behaviours, which measures the distance of a behaviour to its nearest neighbours.

Lehman, Stanley: Abandoning Objectives: Evolution through the Search for Novelty Alone, 2011
(https://doi.org/10.1162/EVCO_a_00025), equation 1; Conti et al.: Improving Exploration in Evolution Strategies for Deep
Reinforcement Learning via a Population of Novelty-Seeking Agents, 2018 (https://arxiv.org/abs/1712.06560), section 3.1.
"""

from __future__ import annotations

from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ropewalk.argument_kinds import check_number
from ropewalk.population.archives.finite_behaviours import check_finite

Floats = NDArray[np.float64]

_DIFFERENCES = 1 << 20
"""Number of differences that are in memory at a time: 8 MB."""


class NoveltyArchive:
    """Behaviours, oldest first.

    Args:
        k: number of nearest neighbours over which novelty averages the distance.
        capacity: maximum number of behaviours, of which the oldest are removed; None for no limit.
    """

    def __init__(self, k: int = 10, capacity: int | None = None) -> None:
        check_number("k", k, Integral, "a whole number", least=1, required=True)
        if capacity is not None and capacity < k:
            raise ValueError(f"capacity must be at least k = {k} behaviours, not {capacity}")
        self.k: int = k
        self.capacity: int | None = capacity
        self._behaviours: Floats = np.zeros((0, 0))

    def __len__(self) -> int:
        return len(self._behaviours)

    @property
    def behaviours(self) -> Floats:
        """All behaviours, float64 of shape (num, components); do not change the array."""
        return self._behaviours

    def add(self, behaviour: Floats) -> None:
        """Add a behaviour.

        Raises:
            ValueError: its length differs from that of earlier behaviours, or it is not finite.
        """
        row = np.asarray(behaviour, np.float64).reshape(1, -1)
        self._check(row)
        check_finite(row)
        kept = self._behaviours if len(self) else np.zeros((0, row.shape[1]))
        if self.capacity is not None:
            kept = kept[max(0, len(kept) + 1 - self.capacity) :]
        self._behaviours = np.concatenate([kept, row])

    def novelty(self, behaviours: Floats) -> Floats:
        """Return the mean distance of each behaviour to its `k` nearest neighbours in the archive.

        Args:
            behaviours: shape (n, components).

        Returns:
            Shape (n,). If the archive has fewer than `k` behaviours, the mean is over all of them; 0 if it is empty.

        Raises:
            ValueError: their length differs from that of the behaviours in the archive, or one is not finite.
        """
        rows = np.asarray(behaviours, np.float64)
        check_finite(rows)
        if not len(self) or not len(rows):
            return np.zeros(len(rows))
        self._check(rows)
        step = max(1, _DIFFERENCES // self._behaviours.size)
        return np.concatenate([self._novelty(rows[at : at + step]) for at in range(0, len(rows), step)])

    def _novelty(self, rows: Floats) -> Floats:
        differences = rows[:, None, :] - self._behaviours[None, :, :]
        distances = np.sqrt(np.square(differences, out=differences).sum(-1))
        if len(self) > self.k:
            distances = np.partition(distances, self.k - 1)[:, : self.k]
        return np.sort(distances).mean(-1)  # partition leaves an unspecified order, which changes the rounding

    def _check(self, rows: Floats) -> None:
        if len(self) and rows.shape[1] != self._behaviours.shape[1]:
            raise ValueError(
                f"a behaviour of {rows.shape[1]} numbers does not compare with those of {self._behaviours.shape[1]} "
                "that are in the archive; let the fitness function return behaviours of one length"
            )

    def state_dict(self) -> dict[str, Any]:
        """Return the behaviours."""
        return {"behaviours": self._behaviours}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state from `state_dict`."""
        self._behaviours = np.array(state["behaviours"], np.float64)
