"""The process of an isolated environment: it takes requests from a pipe, one after the other.

IsolatedEnvironment               this process
  |◀── EnvironmentDone(spaces) ─────|  factory(seed)
  |── EnvironmentRequest("step") ──▶|  env.step
  |◀── EnvironmentDone(result) ─────|  or EnvironmentRaised
  |── the end of the pipe ─────────▶|  env.close
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import cloudpickle

from ropewalk.errors import RemoteError
from ropewalk.rl.environments.gymnasium_env import GymnasiumEnv
from ropewalk.sharing.connections import Connection

_cloudpickle: Any = cloudpickle  # untyped


@dataclass(frozen=True, slots=True)
class EnvironmentRequest:
    """A method of the environment to call.

    Attributes:
        method: its name.
        arguments: by place, as Gymnasium passes an action: environments call it what they like.
        named: keyword arguments.
    """

    method: str
    arguments: tuple[Any, ...] = ()
    named: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class EnvironmentDone:
    """What the method returned; first of all, the two spaces."""

    result: Any


@dataclass(frozen=True, slots=True)
class EnvironmentRaised:
    """What the method raised.

    Attributes:
        error: the exception.
        traceback: its traceback, as text.
    """

    error: Exception
    traceback: str


def serve_environment(connection: Connection, factory: Callable[[int], GymnasiumEnv], seed: int) -> None:
    """Make an environment, send its spaces, and then do what is asked until the pipe is closed."""
    try:
        env = factory(seed)
        spaces = env.observation_space, env.action_space
    except Exception as error:
        connection.send(_raised(error))
        return
    connection.send(EnvironmentDone(spaces))
    while True:
        try:
            request: EnvironmentRequest = connection.recv()
        except EOFError:
            break
        connection.send(_answer(env, request))
    env.close()


def _answer(env: GymnasiumEnv, request: EnvironmentRequest) -> EnvironmentDone | EnvironmentRaised:
    try:
        return EnvironmentDone(getattr(env, request.method)(*request.arguments, **request.named))
    except Exception as error:
        return _raised(error)


def _raised(error: Exception) -> EnvironmentRaised:
    """Return an error in a form that survives the way: some exceptions cannot be unpickled."""
    text = traceback.format_exc()
    try:
        _cloudpickle.loads(_cloudpickle.dumps(error))  # our own bytes
    except Exception:
        kind = f"{type(error).__module__}.{type(error).__qualname__}"
        error = RemoteError(f"{kind}: {error}", type_name=kind)
    return EnvironmentRaised(error, text)


__all__ = ["EnvironmentDone", "EnvironmentRaised", "EnvironmentRequest", "serve_environment"]
