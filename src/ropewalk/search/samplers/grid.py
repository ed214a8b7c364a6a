"""Grid search: all combinations of values, each once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ropewalk.errors import SearchInvalid
from ropewalk.near_names import instead_of
from ropewalk.population.hyperparameters import Integers, LogUniform, Uniform
from ropewalk.search.conditions import Hyperparameter
from ropewalk.search.products import all_values, product
from ropewalk.search.samplers.sequence import SequenceSampler
from ropewalk.search.space import SearchSpace


class GridSampler(SequenceSampler):
    """Tries all combinations; the hyperparameter that is listed last varies fastest.

    Args:
        points: for hyperparameters between two bounds, the number of values that are tried, evenly spaced in the
            distribution and with both bounds: one number for those that have no countable values, or numbers by name.
            Without it, the space has to be finite.
    """

    def __init__(self, points: int | Mapping[str, int] | None = None) -> None:
        given = points.values() if isinstance(points, Mapping) else [] if points is None else [points]
        if wrong := [each for each in given if each < 1]:
            raise SearchInvalid(f"points of a grid are at least 1, not {wrong[0]}")
        self._points = points

    def configurations(self, space: SearchSpace, seed: int) -> Iterator[dict[str, Any]]:
        for name in self._points if isinstance(self._points, Mapping) else ():
            if name not in space.parameters:
                raise SearchInvalid(
                    f"points names {name!r}, which is not in the space{instead_of(name, space.parameters)}",
                    parameter=name,
                )
        values = {each.name: self._values(each) for each in space.parameters.values()}
        return product(space.parameters.values(), lambda each: values[each.name])

    def _values(self, parameter: Hyperparameter) -> Sequence[Any]:
        distribution, name = parameter.distribution, parameter.name
        wanted = self._points.get(name) if isinstance(self._points, Mapping) else None
        everything = all_values(parameter)
        if wanted is None and everything is not None:
            return everything
        if wanted is None and not isinstance(self._points, Mapping):
            wanted = self._points
        if wanted is None:
            raise SearchInvalid(
                f"{name} has too many values for a grid; say how many to try: points={{{name!r}: 5}}, or give it a "
                "step, or use Choice",
                parameter=name,
            )
        if not isinstance(distribution, Uniform | LogUniform | Integers):
            raise SearchInvalid(f"a grid needs bounds, and {name} is {distribution!r}", parameter=name)
        shares = [index / (wanted - 1) for index in range(wanted)] if wanted > 1 else [0.5]
        return list(dict.fromkeys(distribution.at(share) for share in shares))
