"""An archive of the best solution found in each niche of behaviour.

Mouret, Clune: Illuminating search spaces by mapping elites, 2015 (https://arxiv.org/abs/1504.04909), section 3. Which
behaviours share a niche depends on the kind of archive: `GridArchive` or `CVTArchive`.

    behaviour ─ niches_of ─▶ niche ─▶ row ─▶ solutions[row], fitnesses[row], behaviours[row]
                              none: -1 ┘      only for occupied niches, so that many niches cost little
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ropewalk.population.archives.finite_behaviours import check_finite

Floats = NDArray[np.floating]
Indices = NDArray[np.int64]


class EliteArchive(ABC):
    """Keeps the elite of each niche.

    Args:
        num_niches: number of niches.
        ranges: (low, high) of each component of a behaviour.
        qd_offset: the fitness that contributes 0 to the QD score; best the lowest possible fitness, because a new elite
            below it would reduce the score.
    """

    def __init__(self, num_niches: int, ranges: Sequence[tuple[float, float]], qd_offset: float) -> None:
        if not ranges:
            raise ValueError("ranges must have a pair (low, high) for each number of a behaviour; it is empty")
        for low, high in ranges:
            if not (np.isfinite([low, high]).all() and low < high):
                raise ValueError(
                    f"ranges must be pairs (low, high) of finite numbers with low < high, not {(low, high)}"
                )
        self.num_niches = num_niches
        self.lows: Floats = np.array([low for low, _ in ranges], np.float64)
        self.highs: Floats = np.array([high for _, high in ranges], np.float64)
        self.qd_offset = qd_offset
        self._row_of = np.full(num_niches, -1)
        self._num = 0
        # Rows with spare capacity: memory doubles when it is full, so elites are not moved on every addition.
        self._niches: Indices = np.zeros(0, np.int64)
        self._solutions: Floats = np.zeros((0, 0))
        self._fitnesses: NDArray[np.float64] = np.zeros(0)
        self._behaviours: NDArray[np.float64] = np.zeros((0, len(ranges)))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} with elites in {len(self)} of {self.num_niches} niches>"

    @property
    def niches(self) -> Indices:
        """The niche of each row: int64 of shape (num,), in the order in which the niches were first occupied."""
        return self._niches[: self._num]

    @property
    def solutions(self) -> Floats:
        """The elite of each row: shape (num, components of a solution)."""
        return self._solutions[: self._num]

    @property
    def fitnesses(self) -> NDArray[np.float64]:
        """The fitness of each row's elite: float64 of shape (num,)."""
        return self._fitnesses[: self._num]

    @property
    def behaviours(self) -> NDArray[np.float64]:
        """The behaviour of each row's elite: float64 of shape (num, components of a behaviour)."""
        return self._behaviours[: self._num]

    @abstractmethod
    def niches_of(self, behaviours: NDArray[np.float64]) -> Indices:
        """Return the niche of each behaviour; a behaviour outside the ranges belongs to the nearest niche.

        Args:
            behaviours: float64 of shape (n, components of a behaviour).
        """

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """The shape of the archive: its number of niches along each component, or in all."""

    def __len__(self) -> int:
        """Return the number of occupied niches."""
        return self._num

    def add(self, solutions: ArrayLike, fitnesses: ArrayLike, behaviours: ArrayLike) -> tuple[int, int]:
        """Put each solution into its niche if it is better than the elite there.

        Among equal fitnesses, the existing elite stays, and otherwise the first solution of this call wins: so the same
        solutions in the same order give the same archive, in one call or in several.

        Args:
            solutions: shape (n, components of a solution).
            fitnesses: shape (n,), to maximise.
            behaviours: shape (n, components of a behaviour).

        Returns:
            The number of niches that were newly occupied, and the number of elites that were replaced.

        Raises:
            ValueError: the shapes do not match, or a behaviour is not finite.
        """
        new, fitness, behaviour = _floats(solutions), np.asarray(fitnesses, np.float64), self._checked(behaviours)
        if not len(new) == len(fitness) == len(behaviour):
            raise ValueError(f"{len(new)} solutions came with {len(fitness)} fitnesses and {len(behaviour)} behaviours")
        if not len(new):
            return 0, 0
        niches = self.niches_of(behaviour)
        present, arrivals = np.unique(niches, return_index=True)
        order = np.lexsort((-fitness, niches))  # stable: ties stay in order
        candidates = order[np.searchsorted(niches[order], present)]  # the best of each niche
        candidates = candidates[np.argsort(arrivals)]  # niches in the order in which single additions would occupy them
        rows = self._row_of[niches[candidates]]
        founders = candidates[rows < 0]
        settled = rows >= 0
        rows, challengers = rows[settled], candidates[settled]
        better = fitness[challengers] > self._fitnesses[rows]
        winners = np.concatenate([challengers[better], founders])
        rows = np.concatenate([rows[better], self._make_rows(niches[founders], new)])
        self._solutions[rows], self._fitnesses[rows] = new[winners], fitness[winners]
        self._behaviours[rows] = behaviour[winners]
        return len(founders), int(better.sum())

    def _make_rows(self, niches: Indices, like: Floats) -> Indices:
        """Create rows for newly occupied niches; `like` has solutions of the same shape and dtype."""
        if self._solutions.shape[1:] != like.shape[1:]:
            if self._num:
                raise ValueError(f"solutions here have {self._solutions.shape[1:]} numbers, not {like.shape[1:]}")
            self._solutions = np.zeros((0, *like.shape[1:]), like.dtype)
        first, self._num = self._num, self._num + len(niches)
        if self._num > len(self._niches):
            room = min(max(2 * len(self._niches), self._num), self.num_niches)
            self._niches, self._solutions = _enlarged(self._niches, room), _enlarged(self._solutions, room)
            self._fitnesses, self._behaviours = _enlarged(self._fitnesses, room), _enlarged(self._behaviours, room)
        rows = np.arange(first, self._num)
        self._niches[rows], self._row_of[niches] = niches, rows
        return rows

    def _checked(self, behaviours: ArrayLike) -> NDArray[np.float64]:
        behaviour = np.asarray(behaviours, np.float64)
        if behaviour.ndim != 2 or behaviour.shape[1] != len(self.lows):
            raise ValueError(
                f"behaviours must have the shape (n, {len(self.lows)}) for this archive, which has ranges for "
                f"{len(self.lows)} numbers, not {behaviour.shape}"
            )
        check_finite(behaviour)
        return behaviour

    # --- what it tells ------------------------------------------------------------------------------------------------

    @property
    def coverage(self) -> float:
        """The share of occupied niches, from 0 to 1."""
        return len(self) / self.num_niches

    @property
    def qd_score(self) -> float:
        """The sum of the elites' fitnesses above `qd_offset`."""
        return float((self.fitnesses - self.qd_offset).sum())

    @property
    def best(self) -> int | None:
        """The row of the fittest elite, the first-occupied among equals; None if the archive is empty."""
        return int(self.fitnesses.argmax()) if len(self) else None

    def fitness_by_niche(self) -> NDArray[np.float64]:
        """Return the fitness of the elite in each niche, NaN if it is empty: float64 of the archive's `shape`."""
        fitness = np.full(self.num_niches, np.nan)
        fitness[self.niches] = self.fitnesses
        return fitness.reshape(self.shape)

    # --- its state ----------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the elites, in the order of their rows."""
        return {
            "kind": type(self).__name__,
            "shape": list(self.shape),
            "lows": self.lows,
            "highs": self.highs,
            "niches": self.niches.copy(),
            "solutions": self.solutions.copy(),
            "fitnesses": self.fitnesses.copy(),
            "behaviours": self.behaviours.copy(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state from `state_dict`.

        Raises:
            ValueError: the state belongs to another archive.
        """
        own = {"kind": type(self).__name__, "shape": list(self.shape), "lows": self.lows, "highs": self.highs}
        for name, value in own.items():
            if not np.array_equal(value, state[name]):
                raise ValueError(f"the state is of an archive with {name} {state[name]}, and this one has {value}")
        self._niches, self._solutions = np.array(state["niches"], np.int64), np.array(state["solutions"])
        self._fitnesses = np.array(state["fitnesses"], np.float64)
        self._behaviours = np.array(state["behaviours"], np.float64)
        self._num = len(self._niches)
        self._row_of = np.full(self.num_niches, -1)
        self._row_of[self._niches] = np.arange(self._num)


def _floats(solutions: ArrayLike) -> Floats:
    """The solutions as they are, or as float64 where they are integers: the next ones may not be."""
    array = np.asarray(solutions)
    return array if np.issubdtype(array.dtype, np.floating) else array.astype(np.float64)


def _enlarged(array: NDArray[Any], length: int) -> NDArray[Any]:
    larger = np.empty((length, *array.shape[1:]), array.dtype)
    larger[: len(array)] = array
    return larger
