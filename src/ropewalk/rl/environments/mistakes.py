"""Common mistakes in environments, and what to do about each."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import gymnasium

from ropewalk.rl.environments.environment import EnvironmentFactory


def check_takes_a_seed(environment: EnvironmentFactory) -> None:
    """Check that what makes environments can be called with a seed.

    Raises:
        TypeError: it takes no argument; or it is a class of environments whose first argument is something else, which
            would silently get the seed.
    """
    try:
        signature = inspect.signature(environment)
    except (TypeError, ValueError):  # of C code, which says nothing of its arguments
        return
    name = getattr(environment, "__name__", repr(environment))
    try:
        bound = signature.bind(0)
    except TypeError:
        example = "a parameter: `lambda seed: ...`" if name == "<lambda>" else f"the form `lambda seed: {name}(...)`"
        raise TypeError(
            f"environment is called with a seed, and {name}{signature} cannot be called with one argument; "
            f"give it {example}"
        ) from None
    first = next(iter(bound.arguments), "seed")
    if inspect.isclass(environment) and issubclass(environment, gymnasium.Env) and first != "seed":
        raise TypeError(
            f"environment is the class {name}, which would get a seed as its argument {first!r}; "
            f"pass `lambda seed: {name}()`"
        )


def check_spaces(env: Any) -> None:
    """Check that an environment says what it shows and takes.

    Raises:
        TypeError: it does not.
    """
    missing = [name for name in ("observation_space", "action_space") if getattr(env, name, None) is None]
    if missing:
        raise TypeError(
            f"{type(env).__name__} has no {' and no '.join(missing)}; set both in its __init__, such as "
            "self.observation_space = gymnasium.spaces.Box(-1, 1, (3,), np.float32) and "
            "self.action_space = gymnasium.spaces.Discrete(2)"
        )


def check_are_distinct(envs: Sequence[Any]) -> None:
    """Check that no environment is there twice, even in two wrappers: a step of one would be a step of the other.

    Raises:
        ValueError: one is.
    """
    places: dict[int, int] = {}
    for place, env in enumerate(envs):
        inner = env.unwrapped
        before = places.setdefault(id(inner), place)
        if before != place:
            name = type(inner).__name__
            raise ValueError(
                f"environments {before} and {place} of {len(envs)} are the same {name}: a step of one would be a step "
                f"of the other; make a new one in each call, such as `lambda seed: {name}(...)`, or set envs=1"
            )


def step_mistake(reward: Any, terminated: Any, truncated: Any, info: Any) -> TypeError:
    """Return the error for what a step returned if these are not of the kinds that they have to be."""
    return TypeError(
        "step returns (observation, reward, terminated, truncated, info): one number, two bools and a dictionary after "
        f"the observation, but it returned reward={reward!r:.100}, terminated={terminated!r:.100}, "
        f"truncated={truncated!r:.100}, info={info!r:.100}"
    )


def advice(error: Exception, file: str) -> str:
    """Return what to do about an environment with the interface of Gym before 0.26; "" for other errors.

    Args:
        error: what a call of its `reset` or `step` raised.
        file: the file that made the call: only errors raised there are about the call and what it returned.
    """
    innermost = inspect.getinnerframes(error.__traceback__, context=0)[-1] if error.__traceback__ else None
    is_ours = innermost is not None and innermost.filename == file
    is_about_form = isinstance(error, TypeError) and "argument" in str(error)
    if not is_ours or not (is_about_form or "to unpack" in str(error)):
        return ""
    return (
        "an environment of Gymnasium has reset(self, *, seed=None, options=None), which returns (observation, info), "
        "and step(self, action), which returns (observation, reward, terminated, truncated, info). This one seems to "
        "be written for Gym before 0.26: change it, or wrap it with shimmy.GymV21CompatibilityV0"
    )


__all__ = ["advice", "check_are_distinct", "check_spaces", "check_takes_a_seed", "step_mistake"]
