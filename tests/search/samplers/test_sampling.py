"""Samplers of our own: the suite of samplers, their distributions, and their sequences."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest

from ropewalk.errors import SearchInvalid
from ropewalk.population.hyperparameters import Choice, Integers, LogUniform, Uniform
from ropewalk.search.conditions import When
from ropewalk.search.samplers import SAMPLERS
from ropewalk.search.samplers.sampler import Observed, Sampler
from ropewalk.search.space import SearchSpace
from ropewalk.testing.sampler_conformance import SamplerConformance


class TestRandom(SamplerConformance):
    trials = 40

    def make_sampler(self) -> Sampler:
        return SAMPLERS.make("random", {})


class TestSobol(SamplerConformance):
    trials = 80

    def make_sampler(self) -> Sampler:
        return SAMPLERS.make("sobol", {})


class TestGrid(SamplerConformance):
    trials = 40
    depends_on_seed = False
    suggests = False

    def make_sampler(self) -> Sampler:
        return SAMPLERS.make("grid", {"points": 3})


def asked(name: str, space: SearchSpace, trials: int, seed: int = 1, **options: Any) -> list[dict[str, Any]]:
    sampler: Sampler = SAMPLERS.make(name, options)
    sampler.begin(space, 1, seed)
    known: list[Observed] = []
    for number in range(trials):
        if (values := sampler.ask(number, known)) is None:
            break
        known.append(Observed(number, values, None, 0.0, is_under_way=True))
    return [dict(each.hyperparameters) for each in known]


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


def test_a_sobol_sequence_covers_each_quarter_of_the_plane_equally() -> None:
    """In its first 64 points each square of 8 x 8 has one point: it is a (t, 6, 2)-net with t = 0."""
    found = asked("sobol", SearchSpace({"x": Uniform(0.0, 8.0), "y": Uniform(0.0, 8.0)}), 64)
    assert set(Counter((int(each["x"]), int(each["y"])) for each in found).values()) == {1}


def test_a_grid_has_each_combination_once_and_ends() -> None:
    space = SearchSpace(
        {
            "a": Choice(["x", "y"]),
            "b": When({"a": "y"}, Integers(1, 3)),
            "c": Uniform(0.0, 0.2, 0.1),
            "d": LogUniform(1e-4, 1.0),
        },
        ["c != 0.1"],
    )
    found = asked("grid", space, 100, points={"d": 3})
    assert len(found) == (1 + 3) * 2 * 3
    assert len({tuple(each.items()) for each in found}) == len(found)
    assert found[0] == {"a": "x", "c": 0.0, "d": 1e-4} and found[1]["d"] == pytest.approx(1e-2)


def test_a_grid_leaves_out_what_was_tried() -> None:
    sampler = SAMPLERS.make("grid", {})
    sampler.begin(SearchSpace({"a": Integers(1, 4)}), 1, 1)
    known = [Observed(0, {"a": 2}, (1.0,), 1.0, is_under_way=False)]
    found = []
    while (values := sampler.ask(len(known), known)) is not None:
        known.append(Observed(len(known), values, None, 0.0, is_under_way=True))
        found.append(values["a"])
    assert found == [1, 3, 4]


def test_points_of_a_hyperparameter_thin_out_its_integers() -> None:
    found = asked("grid", SearchSpace({"a": Integers(0, 100)}), 100, points={"a": 5})
    assert [each["a"] for each in found] == [0, 25, 50, 75, 100]
    assert len(asked("grid", SearchSpace({"a": Integers(0, 9)}), 100, points=3)) == 10


@pytest.mark.parametrize(
    ("options", "space", "message"),
    [
        ({}, {"rate": Uniform(0, 1)}, r"rate has too many values for a grid; .*points=\{'rate': 5\}"),
        ({"points": {"raet": 3}}, {"rate": Uniform(0, 1)}, "'raet', which is not in the space; did you mean 'rate'"),
        ({"points": 0}, {"rate": Uniform(0, 1)}, "at least 1, not 0"),
        ({"points": {"a": 2}}, {"a": Choice([1, 2, 3])}, "a grid needs bounds"),
    ],
)
def test_grids_that_cannot_be_are_refused(options: dict[str, Any], space: dict[str, Any], message: str) -> None:
    with pytest.raises(SearchInvalid, match=message):
        SAMPLERS.make("grid", options).begin(SearchSpace(space), 1, 1)


def test_an_unknown_sampler_is_answered_with_the_near_one() -> None:
    with pytest.raises(SearchInvalid, match=r"no sampler 'radnom'; did you mean 'random'\? there are random, grid"):
        SAMPLERS.make("radnom", {})
