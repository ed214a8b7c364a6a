"""SAC's losses, by hand."""

from __future__ import annotations

import math

import pytest
import torch

from ropewalk.rl.losses.sac import soft_policy_loss, soft_targets, temperature_loss, twin_q_loss


def test_targets_take_the_smaller_value_and_the_entropy() -> None:
    found = soft_targets(
        reward=torch.tensor([1.0, 2.0]),
        discount=torch.tensor([0.5, 0.0]),
        next_q1=torch.tensor([4.0, 9.0]),
        next_q2=torch.tensor([3.0, 9.0]),
        next_log_prob=torch.tensor([-2.0, 7.0]),
        temperature=0.25,
    )
    assert found.tolist() == [1 + 0.5 * (3 + 0.5), 2]


def test_both_values_are_drawn_to_one_target() -> None:
    q1, q2 = torch.tensor([1.0, 2.0], requires_grad=True), torch.tensor([3.0, 2.0], requires_grad=True)
    targets = torch.tensor([2.0, 5.0], requires_grad=True)
    found = twin_q_loss(q1, q2, targets)
    assert found.loss.item() == pytest.approx((0.5 * (1 + 1) + 0.5 * (9 + 9)) / 2)
    assert found.td_errors.tolist() == [0, 3]
    found.loss.backward()
    assert q1.grad is not None
    assert q1.grad.tolist() == [-0.5, -1.5]
    assert targets.grad is None


def test_the_policy_seeks_value_and_entropy_and_leaves_the_temperature() -> None:
    q1, q2 = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 0.0])
    log_prob = torch.tensor([-1.0, -2.0], requires_grad=True)
    temperature = torch.tensor(0.5, requires_grad=True)
    loss = soft_policy_loss(q1, q2, log_prob, temperature)
    assert loss.item() == pytest.approx(((-0.5 - 1) + (-1 - 0)) / 2)
    loss.backward()
    assert temperature.grad is None
    assert log_prob.grad is not None
    assert log_prob.grad.tolist() == [0.25, 0.25]


@pytest.mark.parametrize(("entropy", "rises"), [(-3.0, True), (1.0, False)])
def test_the_temperature_rises_where_the_entropy_is_too_small(entropy: float, rises: bool) -> None:
    log_temperature = torch.tensor(math.log(0.2), requires_grad=True)
    log_prob = torch.full((4,), -entropy, requires_grad=True)
    loss = temperature_loss(log_temperature, log_prob, -1.0)
    assert loss.item() == pytest.approx(-0.2 * (-entropy - 1.0))
    loss.backward()
    assert log_prob.grad is None
    assert log_temperature.grad is not None
    assert (log_temperature.grad.item() < 0) == rises  # descent raises it where the gradient is negative
