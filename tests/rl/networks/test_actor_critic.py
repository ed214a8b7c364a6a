"""Actors and critics with one torso and with two."""

from __future__ import annotations

import pytest
import torch

from ropewalk.rl.networks.actor_critic import ActorCritic
from ropewalk.rl.networks.distributions import Categorical
from ropewalk.rl.networks.lstm import LSTM
from ropewalk.rl.networks.mlp import MLP
from tests.rl.networks.specs import VECTOR, random_observation


@pytest.mark.parametrize("separate", [False, True])
def test_it_returns_parameters_values_and_state(separate: bool) -> None:
    network = ActorCritic(VECTOR, LSTM(MLP((8,)), 6), Categorical(2), separate=separate)
    observation, first = random_observation(VECTOR, 4, 3), torch.zeros(4, 3, dtype=torch.bool)
    params, values, state = network.unroll(observation, first, network.initial_state(3))
    assert params.shape == (4, 3, 2)
    assert values.shape == (4, 3)
    assert state.keys() == network.initial_state(3).keys()
    assert ("value.hidden" in state) == separate


@pytest.mark.parametrize("separate", [False, True])
def test_a_torso_of_its_own_keeps_values_from_the_policys_weights(separate: bool) -> None:
    network = ActorCritic(VECTOR, MLP((8,)), Categorical(2), separate=separate)
    _, values, _ = network.unroll(random_observation(VECTOR, 4, 3), torch.zeros(4, 3, dtype=torch.bool), {})
    values.sum().backward()
    assert all((parameter.grad is None) == separate for parameter in network.torso.parameters())


def test_a_state_that_a_policy_kept_is_completed_for_the_values() -> None:
    network = ActorCritic(VECTOR, LSTM(MLP((8,)), 6), Categorical(2), separate=True)
    observation, first = random_observation(VECTOR, 4, 3), torch.zeros(4, 3, dtype=torch.bool)
    whole = network.initial_state(3)
    params, values, _ = network.unroll(observation, first, network.torso.initial_state(3))
    expected, expected_values, _ = network.unroll(observation, first, whole)
    assert torch.equal(params, expected)
    assert torch.equal(values, expected_values)
