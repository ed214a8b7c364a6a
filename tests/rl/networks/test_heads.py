"""Heads: shapes, and the dueling rule."""

from __future__ import annotations

import pytest
import torch

from ropewalk.rl.networks.distributions import Categorical, DiagonalGaussian, MultiCategorical
from ropewalk.rl.networks.heads import GaussianHead, PolicyHead, QHead, ValueHead, policy_head
from ropewalk.rl.networks.noisy import NoisyLinear

FEATURES = torch.randn(5, 2, 8, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("noisy", [False, True])
@pytest.mark.parametrize("hidden", [0, 16])
@pytest.mark.parametrize("num_atoms", [1, 7])
def test_dueling_heads_subtract_the_mean_advantage(noisy: bool, hidden: int, num_atoms: int) -> None:
    head = QHead(8, 3, num_atoms, dueling=True, noisy=noisy, hidden=hidden)
    found = head(FEATURES)
    assert found.shape == ((5, 2, 3) if num_atoms == 1 else (5, 2, 3, 7))
    assert head.value is not None
    advantage = head.advantage(FEATURES).reshape(5, 2, 3, num_atoms)
    expected = head.value(FEATURES).reshape(5, 2, 1, num_atoms) + advantage - advantage.mean(2, keepdim=True)
    torch.testing.assert_close(found.reshape(expected.shape), expected)
    assert any(isinstance(module, NoisyLinear) for module in head.modules()) == noisy


def test_plain_heads_give_a_number_for_each_action() -> None:
    head = QHead(8, 3)
    torch.testing.assert_close(head(FEATURES), head.advantage(FEATURES))
    assert head.value is None


def test_shapes_of_other_heads() -> None:
    assert PolicyHead(8, MultiCategorical((2, 3)))(FEATURES).shape == (5, 2, 5)
    assert ValueHead(8)(FEATURES).shape == (5, 2)
    assert isinstance(policy_head(8, Categorical(2)), PolicyHead)


def test_deviations_do_not_depend_on_the_observation() -> None:
    head = GaussianHead(8, 3, log_std=-0.5)
    params = head(FEATURES)
    assert params.shape == (5, 2, DiagonalGaussian(3).size)
    assert params[..., 3:].unique().tolist() == [-0.5]
    params[..., 3:].sum().backward()
    assert head.log_std.grad is not None
    assert head.log_std.grad.tolist() == [10, 10, 10]
    assert head.linear.weight.grad is not None
    assert not head.linear.weight.grad.any()
