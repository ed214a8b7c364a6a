"""Sequences of fixed length, each with the recurrent state at its first step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ropewalk.rl.adders.sequence import SequenceAdder
from ropewalk.rl.environments.spec import Array
from tests.rl.adders.experience import Step, StoredStream, assert_equal_items, experience, sorted_by


def naive(steps: list[Step], length: int, period: int) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    for start in range(0, len(steps) - length, period):
        part = steps[start : start + length]
        names = ("first", "action", "reward", "terminated", "truncated", "mask", "value")
        columns = {name: [getattr(step, name) for step in part] for name in names}
        items.append(
            {
                "observation.image": np.outer([step.observation for step in part], np.ones(3)),
                "observation.speed": [step.observation for step in part],
                "state.h": part[0].state,
                **columns,
            }
        )
    return items


@given(
    seed=st.integers(0, 1000),
    num_envs=st.integers(1, 3),
    num_blocks=st.integers(1, 6),
    steps=st.integers(1, 4),
    length=st.integers(2, 9),
    blocks_of_period=st.integers(1, 3),
)
@settings(max_examples=60)
def test_items_are_those_of_one_step_after_the_other(
    seed: int, num_envs: int, num_blocks: int, steps: int, length: int, blocks_of_period: int
) -> None:
    envs, blocks = experience(seed, num_envs, [steps] * num_blocks)
    period = steps * blocks_of_period
    adder, stored = SequenceAdder(length, period), StoredStream()
    found = [item for block in blocks for item in stored.add(adder.add(block))]
    expected = [item for env in envs for item in naive(env, length, period)]
    assert_equal_items(sorted_by(found, "observation.speed"), sorted_by(expected, "observation.speed"))


def test_a_period_that_would_begin_sequences_where_no_state_is_known_is_refused() -> None:
    _, blocks = experience(0, 1, [4, 4])
    with pytest.raises(ValueError, match=r"begin at step 2 of run 0#0, in the middle of a block of 4 steps"):
        SequenceAdder(4, 2).add(blocks[0])


def test_without_recurrent_state_sequences_begin_anywhere() -> None:
    envs, blocks = experience(0, 2, [4, 4, 4])
    adder, stored, found = SequenceAdder(5, 3), StoredStream(), list[dict[str, Any]]()
    for block in blocks:
        columns = {name: array for name, array in block.columns.items() if name != "state.h"}
        found += stored.add(adder.add(type(block)(columns, block.run_id, block.number, block.version, block.steps)))
    expected = [item for env in envs for item in naive(env, 5, 3)]
    for item in expected:
        del item["state.h"]
    assert_equal_items(sorted_by(found, "observation.speed"), sorted_by(expected, "observation.speed"))


def test_sequences_do_not_join_two_run_ids() -> None:
    _, first = experience(1, 1, [2])
    _, second = experience(2, 1, [2, 2])
    adder, fresh = SequenceAdder(4, 2), SequenceAdder(4, 2)
    adder.add(first[0])
    stored, expected, num = StoredStream(), StoredStream(), 0
    for block in second:
        block = type(block)(block.columns, "0#1", block.number, block.version, block.steps)
        items = stored.add(adder.add(block))
        num += len(items)
        assert_equal_items(items, expected.add(fresh.add(block)))
    assert num == 1


@given(seed=st.integers(0, 100), num_blocks=st.integers(1, 6), length=st.integers(2, 9), period=st.sampled_from([2, 4]))
@settings(max_examples=30)
def test_priorities_are_computed_from_all_columns_but_observations(
    seed: int, num_blocks: int, length: int, period: int
) -> None:
    def of_columns(columns: Mapping[str, Array]) -> NDArray[np.float64]:
        assert not [name for name in columns if name.startswith("observation")]
        return (np.abs(columns["reward"]).sum(1) + columns["state.h"]).astype(np.float64)

    _, blocks = experience(seed, 2, [2] * num_blocks)
    adder, stored = SequenceAdder(length, period, priorities=of_columns), StoredStream()
    for block in blocks:
        insertion = adder.add(block)
        priorities = insertion.items["replay"].priorities
        items = stored.add(insertion)
        assert priorities is not None
        np.testing.assert_allclose(
            priorities, [np.abs(item["reward"]).sum() + item["state.h"] for item in items], rtol=1e-5
        )


@pytest.mark.parametrize(
    ("length", "period", "words"),
    [
        (1, 1, "length must be a whole number, 2 or more, not 1"),
        (2, 0, "period must be a whole number, 1 or more, not 0"),
    ],
)
def test_values_out_of_range_are_refused(length: int, period: int, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        SequenceAdder(length, period)
