"""The policies of SAC and TD3, and what they have in common."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from ropewalk.rl.agents.continuous import ContinuousAgent
from ropewalk.rl.agents.sac import SAC
from ropewalk.rl.agents.td3 import TD3
from ropewalk.rl.environments.spec import ArraySpec, ContinuousAction, EnvironmentSpec
from ropewalk.rl.networks.mlp import MLP
from ropewalk.rl.policies import memoryless_forward
from ropewalk.rl.policies.canonical_policy import CanonicalPolicy
from ropewalk.rl.variables import Variables

SPEC = EnvironmentSpec(ArraySpec((3,)), ContinuousAction((-2.0, 0.0), (2.0, 1.0)))
LOW, HIGH = np.array([-2, 0], np.float32), np.array([2, 1], np.float32)
NETWORK = MLP((16, 16))
each_agent = pytest.mark.parametrize("agent", [SAC(), TD3()], ids=["SAC", "TD3"])


def trained(agent: ContinuousAgent, updates: int = 3, network: Any = NETWORK) -> CanonicalPolicy:
    """A policy whose weights are large enough that actions differ from 0."""
    policy = agent.make_policy(SPEC, network)
    made: dict[str, Any] = agent.make_learner(SPEC, network, seed=1).variables()
    arrays = {name: 3 * array for name, array in made.items()}
    arrays = {name: array * (100 if name.startswith("1.") else 1) for name, array in arrays.items()}
    policy.load(Variables(3, 0.5, arrays | {"num_updates": np.array(updates)}))
    assert isinstance(policy, CanonicalPolicy)
    return policy


def observations(num: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(num, 3)).astype(np.float32)


def act(policy: CanonicalPolicy, num: int, *, seed: int = 0, greedy: bool = False) -> np.ndarray:
    first = np.zeros(num, bool)
    return policy.act(observations(num), first, {}, np.random.default_rng(seed), greedy=greedy).action


@each_agent
def test_actions_lie_within_the_bounds_and_use_all_of_them(agent: ContinuousAgent) -> None:
    action = act(trained(agent), 2_000)
    assert action.dtype == np.float32 and action.shape == (2_000, 2)
    assert (action >= LOW - 1e-6).all() and (action <= HIGH + 1e-6).all()
    assert (action.min(0) < LOW + 0.1).all() and (action.max(0) > HIGH - 0.1).all()


@each_agent
def test_the_same_generator_gives_the_same_actions_and_another_one_others(agent: ContinuousAgent) -> None:
    policy = trained(agent)
    np.testing.assert_array_equal(act(policy, 5), act(policy, 5))
    assert (act(policy, 5) != act(policy, 5, seed=1)).any()


@each_agent
def test_an_evaluator_needs_no_randomness(agent: ContinuousAgent) -> None:
    policy = trained(agent)
    np.testing.assert_array_equal(act(policy, 5, greedy=True), act(policy, 5, seed=1, greedy=True))


@each_agent
def test_before_the_first_update_actions_are_uniform_within_the_bounds(agent: ContinuousAgent) -> None:
    action = act(trained(agent, updates=0), 4_000)
    for entry, low, high in zip(action.T, LOW, HIGH, strict=True):
        counts, _ = np.histogram(entry, bins=8, range=(low, high))
        assert counts.sum() == 4_000 and np.abs(counts - 500).max() < 110  # five standard deviations
    assert act(trained(agent, updates=0), 4, greedy=True) == pytest.approx(act(trained(agent), 4, greedy=True))


@each_agent
def test_numpy_and_torch_choose_the_same(agent: ContinuousAgent, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = trained(agent)
    by_numpy = [act(policy, 7), act(policy, 7, greedy=True)]
    monkeypatch.setattr(memoryless_forward, "numpy_forward", lambda _: None)
    policy = trained(agent)
    by_torch = [act(policy, 7), act(policy, 7, greedy=True)]
    np.testing.assert_allclose(by_numpy, by_torch, atol=1e-5)


@each_agent
def test_a_network_that_numpy_cannot_evaluate_is_evaluated_by_torch(agent: ContinuousAgent) -> None:
    class Odd(nn.Module):
        def __init__(self, inputs: int) -> None:
            super().__init__()
            self.linear = nn.Linear(inputs, 8)

        def forward(self, observation: torch.Tensor) -> torch.Tensor:
            return torch.sin(self.linear(observation))

    policy = trained(agent, network=lambda spec: Odd(spec.observation.shape[0]))
    assert act(policy, 5).shape == (5, 2)


@each_agent
def test_weights_that_are_read_only_are_loaded(agent: ContinuousAgent) -> None:
    arrays = agent.make_learner(SPEC, NETWORK, seed=4).variables()
    for array in arrays.values():
        array.flags.writeable = False
    policy = agent.make_policy(SPEC, NETWORK)
    policy.load(Variables(1, 0.0, arrays))


def test_the_noise_of_td3_has_the_deviation_that_is_set_in_canonical_units() -> None:
    exploring = trained(TD3(exploration=0.05))
    made: dict[str, Any] = TD3().make_learner(SPEC, NETWORK, seed=0).variables()
    arrays = {name: 0 * array for name, array in made.items()}
    exploring.load(Variables(1, 0.0, arrays | {"num_updates": np.array(1)}))
    canonical = (act(exploring, 20_000) - (LOW + HIGH) / 2) / ((HIGH - LOW) / 2)
    assert canonical.std(0) == pytest.approx([0.05, 0.05], rel=0.05)
    assert canonical.mean(0) == pytest.approx([0, 0], abs=0.002)
