from __future__ import annotations

import pytest
import torch

from ropewalk.rl.losses import td3 as losses

VALUES = torch.tensor([[1.0, -3.0], [0.5, 4.0]])
"""Of two critics and two transitions."""


def test_noise_is_clipped_and_the_action_stays_within_the_bounds() -> None:
    action = losses.smoothed_action(torch.tensor([[0.0, 0.9, -0.9]]), torch.tensor([[0.3, 0.7, -2.0]]), 0.5)
    torch.testing.assert_close(action, torch.tensor([[0.3, 1.0, -1.0]]))


def test_the_lower_critic_is_bootstrapped_from() -> None:
    target = losses.clipped_double_target(torch.tensor([1.0, 2.0]), torch.tensor([0.9, 0.0]), VALUES)
    torch.testing.assert_close(target, torch.tensor([1.45, 2.0]))


def test_each_critic_has_its_mean_squared_error() -> None:
    target = torch.tensor([0.0, 1.0], requires_grad=True)
    loss = losses.critic_loss(VALUES.clone().requires_grad_(), target)
    assert loss.item() == pytest.approx((1 + 16) / 2 + (0.25 + 9) / 2)
    loss.backward()
    assert target.grad is None


def test_the_policy_is_trained_by_the_first_critic() -> None:
    assert losses.policy_loss(VALUES).item() == pytest.approx(1.0)


def test_with_cloning_values_are_divided_by_their_size_and_errors_are_added() -> None:
    values = VALUES.clone().requires_grad_()
    action, recorded = torch.tensor([[0.5], [0.0]]), torch.tensor([[0.0], [1.0]])
    loss = losses.cloning_policy_loss(values, action, recorded, 2.5)
    assert loss.item() == pytest.approx(-2.5 / 2 * -1 + (0.25 + 1) / 2)
    loss.backward()
    assert values.grad is not None
    torch.testing.assert_close(values.grad, torch.tensor([[-0.625, -0.625], [0.0, 0.0]]))
