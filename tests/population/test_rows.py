"""Rows of the table: quartiles are fitnesses of evaluations, also where some are infinite."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ropewalk.population.outcome import Outcome
from ropewalk.population.rows import row_of


@pytest.mark.parametrize("num", [1, 2, 3, 4, 5, 6, 64, 101])
def test_quartiles_are_those_of_the_nearest_rank(num: int) -> None:
    fitness = np.random.default_rng(num).standard_normal(num).tolist()
    row = row_of([Outcome(each) for each in fitness])
    names = ("min", "lower_quartile", "median", "upper_quartile", "max")
    assert [row[name] for name in names] == np.quantile(fitness, [0, 0.25, 0.5, 0.75, 1], method="nearest").tolist()


def test_infinite_fitnesses_have_a_rank() -> None:
    row = row_of([Outcome(-math.inf), Outcome(-math.inf), Outcome(1.0)])
    assert (row["lower_quartile"], row["median"], row["upper_quartile"], row["max"]) == (-math.inf, -math.inf, 1.0, 1.0)


def test_a_generation_without_outcomes_has_no_median() -> None:
    assert math.isnan(row_of([])["median"])


def test_very_large_fitnesses_have_no_deviation_and_cause_no_warning() -> None:
    """Numpy warned of its own overflow in every generation."""
    row = row_of([Outcome(1e200), Outcome(-1e200)])
    assert row["std"] == math.inf and row["mean"] == 0.0
    assert row_of([Outcome(1.7e308), Outcome(1.7e308)])["mean"] == math.inf
