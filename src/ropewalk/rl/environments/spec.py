"""What an environment shows and what it takes: names, shapes, dtypes and bounds of observations and actions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

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
]
