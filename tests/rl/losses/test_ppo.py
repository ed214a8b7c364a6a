"""PPO's losses against loops in plain Python."""

from __future__ import annotations

import math
import statistics

import pytest
import torch
from torch import Tensor

from ropewalk.rl.losses.ppo import (
    clipped_policy_loss,
    clipped_value_loss,
    explained_variance,
    normalised_advantages,
)
from tests.rl.losses.steps import random_steps


def counting(tensor: Tensor, mask: Tensor) -> list[float]:
    return [float(each) for each, counts in zip(tensor.flatten(), mask.flatten(), strict=True) if counts]


def test_a_small_table_by_hand() -> None:
    # Ratios 2, 0.5, 1.1 and a masked step; clip 0.2.
    #   2 with advantage 1: min(2, 1.2) = 1.2     0.5 with -2: min(-1, -1.6) = -1.6     1.1 with 3: 3.3
    log_prob = torch.tensor([2.0, 0.5, 1.1, 9.0], dtype=torch.float64).log().requires_grad_()
    found = clipped_policy_loss(
        log_prob=log_prob,
        behaviour_log_prob=torch.zeros(4, dtype=torch.float64),
        advantages=torch.tensor([1.0, -2.0, 3.0, 100.0], dtype=torch.float64),
        mask=torch.tensor([1, 1, 1, 0], dtype=torch.bool),
        clip=0.2,
    )
    assert found.loss.item() == pytest.approx(-(1.2 - 1.6 + 3.3) / 3)
    assert found.clip_fraction.item() == pytest.approx(2 / 3)
    kl = [ratio - 1 - math.log(ratio) for ratio in (2.0, 0.5, 1.1)]
    assert found.approx_kl.item() == pytest.approx(statistics.mean(kl))
    found.loss.backward()
    assert log_prob.grad is not None  # of clipped steps and of the masked one there is none
    assert log_prob.grad.tolist() == pytest.approx([0, 0, -3.3 / 3, 0])


@pytest.mark.parametrize("garbage", [math.nan, math.inf])
def test_masked_steps_change_nothing_whatever_is_in_them(garbage: float) -> None:
    steps = random_steps(1)
    dirty = steps.with_garbage(garbage)
    results: list[Tensor] = []
    for each in (steps, dirty):
        values = each.values[:-1].clone().requires_grad_()
        log_prob = each.log_prob.clone().requires_grad_()
        policy = clipped_policy_loss(
            log_prob=log_prob,
            behaviour_log_prob=each.behaviour_log_prob,
            advantages=normalised_advantages(each.reward, each.mask),
            mask=each.mask,
        )
        value = clipped_value_loss(
            values=values, old_values=each.log_prob, returns=each.reward, mask=each.mask, clip=0.2
        )
        gradients = torch.autograd.grad(policy.loss + value, [log_prob, values])
        results.append(torch.cat([policy.loss[None], policy.approx_kl[None], *(each.flatten() for each in gradients)]))
    assert torch.equal(*results)


def test_the_value_loss_takes_the_larger_error() -> None:
    steps = random_steps(2)
    values, old, returns = steps.values[:-1], steps.log_prob, steps.reward
    expected: list[float] = []
    for v, o, r in zip(*(counting(each, steps.mask) for each in (values, old, returns)), strict=True):
        near = o + min(max(v - o, -0.5), 0.5)
        expected.append(0.5 * max((v - r) ** 2, (near - r) ** 2))
    found = clipped_value_loss(values=values, old_values=old, returns=returns, mask=steps.mask, clip=0.5)
    assert found.item() == pytest.approx(statistics.mean(expected))
    plain = clipped_value_loss(values=values, old_values=old, returns=returns, mask=steps.mask)
    pairs = zip(counting(values, steps.mask), counting(returns, steps.mask), strict=True)
    assert plain.item() == pytest.approx(statistics.mean(0.5 * (v - r) ** 2 for v, r in pairs))


def test_normalised_advantages_have_mean_0_and_deviation_1() -> None:
    steps = random_steps(3)
    found = normalised_advantages(steps.reward, steps.mask)
    given = counting(steps.reward, steps.mask)
    expected = [(each - statistics.mean(given)) / statistics.stdev(given) for each in given]
    assert counting(found, steps.mask) == pytest.approx(expected)
    assert not found[~steps.mask].any()


def test_a_single_advantage_is_left_as_it_is() -> None:
    mask = torch.tensor([True, False])
    assert normalised_advantages(torch.tensor([3.0, torch.nan]), mask).tolist() == [3, 0]


def test_explained_variance_is_1_for_the_truth_and_0_for_a_constant() -> None:
    steps = random_steps(4)
    returns = steps.reward
    assert explained_variance(returns, returns, steps.mask).item() == pytest.approx(1)
    assert explained_variance(torch.ones_like(returns), returns, steps.mask).item() == pytest.approx(0)
    given, guess = counting(returns, steps.mask), counting(steps.log_prob, steps.mask)
    errors = [r - v for r, v in zip(given, guess, strict=True)]
    expected = 1 - statistics.pvariance(errors) / statistics.pvariance(given)
    assert explained_variance(steps.log_prob, returns, steps.mask).item() == pytest.approx(expected)
    assert explained_variance(returns, torch.ones_like(returns), steps.mask).isnan()


@pytest.mark.parametrize("clip", [None, 0.1])
def test_no_mask_counts_all_steps(clip: float | None) -> None:
    first, second, third = torch.randn(3, 20, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    everything = torch.ones(20, dtype=torch.bool)
    policy, value, advantages = (
        [
            clipped_policy_loss(log_prob=first, behaviour_log_prob=second, advantages=third, mask=mask)
            for mask in (None, everything)
        ],
        [
            clipped_value_loss(values=first, old_values=second, returns=third, mask=mask, clip=clip)
            for mask in (None, everything)
        ],
        [normalised_advantages(first, mask) for mask in (None, everything)],
    )
    torch.testing.assert_close(
        [policy[0].loss, policy[0].approx_kl, policy[0].clip_fraction, value[0], advantages[0]],
        [policy[1].loss, policy[1].approx_kl, policy[1].clip_fraction, value[1], advantages[1]],
    )


def test_no_gradient_flows_to_old_values_returns_and_advantages() -> None:
    steps = random_steps(5)
    values = steps.values[:-1].clone().requires_grad_()
    steps.reward.requires_grad_()
    steps.log_prob.requires_grad_()
    clipped_value_loss(
        values=values, old_values=steps.log_prob, returns=steps.reward, mask=steps.mask, clip=0.2
    ).backward()
    clipped_policy_loss(
        log_prob=values, behaviour_log_prob=steps.behaviour_log_prob, advantages=steps.reward, mask=steps.mask
    ).loss.backward()
    assert values.grad is not None
    assert steps.log_prob.grad is None
    assert steps.reward.grad is None
