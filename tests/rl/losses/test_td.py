"""Temporal differences against loops in plain Python."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from ropewalk.rl.losses.td import TDLoss, action_values, huber, q_targets, sequence_td_loss, td_loss
from tests.rl.losses.steps import EnvironmentSteps, random_steps

GENERATOR = torch.Generator().manual_seed(5)
NUM_ACTIONS = 3


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, generator=GENERATOR, dtype=torch.float64)


def test_the_network_that_learns_chooses_and_the_target_network_values() -> None:
    next_q = torch.tensor([[1.0, 5.0], [1.0, 5.0]])
    online = torch.tensor([[2.0, 0.0], [0.0, 2.0]])
    reward, discount = torch.tensor([10.0, 20.0]), torch.tensor([0.5, 0.0])
    assert q_targets(reward, discount, next_q, online).tolist() == [10.5, 20.0]
    assert q_targets(reward, discount, next_q).tolist() == [12.5, 20.0]


def test_hubers_loss_is_square_inside_and_linear_outside() -> None:
    errors = torch.tensor([-3.0, -1.0, 0.5, 2.0])
    assert huber(errors, 1.0).tolist() == [2.5, 0.5, 0.125, 1.5]
    assert huber(errors, 2.0).tolist() == [4.0, 0.5, 0.125, 2.0]
    assert huber(errors, None).tolist() == [4.5, 0.5, 0.125, 2.0]


def test_the_loss_of_transitions_is_a_weighted_mean() -> None:
    values = torch.tensor([1.0, 2.0], requires_grad=True)
    targets = torch.tensor([4.0, 1.5], requires_grad=True)
    found = td_loss(values, targets, torch.tensor([0.5, 1.0]))
    assert found.loss.item() == pytest.approx((0.5 * 2.5 + 1.0 * 0.125) / 2)
    assert found.td_errors.tolist() == [3.0, -0.5]
    found.loss.backward()
    assert values.grad is not None
    assert values.grad.tolist() == [-0.25, 0.25]  # 0.5 times the slope -1, and 1 times 0.5, over two
    assert targets.grad is None
    assert not found.td_errors.requires_grad


class Sequences:
    def __init__(self, seed: int) -> None:
        self.steps = random_steps(seed, num_steps=9, num_envs=4)
        self.q, self.target_q = normal(9, 4, NUM_ACTIONS), normal(9, 4, NUM_ACTIONS)
        self.action = torch.randint(NUM_ACTIONS, (9, 4), generator=GENERATOR)
        self.weights = torch.rand(4, generator=GENERATOR, dtype=torch.float64)

    def loss(self, n: int, eps: float | None, steps: EnvironmentSteps | None = None) -> TDLoss:
        steps = steps or self.steps
        return sequence_td_loss(
            q=self.q,
            target_q=self.target_q,
            action=self.action,
            reward=steps.reward,
            terminated=steps.terminated,
            mask=steps.mask,
            discount=0.9,
            n=n,
            weights=self.weights,
            eps=eps,
        )


def h(x: float, eps: float | None) -> float:
    return x if eps is None else math.copysign(math.sqrt(abs(x) + 1) - 1, x) + eps * x


def h_inverse(x: float, eps: float | None) -> float:
    if eps is None:
        return x
    root = (math.sqrt(1 + 4 * eps * (abs(x) + 1 + eps)) - 1) / (2 * eps)
    return math.copysign(root**2 - 1, x)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("n", "eps"), [(1, None), (3, 1e-3), (5, 1e-2)])
def test_errors_of_sequences_are_those_of_r2d2(seed: int, n: int, eps: float | None) -> None:
    case = Sequences(seed)
    mask, terminated = case.steps.mask, case.steps.terminated
    expected = torch.zeros(8, 4, dtype=torch.float64)
    for env in range(4):
        for s in range(8):
            if not mask[s, env]:
                continue
            total, factor, t = 0.0, 1.0, s
            while t < min(s + n, 8) and mask[t, env]:
                total += factor * float(case.steps.reward[t, env])
                factor *= 0.0 if terminated[t, env] else 0.9
                t += 1
            chosen = max(range(NUM_ACTIONS), key=lambda a: float(case.q[t, env, a]))
            target = h(total + factor * h_inverse(float(case.target_q[t, env, chosen]), eps), eps)
            expected[s, env] = target - float(case.q[s, env, case.action[s, env]])
    found = case.loss(n, eps)
    torch.testing.assert_close(found.td_errors, expected, rtol=1e-9, atol=1e-9)
    loss = sum(float(case.weights[env]) * 0.5 * float((expected[:, env] ** 2).sum()) for env in range(4)) / 4
    assert found.loss.item() == pytest.approx(loss, rel=1e-9)


@pytest.mark.parametrize("garbage", [math.nan, math.inf])
def test_masked_steps_change_nothing_whatever_is_in_them(garbage: float) -> None:
    case = Sequences(1)
    case.q.requires_grad_()
    clean = case.loss(3, 1e-3)
    (gradient,) = torch.autograd.grad(clean.loss, case.q)
    dirty = case.loss(3, 1e-3, case.steps.with_garbage(garbage))
    assert torch.equal(clean.loss, dirty.loss)
    assert torch.equal(gradient, torch.autograd.grad(dirty.loss, case.q)[0])
    assert not gradient[~case.steps.mask].any()


def test_gradients_reach_the_values_of_the_actions_taken_and_no_targets() -> None:
    case = Sequences(2)
    case.q.requires_grad_()
    case.target_q.requires_grad_()
    found = case.loss(3, 1e-3)
    found.loss.backward()
    assert case.target_q.grad is None
    expected = torch.zeros_like(case.q)
    expected[:8].scatter_(-1, case.action[:8].unsqueeze(-1), (-found.td_errors * case.weights / 4).unsqueeze(-1))
    assert case.q.grad is not None
    torch.testing.assert_close(case.q.grad, expected)


def test_values_of_actions_are_picked_along_the_last_axis() -> None:
    q = torch.arange(12.0).reshape(2, 2, 3)
    assert action_values(q, torch.tensor([[0, 2], [1, 1]])).tolist() == [[0, 5], [7, 10]]
