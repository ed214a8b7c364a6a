"""Programs of experiments, looked at before they are launched."""

from __future__ import annotations

import dataclasses
import threading
import time
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

import ropewalk as rw
from ropewalk import rl
from ropewalk.rl.assembly import Assembly
from ropewalk.rl.counters import Counters
from ropewalk.rl.distributed import ProcessCounts, _show, build_program
from ropewalk.rl.learner_node import LearnerStatus
from ropewalk.rl.logs.logger import as_logger
from ropewalk.rl.progress import ProgressLog
from tests.patience import PATIENCE_S

EXPERIMENT = rl.Experiment(rl.IMPALA(unroll=8, envs=1, batch_size=2), rl.Gymnasium("CartPole-v1"), rl.MLP((4,)))


def test_all_nodes_have_the_restart_rule_that_is_given_and_learners_restart_together() -> None:
    rule = rw.Restart("always", max_restarts=2)
    for learners in (1, 2):
        program = build_program(
            Assembly(EXPERIMENT, 2), ProcessCounts(2, "async", evaluators=1, learners=learners), restart=rule
        )
        rules = {spec.name: spec.restart for spec in program.specs}
        together = "together" if learners == 2 else "alone"
        assert rules.pop("learner") == rw.Restart("always", max_restarts=2, strategy=together)
        assert rules == {"actors": rule, "evaluators": rule}


class Endless(gymnasium.Env[Any, Any]):
    """An episode without an end; says when one is longer than any of the training below."""

    observation_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    is_evaluated = threading.Event()

    def __init__(self) -> None:
        self.time = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.time += 1
        if self.time == 2_000:
            Endless.is_evaluated.set()
        return np.zeros(1, np.float32), 0.0, False, False, {}


def make_endless(seed: int) -> Endless:
    return Endless()


def test_an_evaluation_that_takes_long_does_not_delay_the_end_of_a_program(caplog: pytest.LogCaptureFixture) -> None:
    """Evaluators were asked to end, and ended by force five seconds later, with a warning about a healthy run."""
    evaluation = rl.Evaluation(every_steps=10, episodes=1, max_steps=10**9)
    experiment = dataclasses.replace(EXPERIMENT, environment=make_endless, steps=100, evaluation=evaluation)
    program = build_program(Assembly(experiment, 2), ProcessCounts(2, "async", evaluators=1), hold=True)
    with program.launch(mode="threads"):
        assert Endless.is_evaluated.wait(PATIENCE_S)
    assert "has not ended" not in caplog.text


@pytest.mark.parametrize("inference", [0, 1])
def test_all_processes_of_a_program_may_be_threads_of_one(inference: int) -> None:
    """The colocation of Launchpad and Acme: actors, the learner with its replay, and servers share a process."""
    experiment = dataclasses.replace(EXPERIMENT, steps=300)
    assembly = Assembly(experiment, 4 if inference else 2)
    program = build_program(assembly, ProcessCounts(2, "async", inference=inference), hold=True)
    with program.launch(mode="threads") as running:
        learner = running.client("learner")
        while not learner.status().done:
            time.sleep(0.01)
        outcome = learner.outcome()
    assert outcome.counters.steps >= 300 and outcome.counters.updates > 0


def test_checkpoints_of_learners_are_paced_by_their_cost() -> None:
    for mode in ("async", "lockstep"):
        program = build_program(Assembly(EXPERIMENT, 1), ProcessCounts(1, mode))  # type: ignore[arg-type]
        (learner,) = (spec for spec in program.specs if spec.name == "learner")
        assert learner.checkpoint_s is None, "many gigabytes of replay are saved less often than a few weights"


def test_what_an_evaluator_raises_does_not_control_the_terminal(caplog: pytest.LogCaptureFixture) -> None:
    status = LearnerStatus(Counters(), {}, "", False, (), problems=("an evaluation failed with OSError: \x1b[2J",))
    _show(status, ProgressLog(as_logger("silent"), 100), "")
    assert r"OSError: \x1b[2J" in caplog.text and "\x1b" not in caplog.text


def test_processes_share_the_compiler_of_torch_where_an_optimizer_imports_it() -> None:
    def is_shared(agent: rl.Agent) -> bool:
        program = build_program(Assembly(dataclasses.replace(EXPERIMENT, agent=agent), 1), ProcessCounts(1, "async"))
        shared = {"torch._dynamo" in spec.preload for spec in program.specs}
        assert len(shared) == 1
        return shared.pop()

    class OwnAgent(rl.IMPALA):
        """It may have any optimizer."""

    settings: dict[str, Any] = {"unroll": 8, "envs": 1, "batch_size": 2}
    assert not is_shared(rl.IMPALA(**settings))
    assert is_shared(rl.IMPALA(**settings, optimizer=torch.optim.Adam))
    assert is_shared(OwnAgent(**settings))
