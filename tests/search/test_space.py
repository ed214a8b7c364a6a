"""Spaces: names, conditions, constraints, configurations of people, and the files that describe a space."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk.errors import SearchInvalid
from ropewalk.population.hyperparameters import Choice, Integers, LogUniform, Uniform
from ropewalk.search.conditions import When
from ropewalk.search.name_streams import NameStreams
from ropewalk.search.products import all_values, product
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
    with pytest.raises(SearchInvalid, match=r"lacks model.layers, model.width, optimizer$"):
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


TOML = """
constraints = ["model.layers * model.width <= 2048"]

[parameters]
batch = 32
rate = { log_uniform = [1e-5, 1e-1] }
dropout = { uniform = [0.0, 0.5], step = 0.1 }
optimizer = { choice = ["adam", "sgd"] }
warmup = { constant = 100, when = { optimizer = ["adam", "sgd"] } }

[parameters.model]
layers = { integers = [2, 8], step = 2 }
width = { integers = [16, 1024], log = true }

[parameters.sgd]
when = { optimizer = "sgd" }
momentum = { uniform = [0.0, 0.99] }
"""


def test_a_file_describes_a_space(tmp_path: Path) -> None:
    (tmp_path / "space.toml").write_text(TOML)
    found = SearchSpace.from_toml(tmp_path / "space.toml")
    assert {name: each.distribution for name, each in found.parameters.items()} == {
        "batch": 32,
        "rate": LogUniform(1e-5, 1e-1),
        "dropout": Uniform(0, 0.5, 0.1),
        "optimizer": Choice(["adam", "sgd"]),
        "warmup": 100,
        "model.layers": Integers(2, 8, 2),
        "model.width": Integers(16, 1024, log=True),
        "sgd.momentum": Uniform(0, 0.99),
    }
    assert found.parameters["sgd.momentum"].condition_text() == "optimizer is 'sgd'"
    assert found.parameters["warmup"].condition_text() == "optimizer is 'adam' or 'sgd'"
    assert found.constraints.names == ["'model.layers * model.width <= 2048'"]
    again = SearchSpace.from_data(json.loads(json.dumps(found.described())))
    assert again.described() == found.described() and again.parameters == found.parameters


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("parameters = 3", r"the table \[parameters\] is missing"),
        ("[paramters]", "no table 'paramters'; did you mean 'parameters'"),
        ("[parameters", "is not TOML"),
        ("constraints = 3\n[parameters]", "constraints are a list of texts"),
        ("[parameters]\na = [1, 2]", r"a is the list \[1, 2\]; one of its values is \{ choice"),
        ("[parameters]\na = { unifrom = [0, 1] }", "a has the key 'unifrom'; did you mean 'uniform'"),
        ("[parameters]\na = { uniform = [0, 1], stpe = 1 }", "a has the key 'stpe'; did you mean 'step'"),
        ("[parameters]\na = { uniform = [0, 1], log = true }", "a has the key 'log'"),
        ("[parameters]\na = { uniform = [0, 1], choice = [1] }", "needs one of the keys"),
        ("[parameters]\na = { uniform = 3 }", "a list of the two bounds, not 3"),
        ("[parameters]\na = { uniform = ['x', 1] }", "bounds are numbers, not 'x'"),
        ("[parameters]\na = { integers = [0.5, 1] }", "are integers, not 0.5"),
        ("[parameters]\na = { log_uniform = [0, 1] }", "must be above 0"),
        ("[parameters]\na = { uniform = [0, 1], step = 'x' }", "a = .* is not valid"),
        ("[parameters]\na = { choice = 3 }", "a = .* is not valid"),
        ("[parameters]\na = { choice = [[1]] }", "a = .* is not valid"),
        ("[parameters]\na = { uniform = [0, 1], when = 3 }", "when of a is a table such as"),
        ("[parameters]\na = 2024-01-01", "hyperparameters are numbers"),
        ("constraints = ['__import__(\"os\")']\n[parameters]\na = 1", "is not accepted"),
    ],
)
def test_files_that_cannot_be_are_refused_by_name(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "space.toml"
    path.write_text(text)
    with pytest.raises(SearchInvalid, match=f"space.toml: .*{message}"):
        SearchSpace.from_toml(path)


def test_a_distribution_of_another_class_is_drawn_and_described() -> None:
    class Coin:
        def draw(self, rng: Any) -> bool:
            return bool(rng.random() < 0.5)

        def perturb(self, value: bool, factor: float) -> bool:
            return not value

    space = SearchSpace({"coin": Coin()})
    assert {space.draw(NameStreams(seed, 0))["coin"] for seed in range(20)} == {True, False}
    assert "Coin" in space.described()["parameters"]["coin"]["other"] and space.size is None
