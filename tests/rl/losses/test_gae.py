"""Generalised advantages against the sum of their definition, written in loops."""

from __future__ import annotations

import math

import pytest
import torch

from ropewalk.rl.losses.gae import AdvantageEstimate, gae
from ropewalk.rl.losses.n_step import n_step_returns
from tests.rl.losses.steps import EnvironmentSteps, column, flags, random_steps


def gae_of(steps: EnvironmentSteps, lambda_: float) -> AdvantageEstimate:
    return gae(
        reward=steps.reward,
        terminated=steps.terminated,
        mask=steps.mask,
        values=steps.values,
        discount=0.9,
        lambda_=lambda_,
    )


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("lambda_", [0.0, 0.8, 1.0])
def test_advantages_are_the_discounted_sum_of_temporal_differences(seed: int, lambda_: float) -> None:
    steps = random_steps(seed)

    def advantages(env: int, episode: range) -> list[float]:
        value = [float(each) for each in steps.values[:, env]]
        gamma = {t: 0.0 if steps.terminated[t, env] else 0.9 for t in episode}
        delta = {t: float(steps.reward[t, env]) + gamma[t] * value[t + 1] - value[t] for t in episode}
        return [
            sum(math.prod(gamma[i] * lambda_ for i in range(s, t)) * delta[t] for t in range(s, episode.stop))
            for s in episode
        ]

    expected = steps.per_episode(advantages, torch.zeros_like(steps.reward))
    found = gae_of(steps, lambda_)
    torch.testing.assert_close(found.advantages, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found.returns, expected + steps.values[:-1], rtol=1e-12, atol=1e-12)


def test_a_small_table_by_hand() -> None:
    # gamma 1/2, lambda 1/2; step 1 terminates, step 2 only begins the next episode, step 3 is cut by the end.
    #   step 3: 3 + 8/2 - 2 = 5    step 2: 0    step 1: 2 - 1 = 1    step 0: 1 + 1/2 - 4 + 1/4 1 = -2.25
    found = gae(
        reward=column(1, 2, 77, 3),
        terminated=flags(0, 1, 0, 0),
        mask=flags(1, 1, 0, 1),
        values=column(4, 1, 50, 2, 8),
        discount=0.5,
        lambda_=0.5,
    )
    torch.testing.assert_close(found.advantages, column(-2.25, 1, 0, 5))
    torch.testing.assert_close(found.returns, column(1.75, 2, 50, 7))


@pytest.mark.parametrize(("lambda_", "n"), [(0.0, 1), (1.0, 12)])
def test_its_limits_are_returns_of_one_step_and_of_all(lambda_: float, n: int) -> None:
    steps = random_steps(5)
    returns = n_step_returns(
        reward=steps.reward, terminated=steps.terminated, mask=steps.mask, values=steps.values, discount=0.9, n=n
    )
    torch.testing.assert_close(gae_of(steps, lambda_).returns, returns)


@pytest.mark.parametrize("garbage", [math.nan, math.inf])
def test_masked_steps_change_nothing_whatever_is_in_them(garbage: float) -> None:
    steps = random_steps(2)
    assert torch.equal(gae_of(steps, 0.9).returns, gae_of(steps.with_garbage(garbage), 0.9).returns)


def test_advantages_have_no_gradient() -> None:
    steps = random_steps(6)
    steps.values.requires_grad_()
    assert not gae_of(steps, 0.9).returns.requires_grad
