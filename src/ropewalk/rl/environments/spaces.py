"""Spaces of Gymnasium as an `EnvironmentSpec`, and the values that pass between the two.

| space | observation | action |
|---|---|---|
| Box | one array; float64 becomes float32 | bounded, of floating point: `ContinuousAction`, flat |
| Discrete | int64 scalar | `DiscreteAction`, numbered from 0 whatever the space's `start` is |
| MultiDiscrete, MultiBinary | int64 array | `MultiDiscreteAction`, each numbered from 0 |
| Dict of the above | one array for each name | refused |
| others | refused | refused |
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from ropewalk.rl.environments.spec import (
    ActionSpec,
    ArraySpec,
    ContinuousAction,
    DiscreteAction,
    EnvironmentSpec,
    MultiDiscreteAction,
)

AnySpace: TypeAlias = Any
"""A space of Gymnasium, whose own types leave the dtypes of its arrays open."""

ActionEncoder: TypeAlias = Callable[[NDArray[Any]], Any]
"""Turns actions of shape (num_envs, ...), as stored, into one action of the space for each environment."""


def spec_of_spaces(observation: AnySpace, action: AnySpace) -> EnvironmentSpec:
    """Return the spec of an environment with these spaces.

    Raises:
        ValueError: a space has no counterpart; the message names a wrapper that helps.
    """
    if is_a(observation, spaces.Dict):
        if not observation.spaces:
            raise ValueError("the observation space is a Dict without entries; an observation has at least one array")
        entries = {name: _observation_spec(space, name) for name, space in observation.spaces.items()}
        return EnvironmentSpec(entries, _action_spec(action))
    return EnvironmentSpec(_observation_spec(observation, None), _action_spec(action))


def is_a(space: AnySpace, *kinds: type) -> bool:
    """Return whether a space is of one of these kinds.

    Unlike `isinstance`, it does not narrow the type of `space`, to one whose arrays are of unknown dtypes.
    """
    return isinstance(space, kinds)


def _observation_spec(space: AnySpace, name: str | None) -> ArraySpec:
    if is_a(space, spaces.Box):
        dtype = "float32" if space.dtype == np.float64 else str(space.dtype)
        return ArraySpec(space.shape, dtype, _shared(space.low, -np.inf), _shared(space.high, np.inf))
    if is_a(space, spaces.Discrete):
        return ArraySpec((), "int64", int(space.start), int(space.start + space.n - 1))
    if is_a(space, spaces.MultiDiscrete):
        high = space.start + space.nvec - 1
        return ArraySpec(space.shape, "int64", _shared(space.start, -np.inf), _shared(high, np.inf))
    if is_a(space, spaces.MultiBinary):
        return ArraySpec(space.shape, "int64", 0, 1)
    what = "the observation space" if name is None else f"entry {name!r} of the observation space"
    raise ValueError(
        f"{what} is {space}; observations are a Box, Discrete, MultiDiscrete, MultiBinary, or a Dict of those: "
        "gymnasium.wrappers.FlattenObservation makes one array of nested spaces, "
        "gymnasium.wrappers.TransformObservation makes what you tell it"
    )


def _shared(bounds: NDArray[Any], otherwise: float) -> float:
    """Return the bound that all entries share, or `otherwise`."""
    if bounds.size and (bounds == bounds.flat[0]).all():
        return float(bounds.flat[0])
    return otherwise


def _action_spec(space: AnySpace) -> ActionSpec:
    if 0 in (getattr(space, "shape", None) or ()):
        raise ValueError(f"the action space is {space}, an array without entries; an action has at least one")
    if is_a(space, spaces.Discrete):
        return DiscreteAction(int(space.n))
    if is_a(space, spaces.MultiDiscrete):
        return MultiDiscreteAction(tuple(space.nvec.ravel().tolist()))
    if is_a(space, spaces.MultiBinary):
        return MultiDiscreteAction((2,) * math.prod(space.shape))
    if is_a(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
        if not (np.isfinite(space.low).all() and np.isfinite(space.high).all()):
            raise ValueError(
                f"the action space is {space}, without finite bounds; "
                "gymnasium.wrappers.TransformAction gives it a Box with bounds, such as Box(-1, 1)"
            )
        return ContinuousAction(tuple(map(float, space.low.ravel())), tuple(map(float, space.high.ravel())))
    raise ValueError(
        f"the action space is {space}; actions are Discrete, MultiDiscrete, MultiBinary, or a bounded Box of floating "
        "point: gymnasium.wrappers.TransformAction makes one of them of others"
    )


def action_encoder(space: AnySpace) -> ActionEncoder:
    """Return what turns stored actions into those of single environments: continuous ones are clipped to their bounds.

    Discrete actions become Python's integers, which environments test faster than numpy's.
    """
    if is_a(space, spaces.Discrete):
        start = int(space.start)
        return (lambda action: action.tolist()) if start == 0 else (lambda action: np.add(action, start).tolist())
    batch = batched_action_encoder(space)
    return lambda action: list(batch(action))


def batched_action_encoder(space: AnySpace) -> ActionEncoder:
    """Return what turns stored actions into one array for a vector environment whose single action space this is."""
    shape, dtype = space.shape or (), space.dtype
    if is_a(space, spaces.Box):
        low, high = space.low.ravel(), space.high.ravel()
        return lambda action: np.clip(action, low, high).astype(dtype).reshape(-1, *shape)
    if is_a(space, spaces.MultiBinary):
        return lambda action: action.astype(dtype).reshape(-1, *shape)
    start: Any = space.start if is_a(space, spaces.Discrete, spaces.MultiDiscrete) else 0
    if not np.any(start) and len(shape) < 2:
        return lambda action: action if action.dtype == dtype else action.astype(dtype)
    return lambda action: (action.reshape(-1, *shape) + start).astype(dtype)


__all__ = ["ActionEncoder", "AnySpace", "action_encoder", "batched_action_encoder", "is_a", "spec_of_spaces"]
