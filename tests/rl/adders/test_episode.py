"""Whole episodes, padded, and cut where they are long."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk.rl.adders.episode import EpisodeAdder
from tests.rl.adders.experience import Step, StoredStream, assert_equal_items, blocks_of, experience, sorted_by


def naive(steps: list[Step], length: int) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    part: list[Step] = []
    for step, after in itertools.pairwise(steps):
        if not step.mask:
            continue
        part.append(step)
        if step.terminated or step.truncated or len(part) == length:
            padded = part + [part[-1]] * (length - len(part))
            seen = [*[each.observation for each in part], *[after.observation] * (length + 1 - len(part))]
            names = ("action", "reward", "terminated", "truncated", "value")
            items.append(
                {
                    "observation.image": np.outer(seen, np.ones(3)),
                    "observation.speed": seen,
                    "mask": [index < len(part) for index in range(length)],
                    **{name: [getattr(each, name) for each in padded] for name in names},
                }
            )
            part = []
    return items


@given(
    seed=st.integers(0, 1000),
    num_envs=st.integers(1, 3),
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=5),
    length=st.integers(1, 8),
)
@settings(max_examples=60)
def test_items_are_those_of_one_step_after_the_other(seed: int, num_envs: int, lengths: list[int], length: int) -> None:
    envs, blocks = experience(seed, num_envs, lengths)
    adder, stored = EpisodeAdder(length), StoredStream()
    found = [item for block in blocks for item in stored.add(adder.add(block))]
    expected = [item for env in envs for item in naive(env, length)]
    assert_equal_items(sorted_by(found, "observation.speed"), sorted_by(expected, "observation.speed"))


def test_an_episode_of_another_run_id_is_not_completed() -> None:
    steps = [Step(float(t), t == 0, 0, 1.0, t == 3, False, True, 0.0, 0.0) for t in range(5)]
    adder = EpisodeAdder(8)
    begun, ended = blocks_of([steps], [2, 2])
    assert len(adder.add(begun).items["replay"]) == 0
    other = type(ended)(ended.columns, "0#1", 0, 0, 2)
    (item,) = StoredStream().add(adder.add(other))
    assert item["mask"].sum() == 2


def test_a_length_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="length must be a whole number, 1 or more, not 0"):
        EpisodeAdder(0)
