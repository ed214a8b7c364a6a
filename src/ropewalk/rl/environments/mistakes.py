"""Common mistakes in environments, and what to do about each."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import gymnasium
import gymnasium.wrappers
import gymnasium.wrappers.vector

from ropewalk.rl.environments.environment import EnvironmentFactory

_GYMNASIUM = os.path.dirname(gymnasium.__file__)
_CALLERS = os.path.join(_GYMNASIUM, "wrappers", ""), os.path.join(_GYMNASIUM, "core.py")
"""Files of Gymnasium that call methods of environments."""
_OF_STATISTICS = (
    gymnasium.wrappers.NormalizeObservation,
    gymnasium.wrappers.NormalizeReward,
    gymnasium.wrappers.vector.NormalizeObservation,
    gymnasium.wrappers.vector.NormalizeReward,
)


def check_takes_a_seed(environment: EnvironmentFactory) -> None:
    """Check that what makes environments can be called with a seed.

    Raises:
        TypeError: it cannot be called, or takes no argument; or its first argument is something else, which would
            silently get the seed: of a class of environments, or an argument with a default.
    """
    if not callable(environment):
        raise TypeError(
            "environment makes an environment from a seed: rl.Gymnasium('CartPole-v1'), or a function such as "
            f"`lambda seed: MyEnv()`; it is {environment!r}"
        )
    try:
        signature = inspect.signature(environment)
    except (TypeError, ValueError):  # of C code, which says nothing of its arguments
        return
    called = environment.func if isinstance(environment, functools.partial) else environment
    name = getattr(called, "__name__", repr(called))
    try:
        bound = signature.bind(0)
    except TypeError:
        example = "a parameter: `lambda seed: ...`" if name == "<lambda>" else f"the form `lambda seed: {name}(...)`"
        raise TypeError(
            f"environment is called with a seed, and {name}{signature} cannot be called with one argument; "
            f"give it {example}"
        ) from None
    first = next(iter(bound.arguments), "seed")
    has_default = first in signature.parameters and signature.parameters[first].default is not inspect.Parameter.empty
    if inspect.isclass(called) and issubclass(called, gymnasium.Env) and first != "seed":
        arguments = "" if has_default and called is environment else "..."
        raise TypeError(
            f"environment is the class {name}, which would get a seed as its argument {first!r}; "
            f"pass `lambda seed: {name}({arguments})`"
        )
    if has_default and "seed" not in first.lower() and not first.startswith("_"):
        raise TypeError(
            f"environment is called with a seed, which {name}{signature} would take for its argument {first!r}; "
            f"pass `lambda seed: {'...' if name == '<lambda>' else f'{name}(...)'}`, or call the argument seed"
        )


def checked_wrappers(wrappers: Any) -> tuple[Any, ...]:
    """Return wrappers of environments as a tuple.

    Raises:
        TypeError: they are no sequence, or one of them cannot be called with an environment alone.
    """
    time_limit = "functools.partial(gymnasium.wrappers.TimeLimit, max_episode_steps=500)"
    example = f"(gymnasium.wrappers.FlattenObservation, {time_limit})"
    if callable(wrappers) or isinstance(wrappers, str) or not isinstance(wrappers, Iterable):
        raise TypeError(f"wrappers is {wrappers!r}; give a tuple, such as {example}")
    several = tuple(cast("Iterable[Any]", wrappers))
    for wrap in several:
        if not callable(wrap):
            raise TypeError(f"{wrap!r} among the wrappers cannot be called with an environment; give {example}")
        try:
            inspect.signature(wrap).bind(object())
        except ValueError:  # of C code, which says nothing of its arguments
            continue
        except TypeError as error:
            name = getattr(wrap, "__name__", repr(wrap))
            raise TypeError(
                f"{name} among the wrappers is called with an environment alone ({error}); give its other arguments "
                f"by functools.partial({name}, ...)"
            ) from None
    return several


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


def told_of_statistics(env: Any) -> str:
    """Say what goes wrong with a wrapper that normalises by what its one environment has shown; "": there is none."""
    while env is not None:
        name = type(env).__name__
        if isinstance(env, _OF_STATISTICS):
            return (
                f"{name} normalises by statistics of its own environment: each of the others has other "
                "ones, evaluations and saved policies begin without any, and so do environments that are restored. "
                "Leave it out; normalise_observations=True and normalise_rewards=True of PPO, A2C, IMPALA and APPO "
                "keep them with the weights, and RescaleObservation needs none"
            )
        env = getattr(env, "env", None)
    return ""


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


def shown_by_reset(returned: Any) -> Any:
    """Return the observation of what a reset returned.

    Raises:
        TypeError: it returned something else than an observation and a dictionary: an observation of two numbers, say,
            which looks like two values.
    """
    if isinstance(returned, tuple | list):
        values = cast("Sequence[Any]", returned)
        if len(values) == 2 and (values[1] is None or isinstance(values[1], Mapping)):
            return values[0]
    raise TypeError(
        "reset(self, *, seed=None, options=None) returns (observation, info), of which info is a dictionary, but it "
        f"returned {returned!r:.200}. Before Gym 0.26 it returned the observation alone: change it, or wrap it with "
        "shimmy.GymV21CompatibilityV0"
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
        file: the file that made the call. Only errors raised there, or by a wrapper of Gymnasium in between, are about
            the call and what it returned.
    """
    innermost = inspect.getinnerframes(error.__traceback__, context=0)[-1].filename if error.__traceback__ else ""
    is_about_call = innermost == file or innermost.startswith(_CALLERS)
    is_about_form = isinstance(error, TypeError) and "argument" in str(error)
    if not is_about_call or not (is_about_form or "unpack" in str(error)):
        return ""
    return (
        "an environment of Gymnasium has reset(self, *, seed=None, options=None), which returns (observation, info), "
        "and step(self, action), which returns (observation, reward, terminated, truncated, info). This one seems to "
        "be written for Gym before 0.26: change it, or wrap it with shimmy.GymV21CompatibilityV0"
    )


__all__ = [
    "advice",
    "check_are_distinct",
    "check_spaces",
    "check_takes_a_seed",
    "checked_wrappers",
    "shown_by_reset",
    "step_mistake",
    "told_of_statistics",
]
