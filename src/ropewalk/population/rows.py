"""Rows of the table of a run: the results of one generation, with the test of the incumbent."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ropewalk.population.outcome import Outcome

Row = dict[str, float]
"""The results of one generation, by column name."""
RESERVED = frozenset(
    (
        *("generation", "evaluations", "steps", "mean", "std", "min", "lower_quartile", "median", "upper_quartile"),
        *("max", "best", "test", "failed", "dropped", "seconds", "evaluations_per_s", "workers", "launcher_ms"),
    )
)
"""Columns of every run."""
_RANKS = {"min": 0.0, "lower_quartile": 0.25, "median": 0.5, "upper_quartile": 0.75, "max": 1.0}
"""Columns of the spread of the fitness, with their quantiles."""


@dataclass(frozen=True, slots=True)
class EvalConfig:
    """Additional episodes that test the incumbent: their seeds differ from all seeds of training.

    Args:
        episodes: number of episodes in each test.
        every: number of generations between two tests.
    """

    __test__ = False  # pytest must not collect this class

    episodes: int = 8
    every: int = 1

    def __post_init__(self) -> None:
        if self.episodes < 1 or self.every < 1:
            raise ValueError(f"episodes and every of a test are at least 1, not {self.episodes} and {self.every}")


@dataclass(slots=True)
class Testing:
    """The test of a row, running or finished."""

    incumbent: Any
    num_left: int
    fitness: dict[int, float | None] = field(default_factory=dict[int, "float | None"])
    """The fitness of each episode; None stands for the worst fitness so far, which is filled in when the row ends."""

    def mean(self, worst: float) -> float:
        """Return the mean over the episodes that count, in their order; NaN if there are none."""
        counted = [worst if each is None else each for _, each in sorted(self.fitness.items())]
        return float(np.mean(counted)) if counted else float("nan")


@dataclass(slots=True)
class OpenRow:
    """The data of a row while its generation is in progress."""

    began_s: float
    began_cpu_s: float
    testing: Testing | None
    outcomes: list[Outcome] = field(default_factory=list[Outcome])
    num_failed: int = 0
    num_dropped: int = 0


def row_of(outcomes: Sequence[Outcome]) -> Row:
    """Summarise outcomes: mean, deviation, extremes and quartiles of the fitness, steps, means of the users' values.

    A quartile is the fitness of the evaluation with the nearest rank, as `np.quantile(..., method="nearest")`: no mean
    of two, which infinite fitnesses would not have.
    """
    fitness = np.array([outcome.fitness for outcome in outcomes] or [np.nan])
    row: Row = {"steps": sum(outcome.steps for outcome in outcomes)}
    with np.errstate(invalid="ignore", over="ignore"):  # infinite and very large fitnesses have no deviation
        row |= {"mean": float(fitness.mean()), "std": float(fitness.std())}
    ranked = np.sort(fitness)
    for name, share in _RANKS.items():
        row[name] = float(ranked[round(share * (len(ranked) - 1))])
    values: dict[str, list[float]] = {}
    for outcome in outcomes:
        for name, value in outcome.values.items():
            values.setdefault(name, []).append(float(value))
    check_names("an Outcome has values", values)
    return row | {name: float(np.mean(each)) for name, each in values.items()}


def check_names(who: str, names: Iterable[str]) -> None:
    """Raise ValueError if a name is a column that every run has."""
    taken = RESERVED.intersection(names)
    if taken:
        raise ValueError(
            f"{who} called {', '.join(sorted(taken))}, which are columns of every run; use other names (taken: "
            f"{', '.join(sorted(RESERVED))})"
        )
