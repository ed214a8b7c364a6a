"""`FireReset`: presses FIRE after each reset of an Atari game, as in Mnih et al. 2015 and the OpenAI baselines."""

from __future__ import annotations

from typing import Any

import gymnasium

from ropewalk.rl.environments.gymnasium_env import GymnasiumEnv


class FireReset(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Presses FIRE once after each reset; games such as Breakout wait for it before they begin.

    Args:
        env: an Atari game, or a wrapper around it.

    Raises:
        ValueError: the game has no FIRE.
    """

    def __init__(self, env: GymnasiumEnv) -> None:
        super().__init__(env)
        game: Any = env.unwrapped
        meanings: list[str] = game.get_action_meanings() if hasattr(game, "get_action_meanings") else []
        if "FIRE" not in meanings:
            raise ValueError(
                f"{game} has no action FIRE, only {', '.join(meanings) or 'actions without a meaning'}; "
                "it needs no FireReset"
            )
        self._fire = meanings.index("FIRE")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.env.reset(seed=seed, options=options)
        observation, _, terminated, truncated, info = self.env.step(self._fire)
        if terminated or truncated:
            return self.env.reset(options=options)
        return observation, info


__all__ = ["FireReset"]
