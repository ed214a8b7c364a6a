from __future__ import annotations

import pytest

from ropewalk.rl.agents.a2c import A2C
from ropewalk.rl.agents.impala import IMPALA
from ropewalk.rl.environments.gymnasium_env import Gymnasium
from ropewalk.rl.environments.spec import EnvironmentSpec
from ropewalk.rl.learners.optimizers import TorchAdam
from tests.rl.agents.experience import CONTINUOUS, DISCRETE, assert_close, on_policy, random_batch

CARTPOLE = Gymnasium("CartPole-v1")


@pytest.mark.parametrize("spec", [DISCRETE, CONTINUOUS], ids=["discrete", "continuous"])
def test_it_is_impala_where_the_policy_that_acted_is_the_one_that_learns(spec: EnvironmentSpec) -> None:
    a2c, impala = (
        kind(optimizer=TorchAdam(1e-2), max_grad_norm=0.5, separate_networks=True).make_learner(spec, None, seed=1)
        for kind in (A2C, IMPALA)
    )
    for number in range(3):
        batch = on_policy(random_batch(spec, number), a2c, spec)
        metrics = [learner.update(batch, 0.0).metrics for learner in (a2c, impala)]
        assert metrics[0]["loss"] == pytest.approx(metrics[1]["loss"], rel=1e-4)
    for name, array in a2c.variables().items():
        assert_close(array, impala.variables()[name])


def test_log_probabilities_of_the_past_change_nothing() -> None:
    batch = random_batch(DISCRETE, 0)
    learners = [A2C().make_learner(DISCRETE, None, seed=1) for _ in range(2)]
    for learner, other in zip(learners, (batch, on_policy(batch, learners[0], DISCRETE)), strict=True):
        learner.update(other, 0.0)
    for name, array in learners[0].variables().items():
        assert array.tobytes() == learners[1].variables()[name].tobytes()


def test_advantages_can_be_normalised() -> None:
    batch = random_batch(DISCRETE, 0)
    losses = [
        A2C(normalise_advantages=choice).make_learner(DISCRETE, None, seed=1).update(batch, 0.0).metrics["policy_loss"]
        for choice in (False, True)
    ]
    assert losses[1] == pytest.approx(0, abs=0.05)  # all actions are nearly as likely, and the mean is 0
    assert abs(losses[0]) > 0.1
