"""Recall-v0: an environment that only an agent with a memory can solve.

    step         0        1 ... k      k + 1
    observation  cue      blank        question
    reward       0        0            1 if the action is the cue

Actions before the question have no effect. An agent without a memory is right in one of `cues` episodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class RecallTask:
    """Makes the environment: a factory for experiments.

    Args:
        blanks: k, steps between the cue and the question.
        cues: how many cues there are, each as likely as the others.
    """

    blanks: int = 8
    cues: int = 2

    def __post_init__(self) -> None:
        if self.blanks < 0 or self.cues < 2:
            raise ValueError(f"blanks is {self.blanks} and cues is {self.cues}; use at least 0 and at least 2")

    def __call__(self, seed: int) -> RecallEnvironment:
        """Make one environment; `seed` is not used, because every `reset` is given one."""
        del seed
        return RecallEnvironment(self.blanks, self.cues)


class RecallEnvironment(gymnasium.Env[NDArray[np.float32], Any]):
    """Shows a cue, then blanks, then a question, and ends with the answer.

    The observation has an entry for each cue, which is 1 while it is shown, and one that is 1 while the question is.

    Args:
        blanks: steps between the cue and the question.
        cues: how many cues there are.
    """

    def __init__(self, blanks: int, cues: int) -> None:
        self.observation_space = spaces.Box(0, 1, (cues + 1,), np.float32)
        self.action_space = spaces.Discrete(cues)
        self._num_cues = cues
        self._question = blanks + 1
        self._cue = 0
        self._time = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self._cue = int(self.np_random.integers(self._num_cues))
        self._time = 0
        return self._shown(), {}

    def step(self, action: Any) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        is_answer = self._time == self._question
        is_right = is_answer and int(action) == self._cue
        self._time += 1
        info = {"is_success": is_right} if is_answer else {}
        return self._shown(), float(is_right), is_answer, False, info

    def _shown(self) -> NDArray[np.float32]:
        shown = np.zeros(self.observation_space.shape or (), np.float32)
        if self._time == 0:
            shown[self._cue] = 1
        elif self._time == self._question:
            shown[-1] = 1
        return shown


__all__ = ["RecallEnvironment", "RecallTask"]
