"""Distributions of hyperparameters: how values are drawn, and how a value is perturbed.

Any object with `draw` and `perturb` can be used like these; a plain value in a space is a constant.
"""

from __future__ import annotations

import decimal
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
    """A number between two bounds, uniformly distributed.

    Attributes:
        low: lower bound, inclusive.
        high: upper bound, inclusive.
        step: distance between neighbouring values, counted from `low`; None: any number between the bounds.
    """

    low: float
    high: float
    step: float | None = None

    def __post_init__(self) -> None:
        _check(self.low, self.high)
        if self.step is not None and not 0 < self.step < math.inf:
            raise ValueError(f"step of Uniform must be above 0 and finite, not {self.step}")

    @property
    def size(self) -> int | None:
        """The number of values; None if they cannot be counted."""
        if self.step is None:
            return 1 if self.low == self.high else None
        return int((_decimal(self.high) - _decimal(self.low)) / _decimal(self.step)) + 1

    def draw(self, rng: np.random.Generator) -> float:
        if self.step is None:
            return float(rng.uniform(self.low, self.high))
        return self._stepped(int(rng.integers(self.size or 1)))

    def at(self, share: float) -> float:
        """Return the value below which this share of the distribution is, from 0 to 1."""
        if self.step is None:
            return min(max(self.low + share * (self.high - self.low), self.low), self.high)
        return self._stepped(_index(share, self.size or 1))

    def nearest(self, value: float) -> float:
        """Return the value of the distribution that is closest to a number."""
        inside = min(max(float(value), self.low), self.high)
        if self.step is None:
            return inside
        return self._stepped(min(round((inside - self.low) / self.step), (self.size or 1) - 1))

    def perturb(self, value: float, factor: float) -> float:
        moved = _scaled(value, factor)
        if self.step is not None:  # half a step would be rounded back to where it was
            moved = max(moved, value + self.step) if factor > 1 else min(moved, value - self.step)
        return self.nearest(moved if factor != 1 else value)

    def _stepped(self, index: int) -> float:
        """Return a value by its index, in decimal arithmetic: 0.3 and not 0.30000000000000004."""
        return float(_decimal(self.low) + index * _decimal(self.step or 0))


@dataclass(frozen=True)
class LogUniform:
    """A positive number between two bounds whose logarithm is uniformly distributed: learning rates, weight decay.

    Example:
        >>> import numpy as np
        >>> from ropewalk.search import LogUniform
        >>> rates = [LogUniform(1e-4, 1e-2).draw(np.random.default_rng(seed)) for seed in range(1000)]
        >>> round(sum(rate < 1e-3 for rate in rates) / 1000, 1)  # as many below the geometric mean as above it
        0.5
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        _check(self.low, self.high)
        if self.low <= 0:
            raise ValueError(f"low of LogUniform must be above 0, not {self.low}; Uniform takes any number")

    @property
    def size(self) -> int | None:
        """The number of values; None if they cannot be counted."""
        return 1 if self.low == self.high else None

    def draw(self, rng: np.random.Generator) -> float:
        return self.perturb(math.exp(rng.uniform(math.log(self.low), math.log(self.high))), 1.0)

    def at(self, share: float) -> float:
        """Return the value below which this share of the distribution is, from 0 to 1."""
        return self.nearest(self.low ** (1 - share) * self.high**share)  # both bounds exactly

    def nearest(self, value: float) -> float:
        """Return the value of the distribution that is closest to a number."""
        return min(max(float(value), self.low), self.high)

    def perturb(self, value: float, factor: float) -> float:
        return min(max(value * factor, self.low), self.high)


@dataclass(frozen=True)
class Integers:
    """An integer between two bounds.

    Attributes:
        low: lower bound, inclusive.
        high: upper bound, inclusive.
        step: distance between neighbouring values, counted from `low`.
        log: whether the logarithm is uniformly distributed: widths of layers, sizes of batches.
    """

    low: int
    high: int
    step: int = 1
    log: bool = False

    def __post_init__(self) -> None:
        _check(self.low, self.high)
        if wrong := [each for each in (self.low, self.high, self.step) if not isinstance(each, numbers.Integral)]:
            raise ValueError(f"bounds and step of Integers are integers, not {wrong[0]!r}; Uniform takes any number")
        if self.step < 1:
            raise ValueError(f"step of Integers must be at least 1, not {self.step}")
        if self.log and (self.low < 1 or self.step != 1):
            raise ValueError(
                f"Integers with log=True needs low of at least 1 and step=1, not low={self.low} and step={self.step}"
            )

    @property
    def size(self) -> int:
        """The number of values."""
        return (self.high - self.low) // self.step + 1

    def draw(self, rng: np.random.Generator) -> int:
        if self.log:
            return self.at(rng.random())
        return int(self.low + self.step * rng.integers(0, self.size - 1, endpoint=True))

    def at(self, share: float) -> int:
        """Return the value below which this share of the distribution is, from 0 to 1.

        With `log`, an integer n stands for the interval from n - 1/2 to n + 1/2, as in Optuna's `IntDistribution`.
        """
        if not self.log:
            return self.low + self.step * _index(share, self.size)
        low, high = math.log(self.low - 0.5), math.log(self.high + 0.5)
        return self.nearest(math.exp(low + share * (high - low)))

    def nearest(self, value: float) -> int:
        """Return the value of the distribution that is closest to a number."""
        index = round((min(max(value, self.low), self.high) - self.low) / self.step)
        return self.low + self.step * min(index, self.size - 1)

    def perturb(self, value: int, factor: float) -> int:
        moved = round(_scaled(value, factor))
        if factor > 1:
            moved = max(moved, value + self.step)  # 1 * 1.2 would be rounded to 1 for ever
        elif factor < 1:
            moved = min(moved, value - self.step)
        return self.nearest(moved)


@dataclass(frozen=True)
class Choice:
    """One of several values; the neighbours of a value are those next to it, so list ordered values in their order."""

    values: Sequence[Any]

    def __post_init__(self) -> None:
        if not self.values:
            raise ValueError("Choice needs at least one value")
        for value in self.values:
            plain(value, "a value of Choice")

    @property
    def size(self) -> int:
        """The number of values."""
        return len(self.values)

    def draw(self, rng: np.random.Generator) -> Any:
        return self.values[int(rng.integers(len(self.values)))]

    def at(self, share: float) -> Any:
        """Return the value at this share of the list, from 0 to 1."""
        return self.values[_index(share, len(self.values))]

    def perturb(self, value: Any, factor: float) -> Any:
        at = list(self.values).index(value) + (factor > 1) - (factor < 1)
        return self.values[min(max(at, 0), len(self.values) - 1)]


def draw_all(space: Space, rng: np.random.Generator) -> dict[str, Any]:
    """Draw a value for each name."""
    return {name: plain(_draw(each, rng), name) for name, each in space.items()}


def perturb_or_resample(
    space: Space, values: Mapping[str, Any], rng: np.random.Generator, resample: float, factors: Sequence[float]
) -> dict[str, Any]:
    """Draw each value again with probability `resample`, and otherwise perturb it by one of `factors`.

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


def _scaled(value: float, factor: float) -> float:
    """Return a number above `value` if the factor is above 1, whatever the sign of `value` is."""
    return value * factor if value >= 0 else value / factor


def _index(share: float, size: int) -> int:
    return min(int(share * size), size - 1)


def _decimal(number: float) -> decimal.Decimal:
    return decimal.Decimal(repr(float(number)))
