from __future__ import annotations

import copy
import json
import math
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ropewalk.tracking.run_config import RunConfig, to_plain


@dataclass
class Optimiser:
    rate: float
    name: str = "adam"


def test_a_configuration_reads_like_a_dictionary_and_tells_what_changes() -> None:
    changes: list[dict[str, Any]] = []
    config = RunConfig({"lr": 0.1}, changes.append)
    config.update({"layers": (1, 2)}, lr=0.2)
    assert dict(config) == {"lr": 0.2, "layers": (1, 2)}
    assert changes == [{"layers": [1, 2], "lr": 0.2}]


def test_settings_are_items_and_what_is_written_to_an_attribute_is_not_lost() -> None:
    changes: list[dict[str, Any]] = []
    config: Any = RunConfig({"lr": 0.1}, changes.append)
    config["lr"] = 0.2
    assert (config["lr"], changes) == (0.2, [{"lr": 0.2}])
    with pytest.raises(AttributeError, match=r"no attribute 'lr'; settings are items: run.config\['lr'\]"):
        _ = config.lr
    with pytest.raises(AttributeError, match=r"run.config\['lr'\] = ..., not run.config.lr = ..."):
        config.lr = 3
    assert (
        copy.deepcopy(RunConfig({"lr": [1]}, print))
        == {"lr": [1]}
        == pickle.loads(pickle.dumps(RunConfig({"lr": [1]}, print)))
    )


def test_a_missing_setting_is_answered_with_those_that_are_there() -> None:
    with pytest.raises(KeyError, match="'rate' is not in the configuration of this run; it has lr, layers"):
        RunConfig({"lr": 0.1, "layers": 2}, print)["rate"]


def test_all_values_become_json() -> None:
    given = {
        "o": Optimiser(np.float64(0.5)), "path": Path("/a"), 3: {1}, "nan": math.nan, "f": np.float32(1), "x": object,
    }  # fmt: skip
    plain = to_plain(given)
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    assert plain == {
        "o": {"rate": 0.5, "name": "adam"}, "path": "/a", "3": [1], "nan": "nan", "f": 1.0, "x": "<class 'object'>",
    }  # fmt: skip
