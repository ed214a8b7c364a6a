from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from ropewalk.rl.environments.gymnasium_env import Gymnasium
from ropewalk.rl.environments.serial import SerialVectorEnvironment
from ropewalk.rl.environments.spec import ArraySpec
from ropewalk.rl.environments.wrappers.observation_action_reward import ObservationActionReward
from tests.rl.environments.scripted import Scripted


class Acts(Scripted):
    def __init__(self, action_space: Any) -> None:
        super().__init__("t3")
        self.action_space = action_space


@pytest.mark.parametrize(
    ("space", "action", "shown"),
    [
        (spaces.Discrete(3), 1, [0, 1, 0]),
        (spaces.Discrete(3, start=-1), 1, [0, 0, 1]),
        (spaces.MultiDiscrete([2, 3]), np.array([1, 2]), [0, 1, 0, 0, 1]),
        (spaces.MultiDiscrete([2, 3], start=[5, 1]), np.array([5, 2]), [1, 0, 0, 1, 0]),
        (spaces.MultiBinary(2), np.array([0, 1]), [1, 0, 0, 1]),
        (spaces.Box(-2, 2, (2,), np.float32), np.array([0.5, -2], np.float32), [0.5, -2]),
    ],
    ids=str,
)
def test_the_last_action_is_shown(space: Any, action: Any, shown: list[float]) -> None:
    env = ObservationActionReward(Acts(space))
    first, _ = env.reset(seed=0)
    assert env.observation_space.contains(first)
    assert first["last_action"].tolist() == [0] * len(shown) and first["last_reward"].tolist() == [0]
    second, *_ = env.step(action)
    assert env.observation_space.contains(second)
    assert second["last_action"].tolist() == shown and second["last_reward"].tolist() == [1]
    third, *_ = env.step(action)
    assert third["last_reward"].tolist() == [2] and third["observation"].tolist() == [0, 2]
    assert env.reset(seed=0)[0]["last_reward"].tolist() == [0], "an episode began with the reward of another"


def test_what_is_zero_before_the_first_action_is_within_the_bounds() -> None:
    env = ObservationActionReward(Acts(spaces.Box(1, 3, (2,), np.float32)))
    assert env.reset(seed=0)[0]["last_action"].tolist() == [1, 1]


def test_it_is_a_wrapper_of_settings() -> None:
    factory = Gymnasium("CartPole-v1", wrappers=(ObservationActionReward,))
    envs = SerialVectorEnvironment(factory, 2, seed=0)
    assert envs.spec.observation_columns == {
        "observation.last_action": ArraySpec((2,), "float32", 0, 1),
        "observation.last_reward": ArraySpec((1,)),
        "observation.observation": ArraySpec((4,)),
    }
    envs.reset()
    observation = envs.step(np.array([1, 0])).observation
    assert isinstance(observation, dict)
    assert observation["last_action"].tolist() == [[0, 1], [1, 0]] and observation["last_reward"].tolist() == [[1], [1]]


def test_entries_of_a_dictionary_stay_and_a_second_wrapper_is_refused() -> None:
    class Shows(Acts):
        observation_space = spaces.Dict({"image": spaces.Box(0, 1, (2,), np.float32)})

        def reset(self, **arguments: Any) -> tuple[Any, dict[str, Any]]:
            return {"image": super().reset(**arguments)[0]}, {}

    once: gymnasium.Env[Any, Any] = ObservationActionReward(Shows(spaces.Discrete(2)))
    assert sorted(once.reset(seed=0)[0]) == ["image", "last_action", "last_reward"]
    with pytest.raises(ValueError, match="has last_action, last_reward already; is it wrapped twice"):
        ObservationActionReward(once)


def test_other_actions_are_refused() -> None:
    with pytest.raises(ValueError, match="the action space is Tuple"):
        ObservationActionReward(Acts(spaces.Tuple([spaces.Discrete(2)])))
