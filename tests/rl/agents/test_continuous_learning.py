"""SAC and TD3 learn, in `soak`: a small problem in seconds, Pendulum for as long as the paper's curves begin."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest

from ropewalk import rl
from ropewalk.rl.agents.continuous import ContinuousAgent
from ropewalk.rl.learners.optimizers import TorchAdam

FAST = TorchAdam(3e-3)
SMALL: list[ContinuousAgent] = [
    rl.SAC(optimizer=FAST, batch_size=64, learning_starts=64, discount=0.9, tau=0.02),
    rl.TD3(optimizer=FAST, batch_size=64, learning_starts=64, discount=0.9, tau=0.02),
]


class Reach(gymnasium.Env[np.ndarray, np.ndarray]):
    """A point on a line that is to be brought to a goal, by steps of at most 0.3; asymmetric bounds of actions."""

    observation_space = gymnasium.spaces.Box(-2, 2, (2,), np.float32)
    action_space = gymnasium.spaces.Box(0, 10, (1,), np.float32)
    STEPS = 10

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, Any]:
        super().reset(seed=seed)
        self.place, self.goal = self.np_random.uniform(-1, 1, 2)
        self.steps = 0
        return self._show(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, Any]:
        assert self.action_space.contains(action)
        self.place += 0.3 * (action.item() - 5) / 5
        self.steps += 1
        return self._show(), -abs(self.place - self.goal), False, self.steps == self.STEPS, {}

    def _show(self) -> np.ndarray:
        return np.array([self.place, self.goal], np.float32).clip(-2, 2)


@pytest.mark.soak
@pytest.mark.parametrize("agent", SMALL, ids=lambda agent: type(agent).__name__)
def test_a_small_problem_is_learned(agent: ContinuousAgent) -> None:
    experiment = rl.Experiment(agent, lambda _: Reach(), rl.MLP((32, 32), "relu"), steps=800, seed=1)
    scores = experiment.run(log="silent").evaluate(20)
    # The best policy has -0.8 over many episodes, an action of 5 (staying) -6.4, random actions -7.1.
    assert np.mean(scores) > -1.5


def test_the_small_problem_is_not_solved_without_learning() -> None:
    never = rl.TD3(learning_starts=10_000)
    experiment = rl.Experiment(never, lambda _: Reach(), rl.MLP((32, 32), "relu"), steps=100, seed=1)
    result = experiment.run(log="silent")
    assert result.counters.updates == 0 and np.mean(result.evaluate(20)) < -4
