"""MAP-Elites: the best solution for each kind of behaviour, and not only the best one.

Mouret, Clune: Illuminating search spaces by mapping elites, 2015 (https://arxiv.org/abs/1504.04909), figure 2. With a
`CVTArchive` it is CVT-MAP-Elites (Vassiliades et al. 2016, https://arxiv.org/abs/1610.05729).

    ask: random solutions first, then emitter(elites) ──▶ fitness(x) ─▶ Outcome(fitness, behaviour)
                                    ▲                                        │
                                 archive ◀─ tell: the better one of each niche stays

It is a steady-state method: any candidates may be told at any time. In generations, a whole batch is created from the
elites before it, so that it can be evaluated concurrently.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ropewalk.population.algorithm import Algorithm, Panel
from ropewalk.population.algorithms.emitters import Emitter, IsoLine
from ropewalk.population.archives.elite_archive import EliteArchive
from ropewalk.population.outcome import Outcome
from ropewalk.population.panels.archive import ArchivePanel

Floats = NDArray[np.floating]


class MAPElites(Algorithm[Floats]):
    """Fills an archive of niches with elites.

    Mouret and Clune, Illuminating search spaces by mapping elites, 2015 (https://arxiv.org/abs/1504.04909), figure
    2.

    The fitness function returns `Outcome(fitness, behaviour)`, where the behaviour has one component for each range of
    the archive. Evaluations that failed (see `evaluate(failures=...)`), or have a fitness of minus infinity,
    enter no niche.

    Example:
        >>> import numpy as np
        >>> from ropewalk.population import GridArchive, MAPElites, Outcome, evaluate
        >>> archive = GridArchive((4, 4), [(-1, 1), (-1, 1)])
        >>> elites = MAPElites(np.zeros(2), archive, population=32, bounds=(-1, 1), seed=1)
        >>> run = evaluate(elites, lambda x: Outcome(-float(x @ x), behaviour=x), None, generations=20)
        >>> len(archive), archive.num_niches  # niches that were reached
        (16, 16)

    Args:
        initial: a start solution, or its length (then it is zeros); float32 stays float32.
        archive: `GridArchive` or `CVTArchive`; it is filled in place, also by `load_state_dict`.
        population: number of candidates in a generation.
        emitter: creates candidates from elites: `IsoLine()` by default, or `Gaussian(sigma)`.
        num_random: number of random candidates at the beginning; defaults to one generation.
        initial_sigma: standard deviation of these around the start solution, if there are no bounds.
        bounds: (low, high) to which solutions are clipped: numbers for all components, or one array each; random
            solutions are then uniform between them.
        seed: seed of all random numbers.
    """

    def __init__(
        self,
        initial: ArrayLike | int,
        archive: EliteArchive,
        *,
        population: int = 128,
        emitter: Emitter | None = None,
        num_random: int | None = None,
        initial_sigma: float = 1.0,
        bounds: tuple[ArrayLike, ArrayLike] | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(population, seed)
        start = np.zeros(initial) if isinstance(initial, int) else np.array(initial)
        self._start: Floats = start if start.dtype == np.float32 else start.astype(np.float64)
        if self._start.ndim != 1 or not self._start.size:
            raise ValueError(
                f"initial must be a vector of at least 1 number, or its length; its shape is {start.shape}"
            )
        if not initial_sigma >= 0:
            raise ValueError(f"initial_sigma must be 0 or more, not {initial_sigma}")
        self._num_random = population if num_random is None else num_random
        if self._num_random < 1:
            raise ValueError(f"num_random must be at least 1, not {num_random}")
        self._bounds = None if bounds is None else self._checked(bounds)
        self.archive = archive
        self._emitter = IsoLine() if emitter is None else emitter
        self._initial_sigma = initial_sigma
        self._num_asks = self._num_asked = self._num_told = 0
        self._changed_in = 0
        self._changes = (0, 0)

    def _checked(self, bounds: tuple[ArrayLike, ArrayLike]) -> tuple[Floats, Floats]:
        low, high = (np.broadcast_to(np.asarray(bound, self._start.dtype), self._start.shape) for bound in bounds)
        with np.errstate(over="ignore", invalid="ignore"):
            widths = high - low
        if not ((widths > 0) & np.isfinite(widths)).all():
            raise ValueError(
                "bounds must be finite, (low, high) with low < high for each number of a solution, as random solutions "
                f"are drawn between them; not {bounds}"
            )
        return low, high

    def ask(self, n: int) -> Sequence[Floats]:
        """Return random solutions until `num_random` were asked for, then children of elites."""
        rng = np.random.default_rng([self.seed, self._num_asks])
        num_random_left = self._num_random - self._num_asked
        if num_random_left > 0:
            made = self._random(rng, min(n, num_random_left))
        elif not len(self.archive):  # the archive is still empty
            made = self._random(rng, n)
        else:
            made = self._emitter(self.archive.solutions, rng, n)
        if self._bounds is not None:
            made = np.clip(made, *self._bounds)
        self._num_asks, self._num_asked = self._num_asks + 1, self._num_asked + len(made)
        return list(made.astype(self._start.dtype, copy=False))

    def _random(self, rng: np.random.Generator, num: int) -> Floats:
        shape = (num, self._start.size)
        if self._bounds is not None:
            return rng.uniform(*self._bounds, shape)
        return self._start + self._initial_sigma * rng.standard_normal(shape)

    def tell(self, candidates: Sequence[Floats], outcomes: Sequence[Outcome]) -> None:
        """Put each candidate into its niche, if it is better than the elite there."""
        told = [
            (x, outcome)
            for x, outcome in zip(candidates, outcomes, strict=True)
            if not outcome.failure and outcome.fitness > -np.inf
        ]
        if any(outcome.behaviour is None for _, outcome in told):
            raise ValueError(
                "MAP-Elites must know what a candidate did, and the fitness function returned a number only; return "
                f"Outcome(fitness, behaviour) with {len(self.archive.lows)} numbers of behaviour"
            )
        if told:
            solutions, results = zip(*told, strict=True)
            fitnesses = [outcome.fitness for outcome in results]
            behaviours = [outcome.behaviour for outcome in results]
            if self._num_told // self.population != self._changed_in:
                self._changed_in, self._changes = self._num_told // self.population, (0, 0)
            taken, replaced = self.archive.add(np.stack(solutions), fitnesses, np.stack(behaviours))
            self._changes = (self._changes[0] + taken, self._changes[1] + replaced)
        self._num_told += len(candidates)
        self.generation: int = self._num_told // self.population

    def incumbent(self) -> Floats | None:
        """Return the fittest elite."""
        best = self.archive.best
        return None if best is None else self.archive.solutions[best].copy()

    def panels(self) -> Mapping[str, Panel]:
        """Return the panel "archive"."""
        return {"archive": ArchivePanel(self.archive).data}

    def figures(self) -> dict[str, float]:
        """Return QD score, coverage, number and greatest fitness of elites, and the changes by the last generation."""
        taken, replaced = self._changes
        best = self.archive.best
        return {
            "qd_score": self.archive.qd_score,
            "coverage": self.archive.coverage,
            "elites": len(self.archive),
            "best_elite": float("nan") if best is None else float(self.archive.fitnesses[best]),
            "niches_taken": taken,
            "elites_replaced": replaced,
        }

    def state_dict(self) -> dict[str, Any]:
        """Return the archive, and the numbers of candidates asked for and told."""
        return {
            "algorithm": "MAPElites",
            "dim": self._start.size,
            "seed": self.seed,
            "population": self.population,
            "num_asks": self._num_asks,
            "num_asked": self._num_asked,
            "num_told": self._num_told,
            "changes": [self._changed_in, *self._changes],
            "archive": self.archive.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state from `state_dict`."""
        own = {"algorithm": "MAPElites", "dim": self._start.size, "seed": self.seed, "population": self.population}
        for name, value in own.items():
            if state.get(name) != value:
                raise ValueError(f"the state has {name} {state.get(name)!r}, and this algorithm has {value!r}")
        self.archive.load_state_dict(state["archive"])
        self._num_asks, self._num_asked = int(state["num_asks"]), int(state["num_asked"])
        self._num_told = int(state["num_told"])
        self._changed_in, *changes = map(int, state["changes"])
        self._changes = (changes[0], changes[1])
        self.generation = self._num_told // self.population
