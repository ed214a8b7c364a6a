"""`Gymnasium`: environments of Gymnasium by their id."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import gymnasium
from gymnasium.envs.registration import EnvSpec

from ropewalk.argument_kinds import check_kind
from ropewalk.rl.environments.failures import check_on_error
from ropewalk.rl.environments.mistakes import checked_wrappers

GymnasiumEnv: TypeAlias = "gymnasium.Env[Any, Any]"
Wrap: TypeAlias = Callable[[GymnasiumEnv], GymnasiumEnv]
"""Wraps an environment: a class of `gymnasium.wrappers`, or `functools.partial` of one."""


@dataclass(frozen=True, slots=True, init=False)
class Gymnasium:
    """Makes a registered environment: a factory for experiments, which is compared, printed and pickled.

        Gymnasium("CartPole-v1")
        Gymnasium("ale_py:ALE/Pong-v5", frameskip=1, wrappers=(AtariPreprocessing, partial(FrameStackObservation, ...)))

    The wrapper of `gymnasium.make` that checks the environment is left out, because it costs time in each step;
    `disable_env_checker=False` brings it back.

    Args:
        id: the registered id; "module:id" imports the module that registers it.
        wrappers: applied in this order, each around those before it; defined in a module, so that they can be pickled.
        on_error: what happens to an episode whose environment raises: "raise", or "truncate" to cut the episode, log
            the traceback and make the environment again.
        kwargs: for `gymnasium.make`: `max_episode_steps`, and arguments of the environment.

    Raises:
        TypeError: the id is no text, or the wrappers are no sequence of what is called with an environment alone.
        ValueError: `on_error` is something else.
    """

    id: str
    wrappers: tuple[Wrap, ...]
    on_error: str
    kwargs: Mapping[str, Any]

    def __init__(self, id: str, *, wrappers: tuple[Wrap, ...] = (), on_error: str = "raise", **kwargs: Any) -> None:
        check_kind(
            "id", id, str | EnvSpec, "the id of a registered environment; for one that is not, `lambda seed: ...`"
        )
        check_on_error(on_error)
        object.__setattr__(self, "id", id)
        object.__setattr__(self, "wrappers", checked_wrappers(wrappers))
        object.__setattr__(self, "on_error", on_error)
        object.__setattr__(self, "kwargs", kwargs)

    def __call__(self, seed: int) -> GymnasiumEnv:
        """Make one environment; `seed` is not used, because every `reset` is given one."""
        del seed
        env: GymnasiumEnv = gymnasium.make(self.id, **{"disable_env_checker": True, **self.kwargs})
        for wrap in self.wrappers:
            env = wrap(env)
        return env


__all__ = ["Gymnasium", "GymnasiumEnv", "Wrap"]
