"""All configurations of finite hyperparameters: their number, and an enumeration in which conditions are respected."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from ropewalk.population.hyperparameters import Choice, Integers, LogUniform, Uniform
from ropewalk.search.conditions import Hyperparameter

ValuesOf = Callable[[Hyperparameter], Sequence[Any] | None]
"""Returns the values of a hyperparameter in a grid; None if there are too many to enumerate."""

_MOST = 100_000
"""Values of a hyperparameter with steps, and combinations of values in conditions, up to which they are enumerated."""


def all_values(parameter: Hyperparameter) -> Sequence[Any] | None:
    """Return all values of a hyperparameter; None if they are not finite, or too many."""
    distribution = parameter.distribution
    if parameter.is_constant:
        return [distribution]
    if isinstance(distribution, Choice):
        return distribution.values
    if isinstance(distribution, Integers):
        return range(distribution.low, distribution.high + 1, distribution.step)
    if isinstance(distribution, Uniform | LogUniform) and (size := distribution.size) and size <= _MOST:
        return [distribution.at((index + 0.5) / size) for index in range(size)]
    return None


def product(parameters: Collection[Hyperparameter], values_of: ValuesOf) -> Iterator[dict[str, Any]]:
    """Yield all configurations; the last hyperparameter varies fastest.

    Args:
        parameters: hyperparameters, each after those in its conditions.
        values_of: their values in the grid.
    """
    ordered, values = list(parameters), dict[str, Any]()

    def below(index: int) -> Iterator[dict[str, Any]]:
        if index == len(ordered):
            yield dict(values)
        elif not ordered[index].is_active(values):
            yield from below(index + 1)
        else:
            for value in values_of(ordered[index]) or ():
                values[ordered[index].name] = value
                yield from below(index + 1)
            values.pop(ordered[index].name, None)

    return below(0)


def count(parameters: Collection[Hyperparameter], values_of: ValuesOf) -> int | None:
    """Return the number of configurations, of which only values that occur in conditions are enumerated.

    Args:
        parameters: hyperparameters, each after those in its conditions.
        values_of: their values in the grid.

    Returns:
        The number; None if one of them has no finite values, or more than 100,000 combinations decide on conditions.
    """
    named = {name for each in parameters for name, _ in each.conditions}
    deciding = [each for each in parameters if each.name in named]
    lengths = {each.name: _length(values_of(each)) for each in parameters}
    if any(lengths[each.name] is None for each in deciding):
        return None
    if math.prod(lengths[each.name] or 0 for each in deciding) > _MOST:
        return None
    total = 0
    for values in product(deciding, values_of):
        active = [lengths[each.name] for each in parameters if each.name not in named and each.is_active(values)]
        if any(length is None for length in active):
            return None
        total += math.prod(length or 0 for length in active)
    return total


def _length(values: Sequence[Any] | None) -> int | None:
    return None if values is None else len(values)
