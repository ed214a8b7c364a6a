"""Returns of n steps against their definition, written in loops."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from ropewalk.rl.losses.n_step import n_step_returns
from tests.rl.losses.steps import EnvironmentSteps, column, flags, random_steps


def returns_of(steps: EnvironmentSteps, n: int) -> Tensor:
    return n_step_returns(
        reward=steps.reward, terminated=steps.terminated, mask=steps.mask, values=steps.values, discount=0.9, n=n
    )


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("n", [1, 3, 50])
def test_returns_are_sums_of_rewards_and_a_value(seed: int, n: int) -> None:
    steps = random_steps(seed)

    def returns(env: int, episode: range) -> list[float]:
        out: list[float] = []
        for s in episode:
            end, total, factor = min(s + n, episode.stop), 0.0, 1.0
            for t in range(s, end):
                total += factor * float(steps.reward[t, env])
                factor *= 0.0 if steps.terminated[t, env] else 0.9
            out.append(total + factor * float(steps.values[end, env]))
        return out

    expected = steps.per_episode(returns, steps.values[:-1])
    torch.testing.assert_close(returns_of(steps, n), expected, rtol=1e-12, atol=1e-12)


def test_a_small_table_by_hand() -> None:
    # gamma 1/2, n 2: 1 + 2/2 + 8/4 = 4; 2 + 4/2 + 16/4 = 8; the last has one step: 4 + 16/2 = 12
    found = n_step_returns(
        reward=column(1, 2, 4),
        terminated=flags(0, 0, 0),
        mask=flags(1, 1, 1),
        values=column(0, 0, 8, 16),
        discount=0.5,
        n=2,
    )
    torch.testing.assert_close(found, column(4, 8, 12))


@pytest.mark.parametrize("garbage", [math.nan, math.inf])
def test_masked_steps_change_nothing_whatever_is_in_them(garbage: float) -> None:
    steps = random_steps(2)
    assert torch.equal(returns_of(steps, 3), returns_of(steps.with_garbage(garbage), 3))


def test_no_steps_at_all_are_refused() -> None:
    with pytest.raises(ValueError, match="n >= 1, not 0"):
        returns_of(random_steps(0), 0)
