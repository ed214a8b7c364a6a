"""Environments of other packages, as the table of `ropewalk.rl.environments.wrappers` says to make them."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest

from ropewalk import rl
from ropewalk.rl.environments.environment import VectorEnvironment
from ropewalk.rl.environments.serial import SerialVectorEnvironment
from ropewalk.rl.environments.vector import environment_spec

needs_minigrid = pytest.mark.skipif(
    importlib.util.find_spec("minigrid") is None, reason="needs the package minigrid: pip install 'ropewalk[examples]'"
)
needs_minatar = pytest.mark.skipif(
    importlib.util.find_spec("minatar") is None, reason="needs the package MinAtar, which is GPL: pip install MinAtar"
)


def memory_maze(seed: int) -> Any:
    from minigrid.wrappers import ImgObsWrapper

    return rl.Gymnasium("minigrid:MiniGrid-MemoryS7-v0", wrappers=(ImgObsWrapper,), max_episode_steps=20)(seed)


def breakout(seed: int) -> Any:
    from gymnasium.wrappers import TimeLimit
    from minatar.gym import BaseEnv  # pyright: ignore[reportMissingImports]

    del seed  # every reset is given one
    # An action is repeated by chance over the end of an episode, unless the game forgets it (sticky_action_prob > 0).
    return TimeLimit(BaseEnv("breakout", use_minimal_action_set=True, sticky_action_prob=0.0), 200)


FACTORIES = [
    pytest.param(memory_maze, rl.ArraySpec((7, 7, 3), "uint8", 0, 255), 7, marks=needs_minigrid),
    pytest.param(breakout, rl.ArraySpec((10, 10, 4), "bool", 0, 1), 3, marks=needs_minatar),
]


@pytest.mark.parametrize(("factory", "observation", "num_actions"), FACTORIES)
def test_its_spaces_are_understood_and_its_episodes_can_be_repeated(
    factory: Any, observation: rl.ArraySpec, num_actions: int
) -> None:
    spec = environment_spec(factory)
    assert (spec.observation, spec.action) == (observation, rl.DiscreteAction(num_actions))
    rng = np.random.default_rng(0)
    first = SerialVectorEnvironment(factory, 3, seed=1)
    first.reset()
    for _ in range(50):
        seen = first.step(rng.integers(0, num_actions, 3))
    second = SerialVectorEnvironment(factory, 3, seed=1)
    assert np.array_equal(second.resume(first.history()), seen.observation)  # type: ignore[arg-type]
    for _ in range(50):
        action = rng.integers(0, num_actions, 3)
        assert steps_listed(first, action) == steps_listed(second, action)
    first.close()
    second.close()


def steps_listed(envs: VectorEnvironment, action: Any) -> list[Any]:
    steps = envs.step(action)
    arrays = (steps.observation, steps.reward, steps.terminated, steps.truncated, steps.mask)
    return [np.asarray(array).tolist() for array in arrays]


@pytest.mark.parametrize(("factory", "observation", "num_actions"), FACTORIES)
def test_agents_learn_from_it_with_and_without_memory(factory: Any, observation: Any, num_actions: int) -> None:
    del observation, num_actions
    dqn = rl.DQN(unroll=8, envs=4, batch_size=16, learning_starts=64, samples_per_insert=2)
    r2d2 = rl.R2D2(
        unroll=8, envs=4, batch_size=4, burn_in=8, trace=8, period=8, learning_starts=8, samples_per_insert=1
    )
    for agent, network in ((dqn, rl.ImpalaCNN()), (r2d2, rl.LSTM(rl.MLP((16,)), 8))):
        result = rl.Experiment(agent, factory, network, steps=200, seed=2).run(log="silent")
        assert result.counters.updates > 0
        assert np.isfinite(float(result.timeline[-1]["loss"] or 0))
