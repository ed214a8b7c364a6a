"""Histories of environments, followed through blocks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk.rl.blocks import Block
from ropewalk.rl.environments.environment import EnvironmentHistory
from ropewalk.rl.environments.histories import LONG_EPISODE, advanced, fresh_history, told_if_long


def block_of(action: list[list[int]], mask: list[list[int]], ended: list[list[int]]) -> Block:
    """Time-major lists."""
    columns = {
        "action": np.array(action),
        "mask": np.array(mask, bool),
        "terminated": np.array(ended, bool),
        "truncated": np.zeros_like(np.array(ended, bool)),
        "reward": np.zeros(np.array(mask).shape, np.float32),
    }
    return Block(columns, "0#0", 0, 0, int(np.sum(mask)))


def test_environments_begin_in_their_first_episode_without_a_step() -> None:
    history = fresh_history(2)
    assert (history.episodes, history.ended) == ((0, 0), (False, False))
    assert [list(actions) for actions in history.actions] == [[], []]


@pytest.mark.parametrize("column", ["terminated", "truncated"])
def test_an_episode_has_ended_if_the_last_step_ended_it(column: str) -> None:
    block = block_of([[1, 2, 3], [4, 5, 6]], [[1, 1, 1], [0, 1, 1]], [[0, 0, 0], [0, 0, 0]])
    block.columns[column][:] = [[True, False, False], [False, True, False]]
    assert advanced(fresh_history(3), block).ended == (False, True, False)


def test_actions_since_the_last_reset_are_kept() -> None:
    first = advanced(fresh_history(2), block_of([[1, 2], [3, 4]], [[1, 1], [1, 1]], [[0, 0], [0, 1]]))
    assert first.episodes == (0, 0) and first.ended == (False, True)
    assert [list(actions) for actions in first.actions] == [[1, 3], [2, 4]]
    second = advanced(first, block_of([[5, 6], [7, 8]], [[1, 0], [1, 1]], [[0, 0], [0, 0]]))
    assert second.episodes == (0, 1) and second.ended == (False, False)
    assert [list(actions) for actions in second.actions] == [[1, 3, 5, 7], [8]]


@given(
    lengths=st.lists(st.integers(1, 5), min_size=8, max_size=8),
    cuts=st.lists(st.integers(1, 4), min_size=1, max_size=6),
)
@settings(max_examples=100, deadline=None)
def test_it_does_not_matter_how_steps_are_cut_into_blocks(lengths: list[int], cuts: list[int]) -> None:
    """Against an environment that counts: one episode after the other, of the given lengths."""
    history = fresh_history(1)
    episode, actions, ended = 0, list[int](), False
    action = 0
    for cut in cuts:
        rows: list[tuple[int, int, int]] = []
        for _ in range(cut):
            action += 1
            if ended:
                episode, actions, ended = episode + 1, [], False
                rows.append((action, 0, 0))
                continue
            actions = [*actions, action]
            ended = len(actions) == lengths[episode % len(lengths)]
            rows.append((action, 1, int(ended)))
        history = advanced(history, block_of(*([[row[at]] for row in rows] for at in range(3))))
        assert (history.episodes[0], list(history.actions[0]), history.ended[0]) == (episode, actions, ended)


def test_an_episode_that_goes_on_and_on_is_told_with_its_place() -> None:
    def told(num_steps: int) -> str:
        return told_if_long(EnvironmentHistory((3, 7), (np.zeros(2), np.zeros(num_steps)), (False, False)), 4)

    assert told(LONG_EPISODE) == ""
    assert "episode 7 of environment 1 of group 4 has more than 1,000,000 steps" in told(LONG_EPISODE + 1)
    assert told(LONG_EPISODE + 1) == told(LONG_EPISODE + 100), "it is told once"
