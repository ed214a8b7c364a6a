"""Follows environments from outside: what has to be done again to bring new ones to the same state."""

from __future__ import annotations

import numpy as np

from ropewalk.rl.blocks import Block
from ropewalk.rl.environments.environment import EnvironmentHistory
from ropewalk.rl.environments.spec import Array


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


__all__ = ["advanced", "fresh_history"]
