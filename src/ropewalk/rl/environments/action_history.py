"""`ActionHistory`: the actions of the current episode of every environment, in one growing array."""

from __future__ import annotations

import numpy as np

from ropewalk.rl.environments.spec import Array, ArraySpec


class ActionHistory:
    """Remembers the actions since the last reset of each environment: 8 bytes a step for discrete ones.

    Args:
        num_envs: how many environments are stepped together.
        action: shape and dtype of one action.
    """

    def __init__(self, num_envs: int, action: ArraySpec) -> None:
        self._rows: Array = np.empty((64, num_envs, *action.shape), action.dtype)
        self._size = 0
        self._began = [0] * num_envs
        """For each environment, the row of the first action of its episode."""

    def append(self, action: Array) -> None:
        """Remember the actions of one step, shape (num_envs, ...)."""
        if self._size == len(self._rows):
            self._make_room()
        self._rows[self._size] = action
        self._size += 1

    def begin(self, env: int) -> None:
        """Forget the actions of this environment: its next episode begins."""
        self._began[env] = self._size

    def of(self, env: int) -> Array:
        """Return the actions of this environment's episode, shape (steps, ...)."""
        return self._rows[self._began[env] : self._size, env].copy()

    def restore(self, actions: tuple[Array, ...]) -> None:
        """Hold these actions from now on, of shape (steps, ...) for each environment."""
        self._size = max(map(len, actions))
        self._rows = np.zeros((max(64, 2 * self._size), *self._rows.shape[1:]), self._rows.dtype)
        self._began = [self._size - len(episode) for episode in actions]
        for env, episode in enumerate(actions):
            self._rows[self._began[env] : self._size, env] = episode

    def _make_room(self) -> None:
        oldest = min(self._began)
        kept = self._rows[oldest : self._size]
        rows = self._rows  # if they fill less than half of it, they move to its beginning, and overlap nowhere
        if 2 * len(kept) > len(rows):
            rows = np.empty((2 * len(rows), *rows.shape[1:]), rows.dtype)
        rows[: len(kept)] = kept
        self._rows, self._size = rows, len(kept)
        self._began = [began - oldest for began in self._began]


__all__ = ["ActionHistory"]
