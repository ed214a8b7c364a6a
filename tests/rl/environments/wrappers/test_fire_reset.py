from __future__ import annotations

import pytest

from ropewalk.rl.environments.wrappers.fire_reset import FireReset
from tests.rl.environments.scripted import Scripted


class Game(Scripted):
    def get_action_meanings(self) -> list[str]:
        return ["NOOP", "LEFT", "FIRE"]


def test_fire_is_pressed_once_after_each_reset() -> None:
    game = Game("t3")
    env = FireReset(game)
    for episode in range(2):
        observation, _ = env.reset(seed=episode)
        assert observation.tolist() == [episode, 1]
        env.step(0)
    assert game.actions == [[2, 0], [2, 0]] and game.seeds == [0, 1]


def test_a_game_that_ends_with_fire_is_reset_again() -> None:
    game = Game("t1")
    assert FireReset(game).reset(seed=3)[0].tolist() == [1, 0]


def test_an_environment_without_fire_is_refused() -> None:
    with pytest.raises(ValueError, match="has no action FIRE, only actions without a meaning"):
        FireReset(Scripted("t1"))
