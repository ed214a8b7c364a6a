"""`staleness_exponent`: old experience counts less, for every agent with replay."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from ropewalk import rl
from ropewalk.rl.agents.replay_agent import ReplayAgent
from ropewalk.rl.environments.spec import ArraySpec, DiscreteAction, EnvironmentSpec
from ropewalk.rl.replay.batch import Batch
from tests.rl.agents.batches import sequences, transitions
from tests.rl.agents.transition_batches import SPEC, random_batch

DISCRETE = EnvironmentSpec(ArraySpec((4,)), DiscreteAction(3))
LATE = 1_000
"""By how many versions the second half of a batch is behind."""
CASES: dict[str, tuple[ReplayAgent, EnvironmentSpec, Any, Batch]] = {
    "DQN": (rl.DQN(), DISCRETE, rl.MLP((8,)), transitions(0)),
    "C51": (rl.DQN(distributional="c51"), DISCRETE, rl.MLP((8,)), transitions(0)),
    "prioritized": (rl.DQN(prioritized=True), DISCRETE, rl.MLP((8,)), transitions(0)),
    "R2D2": (rl.R2D2(unroll=2, period=2, burn_in=1, trace=4), DISCRETE, rl.MLP((8,)), sequences(0)),
    "SAC": (rl.SAC(temperature=1e-3, min_log_std=-20.0, max_log_std=-19.0), SPEC, rl.MLP((8,)), random_batch()),
    "TD3": (rl.TD3(target_noise=0.0, policy_delay=1), SPEC, rl.MLP((8,)), random_batch()),
}


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, 0.1)


def aged(batch: Batch, *, versions: list[int]) -> Batch:
    return Batch(batch.columns, replace(batch.info, version=np.array(versions, np.int64)))


def weights_after(agent: ReplayAgent, spec: EnvironmentSpec, network: Any, batch: Batch) -> dict[str, Any]:
    learner = agent.make_learner(spec, network, seed=1)
    learner.version = LATE
    learner.update(batch, 0.0)
    return {name: array for name, array in learner.variables().items() if array.dtype == np.float32}


@pytest.mark.parametrize("name", CASES)
def test_what_is_old_counts_less_and_what_is_equally_old_counts_the_same(name: str) -> None:
    agent, spec, network, batch = CASES[name]
    agent = replace(agent, optimizer=sgd, max_grad_norm=None)  # type: ignore[type-var]
    weighing = replace(agent, staleness_exponent=20.0)  # type: ignore[type-var]
    half, late = len(batch) // 2, aged(batch, versions=[5] * len(batch))
    plain = weights_after(agent, spec, network, late)
    for each, array in weights_after(weighing, spec, network, late).items():
        np.testing.assert_array_equal(array, plain[each])
    mixed = aged(batch, versions=[LATE] * half + [0] * (len(batch) - half))
    assert any((array != plain[each]).any() for each, array in weights_after(weighing, spec, network, mixed).items())
    of_new_alone = weights_after(agent, spec, network, mixed.take(slice(half)))
    for each, array in weights_after(weighing, spec, network, mixed).items():  # 1,001^-20 is nothing
        np.testing.assert_allclose(array, of_new_alone[each], rtol=1e-4, atol=1e-6)
