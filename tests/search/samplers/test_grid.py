"""Grids: the suite of samplers, and which combinations are tried."""

from __future__ import annotations

from typing import Any

import pytest

from ropewalk.errors import SearchInvalid
from ropewalk.population.hyperparameters import Choice, Integers, LogUniform, Uniform
from ropewalk.search.conditions import When
from ropewalk.search.samplers import SAMPLERS
from ropewalk.search.samplers.sampler import Observed, Sampler
from ropewalk.search.space import SearchSpace
from ropewalk.testing.sampler_conformance import SamplerConformance
from tests.search.samplers.asking import asked


class TestGrid(SamplerConformance):
    trials = 40
    depends_on_seed = False
    suggests = False

    def make_sampler(self) -> Sampler:
        return SAMPLERS.make("grid", {"points": 3})


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


def test_points_of_a_hyperparameter_thin_out_its_integers() -> None:
    found = asked("grid", SearchSpace({"a": Integers(0, 100)}), 100, points={"a": 5})
    assert [each["a"] for each in found] == [0, 25, 50, 75, 100]
    assert len(asked("grid", SearchSpace({"a": Integers(0, 9)}), 100, points=3)) == 10
