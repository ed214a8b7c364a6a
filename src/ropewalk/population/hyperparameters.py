"""Distributions of hyperparameters: how values are drawn, and how a value is perturbed.

Any object with `draw` and `perturb` can be used like these; a plain value in a space is a constant.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np

Space = Mapping[str, Any]
"""Maps names of hyperparameters to their distributions; plain values are constants."""


@runtime_checkable
class Distribution(Protocol):
    """The distribution of one hyperparameter."""

    def draw(self, rng: np.random.Generator) -> Any:
        """Draw a value: a number, a string, a boolean or None."""
        ...

    def perturb(self, value: Any, factor: float) -> Any:
        """Return a neighbour of `value`: above it if `factor` is above 1, and below it if `factor` is below 1.

        Args:
            value: a value that `draw` or `perturb` returned.
            factor: a positive factor.
        """
        ...


@dataclass(frozen=True)
class Uniform:
    """A number between two bounds, uniformly distributed."""

    low: float
    high: float

    def __post_init__(self) -> None:
        _check(self.low, self.high)

    def draw(self, rng: np.random.Generator) -> float:
        return float(rng.uniform(self.low, self.high))

    def perturb(self, value: float, factor: float) -> float:
        return min(max(value * factor, self.low), self.high)


@dataclass(frozen=True)
class LogUniform:
    """A positive number between two bounds whose logarithm is uniformly distributed: learning rates, weight decay."""

    low: float
    high: float

    def __post_init__(self) -> None:
        _check(self.low, self.high)
        if self.low <= 0:
            raise ValueError(f"low of LogUniform must be above 0, not {self.low}; Uniform takes any number")

    def draw(self, rng: np.random.Generator) -> float:
        return self.perturb(math.exp(rng.uniform(math.log(self.low), math.log(self.high))), 1.0)

    def perturb(self, value: float, factor: float) -> float:
        return min(max(value * factor, self.low), self.high)


@dataclass(frozen=True)
class Integers:
    """An integer between two bounds, both inclusive."""

    low: int
    high: int

    def __post_init__(self) -> None:
        _check(self.low, self.high)

    def draw(self, rng: np.random.Generator) -> int:
        return int(rng.integers(self.low, self.high, endpoint=True))

    def perturb(self, value: int, factor: float) -> int:
        moved = round(value * factor)
        if factor > 1:
            moved = max(moved, value + 1)  # 1 * 1.2 would be rounded to 1 for ever
        elif factor < 1:
            moved = min(moved, value - 1)
        return min(max(moved, self.low), self.high)


@dataclass(frozen=True)
class Choice:
    """One of several values; the neighbours of a value are those next to it, so list ordered values in their order."""

    values: Sequence[Any]

    def __post_init__(self) -> None:
        if not self.values:
            raise ValueError("Choice needs at least one value")
        for value in self.values:
            plain(value, "a value of Choice")

    def draw(self, rng: np.random.Generator) -> Any:
        return self.values[int(rng.integers(len(self.values)))]

    def perturb(self, value: Any, factor: float) -> Any:
        at = list(self.values).index(value) + (factor > 1) - (factor < 1)
        return self.values[min(max(at, 0), len(self.values) - 1)]


def draw_all(space: Space, rng: np.random.Generator) -> dict[str, Any]:
    """Draw a value for each name."""
    return {name: plain(_draw(each, rng), name) for name, each in space.items()}


def perturb_or_resample(
    space: Space, values: Mapping[str, Any], rng: np.random.Generator, resample: float, factors: Sequence[float]
) -> dict[str, Any]:
    """Draw each value anew with probability `resample`, and otherwise perturb it by one of `factors`.

    Args:
        space: distributions by name.
        values: current values by name.
        rng: source of random numbers.
        resample: probability of a new draw, from 0 to 1.
        factors: factors of which one is chosen with equal probability for each perturbed value.

    Returns:
        The new values by name.
    """
    explored: dict[str, Any] = {}
    for name, each in space.items():
        is_drawn, factor = rng.random() < resample, factors[int(rng.integers(len(factors)))]
        if not isinstance(each, Distribution):
            explored[name] = values[name]
        else:
            explored[name] = plain(each.draw(rng) if is_drawn else each.perturb(values[name], factor), name)
    return explored


def plain(value: Any, name: str) -> Any:
    """Convert a value to a plain type that checkpoints and logs can hold.

    Args:
        value: a number, string, boolean or None, possibly of a NumPy type.
        name: name of the hyperparameter, for the error.

    Raises:
        TypeError: the value has another type.
    """
    if isinstance(value, np.generic):
        value = cast(Any, value).item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, numbers.Real):
        return float(value)
    raise TypeError(
        f"{name} is {value!r:.60} of type {type(value).__name__}; hyperparameters are numbers, strings, booleans or "
        "None: choose by a name, and let the training function look it up"
    )


def _draw(each: Any, rng: np.random.Generator) -> Any:
    return each.draw(rng) if isinstance(each, Distribution) else each


def _check(low: float, high: float) -> None:
    if not -math.inf < low <= high < math.inf:
        raise ValueError(f"low must be at most high, and both finite, not low={low} and high={high}")
