"""What the grouped options of a trainer take, and what they refuse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import ropewalk as rw
from ropewalk.errors import PlanInvalid
from ropewalk.pipeline import OptimizerMaker
from ropewalk.training import ProcessOptions, Progress, Snapshots, Sources, TrainerTimeouts


def test_a_folder_for_copies_is_a_path_and_words_stay_words() -> None:
    assert [Snapshots(copy=copy).where for copy in ("auto", "launcher", None)] == ["auto", "launcher", None]
    assert Snapshots(copy="copies").where == Snapshots(copy=Path("copies")).where == Path("copies")


def test_each_training_counts_its_own_steps() -> None:
    snapshots = Snapshots(every=3)
    assert snapshots.pace() is not snapshots.pace()
    assert snapshots.pace().every == 3


@pytest.mark.parametrize(
    ("make", "options", "error", "message"),
    [
        (Snapshots, {"every": 0}, ValueError, "every 1 or more steps, or 'auto', not every 0"),
        (Snapshots, {"every": "3"}, TypeError, "every is of type str; give a number of steps, or 'auto'"),
        (Snapshots, {"every": 2.5}, TypeError, "every is of type float"),
        (TrainerTimeouts, {"stalled_s": "600"}, TypeError, "stalled_s is of type str; give a number, 0 or more"),
        (TrainerTimeouts, {"replace_s": -1}, ValueError, "replace_s must be a number, 0 or more, not -1"),
        (TrainerTimeouts, {"silent_s": float("nan")}, ValueError, "silent_s must be a number, 0 or more, not nan"),
        (TrainerTimeouts, {"max_deaths": None}, TypeError, "max_deaths is of type NoneType; give a number, 0 or more"),
        (Progress, {"total_steps": "9"}, TypeError, "total_steps is of type str; give the number of steps"),
        (Snapshots, {"copy": 3}, TypeError, "copy of snapshots is of type int; give .*launcher"),
        (ProcessOptions, {"engine": 3}, TypeError, "engine is of type int; give its name"),
        (ProcessOptions, {"session": rw.Session}, TypeError, r"session is of type type; give ropewalk.Session\(\)"),
        (
            ProcessOptions,
            {"resources": {"cpus": 1}},
            TypeError,
            r"is of type dict; give ropewalk.Resources\(cpus=2, gpus=1\)",
        ),
        (ProcessOptions, {"environment": ["A=1"]}, TypeError, "environment is of type list; give variables by name"),
        (ProcessOptions, {"timeouts": None}, TypeError, "timeouts is of type NoneType; give ropewalk"),
        (ProcessOptions, {"timeouts": 10}, TypeError, r"timeouts is of type int; .*TrainerTimeouts\(silent_s=10.0\)"),
        (ProcessOptions, {"snapshots": 3}, TypeError, r"snapshots is of type int; .*Snapshots\(every=100\), or None"),
        (ProcessOptions, {"device": "tpu:0"}, PlanInvalid, "device is|stages compute on"),
        (Sources, {"weights": "model.pt"}, ValueError, "safetensors"),
        (Sources, {"weights": "pytorch_model.bin"}, ValueError, "safetensors"),
        (Sources, {"data": [1, 2]}, TypeError, "data is of type list; give a function of a step"),
        (Progress, {"total_steps": 0}, ValueError, "whole training, 1 or more, or None, not 0"),
        (Progress, {"total_steps": True}, TypeError, "total_steps is of type bool"),
        (Snapshots, {"every": True}, TypeError, "every is of type bool"),
        (TrainerTimeouts, {"silent_s": True}, TypeError, "silent_s is of type bool"),
        (OptimizerMaker, {"make_optimizer": list, "lr_scale": "x"}, ValueError, "'pipedream' or None, not 'x'"),
    ],
)
def test_options_that_cannot_be_are_told_at_once(
    make: Any, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        make(**options)
