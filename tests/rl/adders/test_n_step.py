"""Transitions over n steps: as one step after the other makes them, however the steps are cut into blocks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ropewalk.rl.adders.n_step import NStepAdder
from ropewalk.rl.environments.spec import Array
from tests.rl.adders.experience import Step, StoredStream, assert_equal_items, blocks_of, experience, sorted_by

cuts = st.lists(st.integers(1, 6), min_size=1, max_size=5)


def naive(steps: list[Step], n: int, discount: float) -> list[dict[str, Any]]:
    """The items of one environment; the last of the steps is not done yet."""
    items: list[dict[str, Any]] = []
    for t, start in enumerate(steps[:-1]):
        reward, factor, end = 0.0, 1.0, t
        while start.mask and end < min(t + n, len(steps) - 1):
            step = steps[end]
            reward += factor * step.reward
            factor *= 0.0 if step.terminated else discount
            end += 1
            if step.terminated or step.truncated:
                break
        last = steps[end - 1]
        if not start.mask or not (end == t + n or last.terminated or last.truncated):
            continue
        items.append(
            {
                "observation.image": np.full(3, start.observation),
                "observation.speed": start.observation,
                "next_observation.image": np.full(3, steps[end].observation),
                "next_observation.speed": steps[end].observation,
                "action": start.action,
                "reward": reward,
                "discount": factor,
                "value": start.value,
            }
        )
    return items


@given(seed=st.integers(0, 1000), num_envs=st.integers(1, 3), lengths=cuts, n=st.integers(1, 5))
@settings(max_examples=60)
def test_items_are_those_of_one_step_after_the_other(seed: int, num_envs: int, lengths: list[int], n: int) -> None:
    envs, blocks = experience(seed, num_envs, lengths)
    adder, stored = NStepAdder(n, 0.9), StoredStream()
    found = [item for block in blocks for item in stored.add(adder.add(block))]
    expected = [item for env in envs for item in naive(env, n, 0.9)]
    assert_equal_items(sorted_by(found, "observation.speed"), sorted_by(expected, "observation.speed"))


def test_items_are_bit_equal_however_steps_are_cut_into_blocks() -> None:
    for lengths in ([2, 3, 1, 6], [1] * 12):
        (_, whole), (_, cut) = experience(3, 2, [12]), experience(3, 2, lengths)
        one, other, stored = NStepAdder(3, 0.97), NStepAdder(3, 0.97), StoredStream()
        expected = sorted_by(StoredStream().add(one.add(whole[0])), "observation.speed")
        found = sorted_by([item for block in cut for item in stored.add(other.add(block))], "observation.speed")
        assert [item["reward"].tobytes() for item in found] == [item["reward"].tobytes() for item in expected]


def test_a_truncated_episode_keeps_its_discount_and_ends_with_its_last_observation() -> None:
    steps = [
        Step(0.0, True, 0, 1.0, False, False, True, 0.0, 0.0),
        Step(1.0, False, 0, 2.0, False, True, True, 0.0, 0.0),
        Step(2.0, False, 0, 0.0, False, False, False, 0.0, 0.0),
        Step(50.0, True, 0, 0.0, False, False, True, 0.0, 0.0),
    ]
    items = StoredStream().add(NStepAdder(3, 0.5).add(blocks_of([steps], [3])[0]))
    assert [(item["reward"], item["discount"], item["next_observation.speed"]) for item in items] == [
        (2.0, 0.25, 2.0),
        (2.0, 0.5, 2.0),
    ]


def test_windows_do_not_join_two_run_ids() -> None:
    _, first = experience(1, 2, [4])
    _, second = experience(2, 2, [4, 4])
    again = [type(block)(block.columns, "0#1", block.number, block.version, block.steps) for block in second]
    adder, fresh = NStepAdder(4, 0.9), NStepAdder(4, 0.9)
    adder.add(first[0])
    stored, expected = StoredStream(), StoredStream()
    for block in again:
        assert_equal_items(stored.add(adder.add(block)), expected.add(fresh.add(block)))


def test_a_missing_block_is_refused() -> None:
    _, blocks = experience(1, 2, [2, 2, 2])
    adder = NStepAdder(2, 0.9)
    adder.add(blocks[0])
    with pytest.raises(
        ValueError, match="block 2 of run 0#0 with 2 environments came where block 1 with 2 was expected"
    ):
        adder.add(blocks[2])


def test_priorities_are_computed_from_the_columns_of_the_new_items() -> None:
    def of_rewards(columns: Mapping[str, Array]) -> NDArray[np.float64]:
        assert columns.keys() == {"reward", "discount", "action", "value"}
        return np.abs(columns["reward"]).astype(np.float64) + columns["value"].astype(np.float64)

    _, blocks = experience(5, 2, [3, 4])
    adder, stored = NStepAdder(2, 0.9, priorities=of_rewards), StoredStream()
    for block in blocks:
        insertion = adder.add(block)
        priorities = insertion.items["replay"].priorities
        items = stored.add(insertion)
        assert priorities is not None
        np.testing.assert_allclose(priorities, [abs(item["reward"]) + item["value"] for item in items], rtol=1e-6)


@pytest.mark.parametrize(
    ("n", "discount", "words"), [(0, 0.9, "1 or more, not 0"), (1, 1.5, "between 0 and 1, not 1.5")]
)
def test_values_out_of_range_are_refused(n: int, discount: float, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        NStepAdder(n, discount)
