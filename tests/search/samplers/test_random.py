"""Random search: the suite of samplers, and the distributions of what is drawn."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest

from ropewalk.population.hyperparameters import Choice, Integers, LogUniform, Uniform
from ropewalk.search.samplers import SAMPLERS
from ropewalk.search.samplers.sampler import Sampler
from ropewalk.search.space import SearchSpace
from ropewalk.testing.sampler_conformance import SamplerConformance
from tests.search.samplers.asking import asked

DRAWN = SearchSpace(
    {
        "a": Uniform(-1.0, 3.0),
        "b": LogUniform(1e-4, 1.0),
        "c": Integers(1, 10),
        "d": Choice(["x", "y", "z"]),
        "e": Integers(1, 1000, log=True),
        "f": Uniform(0.0, 1.0, 0.25),
    }
)


TEN_BINS = {
    "a": lambda value: int((value + 1) / 4 * 10),
    "b": lambda value: int((math.log10(value) + 4) / 4 * 10),
    "c": lambda value: value - 1,
    "d": lambda value: "xyz".index(value),
    "e": lambda value: min((value - 1).bit_length(), 9),  # 1, 2, 3 to 4, 5 to 8, ...
    "f": lambda value: round(value * 4),
}


class TestRandom(SamplerConformance):
    trials = 40

    def make_sampler(self) -> Sampler:
        return SAMPLERS.make("random", {})


def expected_shares(name: str) -> list[float]:
    if name == "e":
        shares = [0.0] * 10
        for value in range(1, 1001):  # n stands for the interval from n - 1/2 to n + 1/2
            shares[TEN_BINS["e"](value)] += math.log((2 * value + 1) / (2 * value - 1)) / math.log(2001)
        return shares
    size = {"d": 3, "f": 5}.get(name, 10)
    return [1 / size] * size


@pytest.fixture(scope="module")
def drawn() -> list[dict[str, Any]]:
    return asked("random", DRAWN, 2000)


@pytest.mark.parametrize("name", list("abcdef"))
def test_values_have_their_distribution(name: str, drawn: list[dict[str, Any]]) -> None:
    """Chi-square of 2,000 draws with a fixed seed; 27.9 is exceeded with probability 0.001 at 9 degrees of freedom."""
    counts = Counter(TEN_BINS[name](values[name]) for values in drawn)
    shares = expected_shares(name)
    assert sum(shares) == pytest.approx(1)
    chi_square = sum((counts[index] - 2000 * share) ** 2 / (2000 * share) for index, share in enumerate(shares))
    assert chi_square < 27.9


def test_a_hyperparameter_that_is_added_changes_no_other(drawn: list[dict[str, Any]]) -> None:
    more = SearchSpace({"new": Uniform(0, 1), **{each.name: each.distribution for each in DRAWN.parameters.values()}})
    found = asked("random", more, 3)
    assert [{name: each[name] for name in drawn[0]} for each in found] == drawn[:3]


def test_hyperparameters_do_not_depend_on_each_other(drawn: list[dict[str, Any]]) -> None:
    table = np.array([[values["a"], math.log(values["b"]), values["c"], values["f"]] for values in drawn])
    correlations = np.corrcoef(table.T) - np.eye(4)
    assert np.abs(correlations).max() < 0.08  # 3.5 standard deviations of 1 / sqrt(2000)
