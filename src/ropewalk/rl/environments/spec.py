"""What an environment shows and what it takes: names, shapes, dtypes and bounds of observations and actions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ropewalk.quantities import counted

Array: TypeAlias = NDArray[np.generic]
Observation: TypeAlias = "Array | dict[str, Array]"
"""One array, or several by name, as a `gymnasium.spaces.Dict` has them; the leading axes are those of the holder."""


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """An array without its leading axes.

    Args:
        shape: its shape, for one environment and one step.
        dtype: name of its dtype, such as "float32".
        low: the least value, where all entries share one; -inf if unbounded.
        high: the largest value; inf if unbounded.
    """

    shape: tuple[int, ...]
    dtype: str = "float32"
    low: float = -np.inf
    high: float = np.inf


@dataclass(frozen=True, slots=True)
class DiscreteAction:
    """A choice among `num` actions, numbered from 0: an int64 scalar per environment."""

    num: int


@dataclass(frozen=True, slots=True)
class MultiDiscreteAction:
    """Several choices at once: int64, shape (len(nums),)."""

    nums: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ContinuousAction:
    """A vector of bounded numbers: float32, shape (len(low),).

    Args:
        low: the least value of each entry.
        high: the largest value of each entry.
    """

    low: tuple[float, ...]
    high: tuple[float, ...]


ActionSpec: TypeAlias = "DiscreteAction | MultiDiscreteAction | ContinuousAction"


@dataclass(frozen=True, slots=True)
class EnvironmentSpec:
    """Observations and actions of one environment.

    Args:
        observation: one spec, or several by name for observations that are dictionaries.
        action: the kind of actions.
    """

    observation: ArraySpec | Mapping[str, ArraySpec]
    action: ActionSpec

    @property
    def observation_columns(self) -> dict[str, ArraySpec]:
        """The observation as flat columns: "observation", or "observation.<name>" for each entry of a dictionary."""
        if isinstance(self.observation, ArraySpec):
            return {"observation": self.observation}
        return {f"observation.{name}": spec for name, spec in self.observation.items()}

    @property
    def action_array(self) -> ArraySpec:
        """Shape and dtype of an action."""
        match self.action:
            case DiscreteAction(num):
                return ArraySpec((), "int64", 0, num - 1)
            case MultiDiscreteAction(nums):
                return ArraySpec((len(nums),), "int64", 0, max(nums) - 1)
            case ContinuousAction(low, high):
                return ArraySpec((len(low),), "float32", min(low), max(high))


def spec_in_words(spec: EnvironmentSpec) -> str:
    """Return a spec in words, without bounds: what has to be equal for a policy to act in both environments.

    Example:
        >>> spec_in_words(EnvironmentSpec(ArraySpec((4,)), DiscreteAction(2)))
        'observation (4,), action one of 2'
    """
    observation = ", ".join(f"{name} {array.shape}" for name, array in spec.observation_columns.items())
    match spec.action:
        case DiscreteAction(num):
            action = f"one of {num}"
        case MultiDiscreteAction(nums):
            action = f"one each of {', '.join(map(str, nums))}"
        case ContinuousAction(low):
            action = counted(len(low), "number")
    return f"{observation}, action {action}"


def observation_columns(observation: Observation) -> dict[str, Array]:
    """Return an observation as flat columns, named as in `EnvironmentSpec.observation_columns`."""
    if isinstance(observation, dict):
        return {f"observation.{name}": array for name, array in observation.items()}
    return {"observation": observation}


def observation_of(columns: Mapping[str, Array], prefix: str = "observation") -> Observation:
    """Return the observation that is stored in flat columns: the reverse of `observation_columns`."""
    if prefix in columns:
        return columns[prefix]
    start = f"{prefix}."
    return {name.removeprefix(start): array for name, array in columns.items() if name.startswith(start)}


__all__ = [
    "ActionSpec",
    "Array",
    "ArraySpec",
    "ContinuousAction",
    "DiscreteAction",
    "EnvironmentSpec",
    "MultiDiscreteAction",
    "Observation",
    "observation_columns",
    "observation_of",
    "spec_in_words",
]
