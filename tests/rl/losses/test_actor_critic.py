"""The loss of A2C and IMPALA against loops in plain Python."""

from __future__ import annotations

import math

import pytest
import torch

from ropewalk.rl.losses.actor_critic import ActorCriticLoss, actor_critic_loss
from tests.rl.losses.steps import EnvironmentSteps, random_steps


def loss_of(steps: EnvironmentSteps, entropy: torch.Tensor) -> ActorCriticLoss:
    return actor_critic_loss(
        log_prob=steps.log_prob,
        entropy=entropy,
        values=steps.values[:-1],
        advantages=steps.reward,
        targets=steps.behaviour_log_prob,
        mask=steps.mask,
        value_cost=0.5,
        entropy_cost=0.1,
    )


def test_its_parts_are_means_over_the_steps_that_count() -> None:
    steps = random_steps(1)
    entropy = torch.rand(steps.mask.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    counting = [(t, b) for t in range(12) for b in range(5) if steps.mask[t, b]]
    policy = -sum(float(steps.log_prob[at]) * float(steps.reward[at]) for at in counting) / len(counting)
    value = sum(0.5 * (float(steps.values[at]) - float(steps.behaviour_log_prob[at])) ** 2 for at in counting) / len(
        counting
    )
    mean_entropy = sum(float(entropy[at]) for at in counting) / len(counting)
    found = loss_of(steps, entropy)
    assert found.policy.item() == pytest.approx(policy)
    assert found.value.item() == pytest.approx(value)
    assert found.entropy.item() == pytest.approx(mean_entropy)
    assert found.loss.item() == pytest.approx(policy + 0.5 * value - 0.1 * mean_entropy)


def test_masked_steps_have_no_part_in_loss_and_gradient_whatever_is_in_them() -> None:
    steps = random_steps(2)
    entropy = torch.ones_like(steps.reward)
    dirty = steps.with_garbage(math.nan)
    gradients: list[tuple[torch.Tensor, ...]] = []
    for each, its_entropy in ((steps, entropy), (dirty, torch.where(steps.mask, entropy, torch.nan))):
        each.log_prob.requires_grad_()
        each.values.requires_grad_()
        gradients.append(torch.autograd.grad(loss_of(each, its_entropy).loss, [each.log_prob, each.values]))
    for clean, other in zip(*gradients, strict=True):
        assert torch.equal(clean, other)
    assert not gradients[0][0][~steps.mask].any()


def test_no_gradient_flows_to_advantages_and_targets() -> None:
    steps = random_steps(3)
    steps.log_prob.requires_grad_()
    steps.reward.requires_grad_()
    steps.behaviour_log_prob.requires_grad_()
    loss_of(steps, torch.ones_like(steps.values[:-1])).loss.backward()
    assert steps.log_prob.grad is not None
    assert steps.reward.grad is None
    assert steps.behaviour_log_prob.grad is None
