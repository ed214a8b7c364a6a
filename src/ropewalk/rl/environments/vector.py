"""Vector environments from what a factory makes: single environments, or ones that are stepped together."""

from __future__ import annotations

import logging
from typing import Any, cast

import gymnasium
import gymnasium.vector

from ropewalk.rl.environments.environment import EnvironmentFactory, VectorEnvironment
from ropewalk.rl.environments.gymnasium_vector import GymnasiumVectorEnv, GymnasiumVectorEnvironment
from ropewalk.rl.environments.mistakes import check_spaces, told_of_statistics
from ropewalk.rl.environments.serial import EPISODES_OF_A_LIFE, SerialVectorEnvironment, environment_seed
from ropewalk.rl.environments.spaces import spec_of_spaces
from ropewalk.rl.environments.spec import EnvironmentSpec
from ropewalk.rl.seeds import derived_seed

logger = logging.getLogger(__name__)


def make_vector(
    factory: EnvironmentFactory,
    num_envs: int,
    seed: int,
    group: int = 0,
    *,
    life: int = 0,
    on_error: str | None = None,
    exact: bool = True,
    keeps_history: bool = True,
) -> VectorEnvironment:
    """Make the environments of one group.

    Args:
        factory: makes a `gymnasium.Env`, of which num_envs are made and stepped in sequence, or a
            `gymnasium.vector.VectorEnv` or a `VectorEnvironment` with num_envs environments.
        num_envs: how many environments there are to be.
        seed: seed of the run.
        group: which group of the run's environments this is.
        life: how many actors have had this group before; their episodes are not repeated.
        on_error: see `SerialVectorEnvironment`; None takes the factory's attribute `on_error`, or "raise" without one.
        exact: whether environments that are stepped together must be num_envs; otherwise their number is taken.
        keeps_history: see `SerialVectorEnvironment`.

    Raises:
        TypeError: the factory makes something else.
        ValueError: what it made has another number of environments, resets in another way, or has a space without a
            counterpart.
    """
    made = factory(environment_seed(seed, group, 0, life))
    if _is_single(made):
        return SerialVectorEnvironment(
            factory,
            num_envs,
            seed,
            group,
            life=life,
            on_error=on_error or getattr(factory, "on_error", "raise"),
            first=cast("gymnasium.Env[Any, Any]", made),
            keeps_history=keeps_history,
        )
    if isinstance(made, gymnasium.vector.VectorEnv):
        envs = cast(GymnasiumVectorEnv, made)
        first_seed = derived_seed(seed, "episode", group, 0, life * EPISODES_OF_A_LIFE)
        made = _closed_if_refused(envs, first_seed)
    if not isinstance(made, VectorEnvironment):
        raise _refusal(made)
    if exact and made.num_envs != num_envs:
        made.close()
        raise ValueError(
            f"the factory made a vector of {made.num_envs} environments, and {num_envs} are asked for; "
            "make both numbers equal"
        )
    return made


def environment_spec(factory: EnvironmentFactory, *, tells: bool = False) -> EnvironmentSpec:
    """Return what an environment shows and takes: one is made for it and closed.

    Args:
        factory: makes it.
        tells: whether to log what is likely to go wrong with it.

    Raises:
        TypeError: the factory makes no environment, or one without spaces.
        ValueError: a space has no counterpart, or a vector environment resets in another way than NEXT_STEP.
    """
    made = factory(0)
    if tells and (words := told_of_statistics(made)):
        logger.warning("%s", words)
    if _is_single(made):
        env = cast("gymnasium.Env[Any, Any]", made)
        try:
            check_spaces(env)
            return spec_of_spaces(env.observation_space, env.action_space)
        finally:
            env.close()
    if isinstance(made, gymnasium.vector.VectorEnv):
        made = _closed_if_refused(cast(GymnasiumVectorEnv, made), 0)
    if not isinstance(made, VectorEnvironment):
        raise _refusal(made)
    try:
        return made.spec
    finally:
        made.close()


def _is_single(made: object) -> bool:
    """Return whether this is one environment. EnvPool's vector environments are a `gymnasium.Env` too."""
    return isinstance(made, gymnasium.Env) and not isinstance(made, gymnasium.vector.VectorEnv)


def _closed_if_refused(envs: GymnasiumVectorEnv, seed: int) -> VectorEnvironment:
    try:
        return GymnasiumVectorEnvironment(envs, seed)
    except BaseException:
        envs.close()
        raise


def _refusal(made: object) -> TypeError:
    name = f"the class {made.__name__}" if isinstance(made, type) else type(made).__name__
    return TypeError(
        f"the factory made {name}; it takes a seed and returns a gymnasium.Env, a "
        "gymnasium.vector.VectorEnv, or a ropewalk.rl.VectorEnvironment, such as rl.Gymnasium('CartPole-v1') does"
    )


__all__ = ["environment_spec", "make_vector"]
