"""Follows environments from outside: what has to be done again to bring new ones to the same state."""

from __future__ import annotations

import numpy as np

from ropewalk.rl.blocks import Block
from ropewalk.rl.environments.environment import EnvironmentHistory
from ropewalk.rl.environments.spec import Array

LONG_EPISODE = 1_000_000
"""Actions of an episode after which a warning says that they are kept."""


def fresh_history(num_envs: int) -> EnvironmentHistory:
    """Return the history of environments that were reset once and not stepped."""
    return EnvironmentHistory((0,) * num_envs, (np.zeros(0),) * num_envs, (False,) * num_envs)


def advanced(history: EnvironmentHistory, block: Block) -> EnvironmentHistory:
    """Return the history after a block that began where `history` ends."""
    after = [_one(history, block, env) for env in range(block.num_envs)]
    return EnvironmentHistory(
        episodes=tuple(episode for episode, _, _ in after),
        actions=tuple(actions for _, actions, _ in after),
        ended=tuple(ended for _, _, ended in after),
    )


def _one(history: EnvironmentHistory, block: Block, env: int) -> tuple[int, Array, bool]:
    resets = np.flatnonzero(np.logical_not(block.columns["mask"][:, env]))
    action = block.columns["action"][:, env]
    ended = bool(block.columns["terminated"][-1, env] or block.columns["truncated"][-1, env])
    if len(resets):
        return history.episodes[env] + len(resets), action[resets[-1] + 1 :].copy(), ended
    before = history.actions[env]
    return history.episodes[env], np.concatenate([before, action]) if len(before) else action.copy(), ended


def told_if_long(history: EnvironmentHistory, group: int) -> str:
    """Say what to do about an episode that goes on and on, whose actions take memory and a restoration time; or ""."""
    env = max(range(len(history.actions)), key=lambda env: len(history.actions[env]))
    if len(history.actions[env]) <= LONG_EPISODE:
        return ""
    return (
        f"episode {history.episodes[env]} of environment {env} of group {group} has more than {LONG_EPISODE:,} steps. "
        "All of its actions are kept, and would be taken again to restore the environment after a death or from a "
        "checkpoint; give the environment a limit of steps, such as gymnasium.wrappers.TimeLimit. Asynchronous runs, "
        "and runs in one process without a checkpoint, keep none"
    )


__all__ = ["LONG_EPISODE", "advanced", "fresh_history", "told_if_long"]
