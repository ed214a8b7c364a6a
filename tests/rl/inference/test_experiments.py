"""Experiments whose actors hold no network."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from ropewalk import rl
from ropewalk.rl.assembly import Assembly
from ropewalk.rl.asynchronous_actor import GROUPS_OF_REMOTE_ACTOR
from ropewalk.rl.distributed import ProcessCounts, build_program

pytestmark = pytest.mark.usefixtures("shared_session")

SMALL = rl.Experiment(
    rl.IMPALA(unroll=8, envs=2, batch_size=2), rl.Gymnasium("CartPole-v1"), rl.MLP((16,)), steps=1_000, seed=3
)
RECURRENT = dataclasses.replace(SMALL, network=rl.LSTM(rl.MLP((8,)), 8))
LADDER = dataclasses.replace(
    RECURRENT, agent=rl.R2D2(unroll=8, envs=2, batch_size=4, burn_in=0, trace=8, period=8, learning_starts=64)
)


def outcome_of(experiment: rl.Experiment, deaths: Sequence[str] = ()) -> Any:
    """What an asynchronous run with two actors and two inference servers has learned, during which nodes die."""
    assembly = Assembly(experiment, 2 * GROUPS_OF_REMOTE_ACTOR)
    program = build_program(assembly, ProcessCounts(2, "async", inference=2), hold=True)
    waiting = list(deaths)
    with program.launch() as running:
        learner = running.client("learner", on_lost="retry")
        next_death = 100
        while not (status := learner.status()).done:
            if waiting and status.counters.steps >= next_death:
                running.kill(waiting.pop(0), 0)
                next_death = status.counters.steps + 200
            threading.Event().wait(0.02)
        assert not waiting
        return learner.outcome()


@pytest.mark.parametrize(
    "experiment", [pytest.param(SMALL, marks=pytest.mark.soak), LADDER], ids=["perceptron", "ladder"]
)
def test_actors_without_networks_collect_for_a_learner(experiment: rl.Experiment) -> None:
    outcome = outcome_of(experiment)
    assert outcome.counters.steps >= experiment.steps
    assert outcome.counters.updates > 10


def test_training_goes_on_when_inference_servers_and_the_learner_die() -> None:
    experiment = dataclasses.replace(RECURRENT, steps=5_000)  # in fewer the third death may come too late
    outcome = outcome_of(experiment, ["inference", "learner", "inference"])
    assert outcome.counters.steps >= experiment.steps
