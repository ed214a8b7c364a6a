"""The LSTM against its equations, step by step; the suite of all torsos is in test_torso.py."""

from __future__ import annotations

import pytest
import torch

from ropewalk.rl.networks.lstm import LSTM
from ropewalk.rl.networks.mlp import MLP
from tests.rl.networks.specs import VECTOR, random_observation


def test_it_is_the_equations_with_a_reset_where_an_episode_begins() -> None:
    torso = LSTM(MLP(()), 5)(VECTOR).double()
    observation = random_observation(VECTOR, 6, 2)
    assert isinstance(observation, torch.Tensor)
    first = torch.tensor([[0, 0], [0, 1], [1, 1], [0, 0], [0, 1], [0, 0]], dtype=torch.bool)
    hidden, cell = torch.randn(2, 5).double(), torch.randn(2, 5).double()
    torso.inner.double()
    torso.inner.forward = lambda values: values.double()  # the flat observation
    found, state = torso.unroll(observation, first, {"hidden": hidden, "cell": cell})
    weight = dict(torso.memory.named_parameters())
    for step in range(6):
        hidden, cell = (torch.where(first[step, :, None], 0.0, array) for array in (hidden, cell))
        gates = observation[step].double() @ weight["weight_ih_l0"].T + weight["bias_ih_l0"] + weight["bias_hh_l0"]
        take, forget, new, give = (gates + hidden @ weight["weight_hh_l0"].T).chunk(4, -1)
        cell = forget.sigmoid() * cell + take.sigmoid() * new.tanh()
        hidden = give.sigmoid() * cell.tanh()
        torch.testing.assert_close(found[step], hidden)
    torch.testing.assert_close(state["cell"], cell)


def test_gradients_stop_where_an_episode_begins() -> None:
    torso = LSTM(MLP((4,)), 5)(VECTOR)
    observation = random_observation(VECTOR, 4, 1)
    assert isinstance(observation, torch.Tensor)
    observation.requires_grad_()
    first = torch.tensor([[0], [0], [1], [0]], dtype=torch.bool)
    features, _ = torso.unroll(observation, first, torso.initial_state(1))
    features[3].sum().backward()
    assert observation.grad is not None
    assert not observation.grad[:2].any()
    assert bool(observation.grad[2:].any(-1).all())


def test_a_memory_without_units_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one unit, not 0"):
        LSTM(MLP(), 0)
