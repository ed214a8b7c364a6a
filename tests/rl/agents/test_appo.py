from __future__ import annotations

from typing import Any

import pytest

from ropewalk.rl.agents.appo import APPO
from ropewalk.rl.agents.ppo import PPO
from ropewalk.rl.environments.spec import EnvironmentSpec
from ropewalk.rl.learners.optimizers import TorchAdam
from tests.rl.agents.experience import CONTINUOUS, DISCRETE, assert_close, on_policy, random_batch

SAME: dict[str, Any] = {
    "optimizer": TorchAdam(1e-2),
    "lambda_": 1.0,
    "anneal_learning_rate": False,
    "epochs": 2,
    "minibatches": 2,
}


@pytest.mark.parametrize("spec", [DISCRETE, CONTINUOUS], ids=["discrete", "continuous"])
def test_it_is_ppo_where_the_policy_that_acted_is_the_one_that_learns(spec: EnvironmentSpec) -> None:
    appo, ppo = (agent.make_learner(spec, None, seed=1) for agent in (APPO(**SAME), PPO(**SAME)))
    for number in range(3):
        batch = on_policy(random_batch(spec, number), appo, spec)
        for learner in (appo, ppo):
            learner.update(batch, 0.0)
    for name, array in appo.variables().items():
        assert_close(array, ppo.variables()[name])


def test_the_log_probabilities_that_came_with_the_actions_weigh_its_advantages() -> None:
    batch = random_batch(DISCRETE, 0)
    one_step: dict[str, Any] = {**SAME, "epochs": 1, "minibatches": 1, "normalise_advantages": False}
    values = [agent(**one_step).make_learner(DISCRETE, None, seed=1).update(batch, 0.0) for agent in (APPO, PPO)]
    assert values[0].metrics["value_loss"] != pytest.approx(values[1].metrics["value_loss"], rel=1e-3)
    assert values[0].metrics["approx_kl"] == pytest.approx(values[1].metrics["approx_kl"], rel=1e-5)
