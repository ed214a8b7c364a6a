"""`RewardScaling`: divides rewards by the running standard deviation of the discounted return.

Detail 8 of the nine for continuous actions in Huang et al., The 37 Implementation Details of Proximal Policy
Optimization, 2022. It is computed by the learner, where the rewards of all actors come together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ropewalk.rl.environments.spec import Array
from ropewalk.rl.networks.normalisation import RunningMoments

EPSILON = 1e-8
"""Is added to the variance."""
_CLIP = 10.0
"""Scaled rewards are clipped to this (detail 9)."""


class RewardScaling:
    """Running statistics of discounted returns, and rewards scaled by them.

    The return of an environment, R = discount R + r, begins with 0 in each episode and continues from one block of its
    group to the next.

    Args:
        discount: discount of the return.
    """

    def __init__(self, discount: float) -> None:
        self._discount = discount
        self._moments = RunningMoments(())
        self._returns: dict[str, tuple[str, NDArray[np.float64]]] = {}  # by group: its run id, and one for each env

    def __call__(
        self, reward: Array, done: NDArray[np.bool_], mask: NDArray[np.bool_], run_ids: Sequence[str]
    ) -> NDArray[np.float32]:
        """Take in the rewards of blocks, and return them scaled by statistics that include them.

        Args:
            reward: shape (B, T, N); blocks of one group in the order in which they were made.
            done: whether the step ended its episode, same shape.
            mask: False for steps that do not count, same shape.
            run_ids: run id of each of the B blocks.
        """
        returns = [self._returns_of(*block) for block in zip(reward, done, run_ids, strict=True)]
        self._moments.update(torch.as_tensor(np.array(returns)), torch.as_tensor(mask))
        scale = 1.0 / np.sqrt(float(self._moments.variance) + EPSILON)
        return np.clip(reward * scale, -_CLIP, _CLIP).astype(np.float32)

    def _returns_of(self, reward: Array, done: NDArray[np.bool_], run_id: str) -> NDArray[np.float64]:
        """Return R after each step of a block, shape (T, N), and keep the last for the next block."""
        group = run_id.partition("#")[0]
        held_by, returns = self._returns.get(group, ("", np.zeros(0)))
        if held_by != run_id:
            returns = np.zeros(reward.shape[1])
        seen = np.empty(reward.shape)
        for step in range(len(reward)):
            seen[step] = returns * self._discount + reward[step]
            returns = np.where(done[step], 0.0, seen[step])
        self._returns[group] = run_id, returns
        return seen

    def state_dict(self) -> dict[str, Any]:
        """Return the statistics, and the returns of the episodes under way."""
        return {"moments": self._moments.state_dict(), "returns": self._returns}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state."""
        self._moments.load_state_dict(state["moments"])
        self._returns = dict(state["returns"])


__all__ = ["RewardScaling"]
