"""Constraints: what they admit, and what is said if that is nothing."""

from __future__ import annotations

from typing import Any

import pytest

from ropewalk.errors import SearchInvalid
from ropewalk.population.hyperparameters import Integers, Uniform
from ropewalk.search.space import SearchSpace


def narrow(values: Any) -> bool:
    return values["a"] < 0


def half(values: Any) -> bool:
    return values["b"] <= 2


def test_a_space_whose_constraints_admit_nothing_is_named_with_the_shares() -> None:
    with pytest.raises(SearchInvalid, match=r"none of the 12 configurations: narrow admits 0.0%, half admits 50.0%"):
        SearchSpace({"a": Integers(1, 3), "b": Integers(1, 4)}, [narrow, half]).check()
    with pytest.raises(SearchInvalid, match=r"none of 10,000 configurations that were drawn: 'x > 1' admits 0.0%"):
        SearchSpace({"x": Uniform(0, 1)}, ["x > 1"]).check()
    SearchSpace({"a": Integers(1, 3), "b": Integers(1, 4)}, [half]).check()
    SearchSpace({"a": Integers(1, 3000), "b": Integers(1, 4)}, ["a == 777"]).check()


def test_a_constraint_that_raises_is_named_with_the_configuration() -> None:
    def of_momentum(values: Any) -> bool:
        return values["sgd"]["momentum"] > 0

    space = SearchSpace({"optimizer": "adam", "x": Uniform(0, 1)}, [of_momentum])
    with pytest.raises(SearchInvalid, match=r"of_momentum raised KeyError: 'sgd' for \{'optimizer': 'adam'.*use .get"):
        space.check()


@pytest.mark.parametrize(
    ("constraints", "message"),
    [
        (["raet > 1"], "names 'raet', which is not in the space; did you mean 'rate'"),
        ("rate > 1", "a list of functions"),
        ([3], "a function of the nested configuration"),
    ],
)
def test_constraints_that_cannot_be_are_refused(constraints: Any, message: str) -> None:
    with pytest.raises(SearchInvalid, match=message):
        SearchSpace({"rate": Uniform(0, 1)}, constraints)
