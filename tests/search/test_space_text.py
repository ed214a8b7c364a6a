"""Files that describe a space."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ropewalk.errors import SearchInvalid
from ropewalk.population.hyperparameters import Choice, Integers, LogUniform, Uniform
from ropewalk.search.space import SearchSpace

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
