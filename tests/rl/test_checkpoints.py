"""Checkpoints of experiments: what a run refuses to go on from, and what it says before it goes on."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ropewalk import rl
from ropewalk.rl.checkpoints import check_rounds

FIRST = rl.Experiment(
    rl.IMPALA(unroll=8, envs=1, batch_size=1), rl.Gymnasium("CartPole-v1"), rl.MLP((4,)), steps=16, groups=2
)


def weights(*versions: int) -> list[rl.Variables]:
    return [rl.Variables(version, 0.0, {}) for version in versions]


def test_a_run_with_another_number_of_groups_says_which_one_it_needs(tmp_path: Path) -> None:
    saved = dataclasses.replace(FIRST, checkpoint=tmp_path)
    saved.run(log="silent")
    with pytest.raises(ValueError, match=r"has 2 group\(s\) of environments, and this run has 4; say groups=2"):
        dataclasses.replace(saved, groups=4, steps=100).run(log="silent")


def test_a_run_with_another_lag_says_which_one_it_needs(tmp_path: Path) -> None:
    saved = dataclasses.replace(FIRST, checkpoint=tmp_path)
    saved.run(log="silent")
    with pytest.raises(ValueError, match="of a run with lag=0, and this one has lag=1; say lag=0"):
        dataclasses.replace(saved, steps=100).run(log="silent", lag=1)


@pytest.mark.parametrize(
    ("saved", "lag", "taken"),
    [((7,), 0, [7]), ((6, 7), 1, [6, 7]), ((0,), 1, [0, 0]), ((0, 0), 1, [0, 0]), ((0, 1), 1, [0, 1])],
)
def test_the_weights_of_the_last_rounds_are_taken(saved: tuple[int, ...], lag: int, taken: list[int]) -> None:
    state = {"rounds": {}, "histories": [None], "published": weights(*saved)}
    assert [each.version for each in check_rounds(state, 1, lag, "runs/x")] == taken


@pytest.mark.parametrize(("saved", "lag"), [((7,), 1), ((6, 7), 0)])
def test_weights_of_another_lag_are_refused(saved: tuple[int, ...], lag: int) -> None:
    with pytest.raises(ValueError, match="runs/x"):
        check_rounds({"rounds": {}, "histories": [None], "published": weights(*saved)}, 1, lag, "runs/x")


def test_going_on_with_other_settings_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    saved = dataclasses.replace(FIRST, checkpoint=tmp_path)
    saved.run(log="silent")
    agent = rl.IMPALA(unroll=8, envs=1, batch_size=1, discount=0.5)
    with caplog.at_level(logging.WARNING):
        dataclasses.replace(saved, steps=100, agent=agent).run(log="silent")
    (told,) = [text for text in caplog.messages if "is of another experiment" in text]
    assert "it has discount=0.99 where this one has discount=0.5. It goes on from there" in told
    assert "unroll" not in told  # nor any other of the settings that are the same
    assert "nothing is left to do" not in caplog.text


@pytest.mark.parametrize(
    "other",
    [
        {"agent": rl.DQN(unroll=8, envs=1, learning_starts=8, batch_size=4)},
        {"environment": rl.Gymnasium("Acrobot-v1")},
        {"network": rl.MLP((5,))},
    ],
    ids=["agent", "environment", "network"],
)
def test_a_checkpoint_that_does_not_fit_is_refused_with_both_experiments(other: dict[str, Any], tmp_path: Path) -> None:
    saved = dataclasses.replace(FIRST, checkpoint=tmp_path)
    saved.run(log="silent")
    with pytest.raises(ValueError, match="does not fit this experiment") as raised:
        dataclasses.replace(saved, steps=100, **other).run(log="silent")
    new, before = next(iter(other.values())), getattr(FIRST, next(iter(other)))
    assert str(new) in str(raised.value) and str(before) in str(raised.value)


def test_a_run_that_goes_on_says_from_which_step(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    saved = dataclasses.replace(FIRST, checkpoint=tmp_path)
    saved.run(log="silent")
    dataclasses.replace(saved, steps=32).run(log="silent")
    (told,) = caplog.messages
    assert told == f"the experiment goes on from step 16 of 32, from the checkpoint in {tmp_path}"


def test_a_run_that_was_done_before_says_that_nothing_is_left(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    saved = dataclasses.replace(FIRST, checkpoint=tmp_path)
    first = saved.run(log="silent")
    assert not caplog.records
    again = saved.run(log="silent")
    assert "has done 16 of 16 steps: nothing is left to do" in caplog.text
    assert "another experiment" not in caplog.text
    for name, array in first.variables.arrays.items():
        np.testing.assert_array_equal(array, again.variables.arrays[name])
