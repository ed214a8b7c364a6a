from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ropewalk.rl.learners.reward_scaling import RewardScaling

T, N = 5, 2
Part: TypeAlias = tuple[NDArray[np.float32], NDArray[np.bool_], NDArray[np.bool_]]


def block(seed: int) -> Part:
    rng = np.random.default_rng(seed)
    done = rng.random((T, N)) < 0.3
    mask = np.ones((T, N), np.bool_)
    mask[1:] = ~done[:-1]
    done &= mask
    mask[1:] = ~done[:-1]
    return np.where(mask, rng.standard_normal((T, N)) * 5, 0).astype(np.float32), done, mask


def returns_of(blocks: list[Part]) -> list[float]:
    """Discounted returns after each step that counts, of consecutive blocks, environment by environment."""
    seen: list[float] = []
    for env in range(N):
        total = 0.0
        for reward, done, mask in blocks:
            for step in range(T):
                total = 0.9 * total + float(reward[step, env])
                if mask[step, env]:
                    seen.append(total)
                if done[step, env]:
                    total = 0.0
    return seen


def scaled_by(scaling: RewardScaling, run_ids: list[str], *blocks: Part) -> tuple[Any, Any]:
    """The scaled rewards of blocks, and the rewards."""
    reward, done, mask = (np.stack(part) for part in zip(*blocks, strict=True))
    return scaling(reward, done.astype(np.bool_), mask.astype(np.bool_), run_ids), reward


def test_rewards_are_divided_by_the_deviation_of_the_returns_of_all_blocks_so_far() -> None:
    scaling = RewardScaling(0.9)
    groups = [[block(group * 10 + number) for number in range(3)] for group in range(2)]
    for number in range(3):
        scaled, reward = scaled_by(scaling, ["0#0", "1#0"], *(blocks[number] for blocks in groups))
        seen = [value for blocks in groups for value in returns_of(blocks[: number + 1])]
        np.testing.assert_allclose(scaled, reward / np.std(seen), rtol=1e-5)
        assert scaled.dtype == np.float32


def test_another_life_of_a_group_begins_with_a_return_of_zero() -> None:
    scaling = RewardScaling(0.9)
    blocks = [block(0), block(1)]
    scaled_by(scaling, ["0#0"], blocks[0])
    scaled, reward = scaled_by(scaling, ["0#1"], blocks[1])
    seen = [value for each in blocks for value in returns_of([each])]
    np.testing.assert_allclose(scaled, reward / np.std(seen), rtol=1e-5)


def test_scaled_rewards_are_clipped() -> None:
    reward = np.zeros((1, 400, 1), np.float32)
    reward[0, 200] = -50.0
    done = np.ones((1, 400, 1), np.bool_)
    scaled = RewardScaling(0.9)(reward, done, np.ones_like(done), ["0#0"])
    assert scaled.min() == -10.0


def test_it_goes_on_from_a_state() -> None:
    one, two = RewardScaling(0.9), RewardScaling(0.9)
    for number in range(2):
        scaled_by(one, ["0#0"], block(number))
    two.load_state_dict(one.state_dict())
    results = [scaled_by(scaling, ["0#0"], block(2))[0] for scaling in (one, two)]
    assert (results[0] == results[1]).all()
