"""Spaces: what is drawn, configurations of people, and how many there are."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk.errors import SearchInvalid
from ropewalk.population.hyperparameters import Choice, Integers, LogUniform, Uniform
from ropewalk.search.conditions import When
from ropewalk.search.name_streams import NameStreams
from ropewalk.search.space import SearchSpace

SPACE = SearchSpace(
    {
        "rate": LogUniform(1e-5, 1e-1),
        "model": {"layers": Integers(1, 8), "width": Integers(16, 1024, log=True)},
        "optimizer": Choice(["adam", "sgd", "lbfgs"]),
        "sgd": When({"optimizer": "sgd"}, {"momentum": Uniform(0, 0.99), "nesterov": Choice([True, False])}),
        "damping": When({"sgd.nesterov": False}, Uniform(0, 1, 0.25)),
        "batch": 32,
    },
    ["model.layers * model.width <= 2048"],
)


VALID = {
    "rate": 1e-3,
    "model.layers": 2,
    "model.width": 64,
    "optimizer": "sgd",
    "sgd.momentum": 0.5,
    "sgd.nesterov": False,
    "damping": 0.25,
    "batch": 32,
}


@given(seed=st.integers(0, 2**32))
@settings(max_examples=40, deadline=None)
def test_what_is_drawn_is_valid_and_survives_json(seed: int) -> None:
    values = SPACE.draw(NameStreams(seed, 0))
    assert SPACE.validate(json.loads(json.dumps(values))) == values
    assert SPACE.validate(SPACE.nested(values)) == values


def test_nested_configurations_are_the_arguments_of_a_function() -> None:
    assert SPACE.nested(VALID)["model"] == {"layers": 2, "width": 64}
    assert SPACE.nested(VALID)["sgd"] == {"momentum": 0.5, "nesterov": False}


def test_texts_become_values() -> None:
    texts = {name: str(value) for name, value in VALID.items()}
    found = SPACE.validate(texts)
    assert found == VALID and [type(each) for each in found.values()] == [type(VALID[name]) for name in found]
    assert SPACE.validate({"sgd.nesterov": "true"}, base=VALID)["sgd.nesterov"] is True


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"raet": 1}, "no hyperparameter 'raet'; did you mean 'rate'"),
        ({"rate": 1}, "rate: 1 is not between 1e-05 and 0.1"),
        ({"rate": "fast"}, "rate: 'fast' is not a number"),
        ({"rate": "nan"}, "rate: 'nan' is not a number"),
        ({"rate": True}, "rate: True is not a number"),
        ({"model.layers": 2.5}, "model.layers: 2.5 is not an integer"),
        ({"model.layers": "9"}, "model.layers: '9' is not between 1 and 8"),
        ({"damping": 0.3}, "damping: 0.3 is not a value of steps of 0.25 from 0; 0.25 is the nearest"),
        ({"optimizer": "adagrad"}, "optimizer: 'adagrad' is not one of 'adam', 'sgd', 'lbfgs'"),
        ({"optimizer": "adam"}, "sgd.momentum is active only if optimizer is 'sgd'"),
        ({"batch": 64}, "batch: 64 is not 32"),
        ({"model": {"layers": 8, "width": 1024}}, "does not satisfy 'model.layers \\* model.width <= 2048'"),
        ({"rate": object()}, "rate: the value is"),
    ],
)
def test_configurations_that_cannot_be_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SearchInvalid, match=message) as caught:
        SPACE.validate(VALID | changes)
    assert pickle.loads(pickle.dumps(caught.value)).parameter == caught.value.parameter


def test_what_is_missing_is_listed() -> None:
    with pytest.raises(SearchInvalid, match=r"lacks model.layers, model.width, optimizer\n"):
        SPACE.validate({"rate": 1e-3})


def test_a_fork_takes_the_rest_from_its_parent() -> None:
    found = SPACE.validate({"rate": "1e-4"}, base=VALID)
    assert found == VALID | {"rate": 1e-4}
    other = SPACE.validate({"optimizer": "adam"}, base=VALID)
    assert not [name for name in other if name.startswith("sgd") or name == "damping"]
    with pytest.raises(SearchInvalid, match=r"lacks sgd.momentum, sgd.nesterov"):
        SPACE.validate({"optimizer": "sgd"}, base=other)


def test_hyperparameters_that_trials_asked_for_can_be_set_too() -> None:
    suggested = {"decay": LogUniform(1e-4, 1)}
    assert SPACE.validate({"decay": "0.1"}, base=VALID, suggested=suggested)["decay"] == 0.1
    assert "decay" not in SPACE.validate({}, base=VALID, suggested=suggested)


def test_the_number_of_configurations_is_counted_without_listing_them() -> None:
    assert SPACE.size is None
    many = SearchSpace({f"x{index}": Integers(1, 1000) for index in range(10)})
    assert many.size == 1000**10
    assert SearchSpace({}).size == 1
    assert SearchSpace({"a": Uniform(0, 1, 0.1), "b": LogUniform(2, 2)}).size == 11
    assert SearchSpace({"a": Choice([1, 2]), "b": When({"a": 2}, Uniform(0, 1))}).size is None
    assert SearchSpace({"a": Integers(1, 10**6), "b": When({"a": 2}, 1)}).size is None


def test_a_distribution_of_another_class_is_drawn_and_described() -> None:
    class Coin:
        def draw(self, rng: Any) -> bool:
            return bool(rng.random() < 0.5)

        def perturb(self, value: bool, factor: float) -> bool:
            return not value

    space = SearchSpace({"coin": Coin()})
    assert {space.draw(NameStreams(seed, 0))["coin"] for seed in range(20)} == {True, False}
    assert "Coin" in space.described()["parameters"]["coin"]["other"] and space.size is None
