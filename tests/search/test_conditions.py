"""Conditions: what is active, and what cannot be."""

from __future__ import annotations

from typing import Any

import pytest

from ropewalk.errors import SearchInvalid
from ropewalk.population.hyperparameters import Choice, Integers, Uniform
from ropewalk.search.conditions import When
from ropewalk.search.products import all_values, product
from ropewalk.search.space import SearchSpace


def test_conditions_chain_and_may_stand_before_what_they_name() -> None:
    space = SearchSpace(
        {"c": When({"b": [2, 3]}, 7), "b": When({"a": "x"}, Integers(1, 3)), "a": Choice(["x", "y"]), "d": 1}
    )
    assert list(space.parameters) == ["a", "b", "c", "d"]
    every = list(product(space.parameters.values(), all_values))
    assert every == [
        {"a": "x", "b": 1, "d": 1},
        {"a": "x", "b": 2, "c": 7, "d": 1},
        {"a": "x", "b": 3, "c": 7, "d": 1},
        {"a": "y", "d": 1},
    ]
    assert space.size == 4
    nested_when = SearchSpace({"a": Choice([1, 2]), "b": Choice([1, 2]), "c": When({"a": 1}, When({"b": 2}, 5))})
    assert [("c" in values) for values in product(nested_when.parameters.values(), all_values)] == [
        False,
        True,
        False,
        False,
    ]


def test_true_is_not_one_in_conditions_and_choices() -> None:
    space = SearchSpace({"a": Choice([True, 1]), "b": When({"a": 1}, 5)})
    assert [("b" in values) for values in product(space.parameters.values(), all_values)] == [False, True]


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"a": When({"b": 1}, 2), "b": When({"a": 2}, 1)}, "in a cycle: (a -> b -> a|b -> a -> b)"),
        ({"a": When({"a": 2}, 2)}, "in a cycle: a -> a"),
        ({"rate": 1, "a": When({"raet": 1}, 2)}, "'raet', which is not in the space; did you mean 'rate'"),
        ({"o": Choice(["sgd"]), "a": When({"o": "sdg"}, 2)}, "can never hold: o is never 'sdg': 'sdg' is not 'sgd'"),
        ({"o": Integers(1, 3), "a": When({"o": 4}, 2)}, "4 is not between 1 and 3"),
        ({"a": {"b": 1}, "a.b": 2}, "a.b is given twice"),
        ({"a": 1, "a.b": 2}, "a is a hyperparameter and also the mapping that contains a.b"),
        ({"a": [1, 2]}, r"Choice\(\[...\]\)"),
        ({"a": object()}, "hyperparameters are numbers"),
        ({"a": Uniform}, "neither a distribution nor a constant"),
        ({"a": {}}, "a is an empty mapping"),
        ({"a": {3: 1}}, "3 is not a name of a hyperparameter in 'a'"),
        ({"a..b": 1}, "'a..b' is not a name"),
    ],
)
def test_spaces_that_cannot_be_are_refused(parameters: dict[Any, Any], message: str) -> None:
    with pytest.raises(SearchInvalid, match=message):
        SearchSpace(parameters)


def test_a_condition_needs_names() -> None:
    with pytest.raises(SearchInvalid, match="When needs the names and values"):
        When({}, 1)
