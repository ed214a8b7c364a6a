"""`SearchSpace`: the hyperparameters of a search, their distributions, conditions and constraints.

    space = SearchSpace(
        {
            "rate": LogUniform(1e-5, 1e-1),
            "model": {"layers": Integers(1, 8), "width": Integers(16, 1024, log=True)},
            "optimizer": Choice(["adam", "sgd"]),
            "momentum": When({"optimizer": "sgd"}, Uniform(0, 0.99)),
            "batch": 32,
        },
        constraints=["model.layers * model.width <= 2048"],
    )

A configuration maps dotted names to values: `{"rate": 1e-3, "model.layers": 2, ...}`. It has all constants, and lacks
the hyperparameters that are not active. `nested` turns it into the arguments of a training function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from ropewalk.errors import SearchInvalid
from ropewalk.near_names import instead_of
from ropewalk.population.hyperparameters import Distribution
from ropewalk.quantities import counted, listed
from ropewalk.search.conditions import Hyperparameter, in_order_of_conditions
from ropewalk.search.constraints import Constraint, Constraints
from ropewalk.search.fitting import fitted
from ropewalk.search.name_streams import NameStreams
from ropewalk.search.products import all_values, count, product
from ropewalk.search.space_text import described_parameters, parameters_of, read_toml

_DRAWS = 10_000
"""Configurations that are drawn before a space counts as one whose constraints admit nothing."""
_MOST_SHOWN = 8
"""Names of hyperparameters in the `repr` of a space."""


class SearchSpace:
    """The configurations that a search may try.

    Args:
        parameters: names to distributions (`Uniform`, `LogUniform`, `Integers`, `Choice`, or any object with `draw` and
            `perturb`), constants, nested mappings, and `When` for hyperparameters that are active only if others have
            certain values.
        constraints: functions of the nested configuration that return whether it may be tried; a string is read as an
            `Expression`, such as "layers * width <= 2048".

    Attributes:
        parameters: all hyperparameters by dotted name; each stands after those in its conditions.
        constraints: the constraints.

    Raises:
        SearchInvalid: a name, a value, a condition or a constraint is wrong; the message says which.
    """

    def __init__(self, parameters: Mapping[str, Any], constraints: Sequence[Constraint | str] = ()) -> None:
        self.parameters: Mapping[str, Hyperparameter] = {each.name: each for each in in_order_of_conditions(parameters)}
        self.constraints: Constraints = Constraints(constraints, self.parameters)

    def __repr__(self) -> str:
        constraints = f", {counted(len(self.constraints), 'constraint')}" if len(self.constraints) else ""
        return f"<SearchSpace of {listed(list(self.parameters), _MOST_SHOWN)}{constraints}>"

    @classmethod
    def from_toml(cls, path: Path | str) -> SearchSpace:
        """Read a space from a TOML file, which holds only data: nothing in it is executed.

        Args:
            path: path of the file, whose form is that of `search/space_text.py`.

        Raises:
            SearchInvalid: the file is not valid; the message names the file and the hyperparameter.
            OSError: the file cannot be read.
        """
        try:
            return cls.from_data(read_toml(path))
        except SearchInvalid as error:
            raise SearchInvalid(f"{path}: {error.args[0]}", parameter=error.parameter) from None

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> SearchSpace:
        """Make a space from the data of a TOML or JSON file, in the form that `described` returns.

        Raises:
            SearchInvalid: the data is not valid.
        """
        parameters, constraints = parameters_of(data)
        return cls(parameters, constraints)

    def described(self) -> dict[str, Any]:
        """Return the space as data that JSON and TOML can represent; constraints that are functions are not in it."""
        expressions = self.constraints.expressions
        data = {"parameters": described_parameters(self.parameters.values())}
        return {"constraints": expressions, **data} if expressions else data

    @property
    def size(self) -> int | None:
        """The number of configurations without regard to the constraints; None if they cannot be counted."""
        return count(self.parameters.values(), all_values)

    def chosen(self, choose: Callable[[str, Any], Any]) -> dict[str, Any]:
        """Return a configuration of which each active hyperparameter is chosen by a function, conditions first.

        Args:
            choose: called with the name and the distribution of each active hyperparameter that is not a constant.
        """
        values: dict[str, Any] = {}
        for each in self.parameters.values():
            if each.is_active(values):
                values[each.name] = each.distribution if each.is_constant else choose(each.name, each.distribution)
        return values

    def draw(self, streams: NameStreams) -> dict[str, Any]:
        """Draw a configuration that satisfies the constraints.

        Args:
            streams: the random numbers.

        Raises:
            SearchInvalid: none of 10,000 that were drawn satisfies the constraints; the message has the share of
                configurations that each constraint admits.
        """
        for _ in range(_DRAWS):
            if self.admits(values := self.chosen(streams.draw)):
                return values
        drawn = (nested(self.chosen(streams.draw)) for _ in range(_DRAWS))
        raise self.constraints.admitting_nothing(drawn, are_all=False)

    def check(self, seed: int = 0) -> None:
        """Check that the constraints admit something, before anything starts.

        Args:
            seed: source of the configurations that are drawn; a space with at most 10,000 of them is enumerated.

        Raises:
            SearchInvalid: they admit nothing; the message has the share that each constraint admits.
        """
        if not self.constraints:
            return
        size = self.size
        if size is None or size > _DRAWS:
            self.draw(NameStreams(seed, 0))
        elif not any(map(self.admits, product(self.parameters.values(), all_values))):
            everything = map(nested, product(self.parameters.values(), all_values))
            raise self.constraints.admitting_nothing(everything, are_all=True)

    def admits(self, values: Mapping[str, Any]) -> bool:
        """Return whether a configuration satisfies all constraints."""
        return not self.constraints or not any(self.constraints.broken(nested(values)))

    def nested(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return a configuration with a dictionary for each level of its names: the arguments of a training function.

        Example:
            >>> SearchSpace({}).nested({"rate": 0.1, "model.layers": 2})
            {'rate': 0.1, 'model': {'layers': 2}}
        """
        return nested(values)

    def validate(
        self,
        values: Mapping[str, Any],
        base: Mapping[str, Any] | None = None,
        suggested: Mapping[str, Distribution] | None = None,
    ) -> dict[str, Any]:
        """Check a configuration given by a person, and convert strings in it, as for `--set rate=1e-4`.

        Args:
            values: values by dotted name, or nested.
            base: a configuration that supplies what `values` lacks; what is not active any more is left out.
            suggested: further distributions, of hyperparameters that trials asked for by name; they may be missing.

        Returns:
            The configuration by dotted name, complete with constants.

        Raises:
            SearchInvalid: a name is unknown, not active or missing, a value is outside of its distribution, or a
                constraint does not hold.
        """
        given, others = dict(_dotted(values)), suggested or {}
        for name in given:
            if name not in self.parameters and name not in others:
                known = [*self.parameters, *others]
                raise SearchInvalid(f"there is no hyperparameter {name!r}{instead_of(name, known)}", parameter=name)
        supplied = {**(base or {}), **given}
        found = self._filled(given, supplied)
        found |= {name: _fitted(name, each, supplied[name]) for name, each in others.items() if name in supplied}
        if broken := list(self.constraints.broken(nested(found))):
            raise SearchInvalid(f"the configuration {found} does not satisfy {' and '.join(broken)}")
        return found

    def _filled(self, given: Mapping[str, Any], supplied: Mapping[str, Any]) -> dict[str, Any]:
        """Return the supplied values of active hyperparameters; what a person gave has to be active."""
        found: dict[str, Any] = {}
        missing: list[str] = []
        for name, each in self.parameters.items():
            if not each.is_active(found):
                # If something is missing, what depends on it may be active all the same.
                if name in given and not missing:
                    raise SearchInvalid(f"{name} is active only if {each.condition_text()}", parameter=name)
            elif name in supplied:
                found[name] = _fitted(name, each.distribution, supplied[name])
            elif each.is_constant:
                found[name] = each.distribution
            else:
                missing.append(name)
        if missing:
            raise SearchInvalid(f"the configuration lacks {', '.join(missing)}", parameter=missing[0])
        return found


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values by dotted name as nested dictionaries."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        *levels, last = name.split(".")
        place = found
        for level in levels:
            place = place.setdefault(level, {})
        place[last] = value
    return found


def _dotted(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _dotted(cast(Mapping[str, Any], value), f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _fitted(name: str, distribution: Any, value: Any) -> Any:
    try:
        return fitted(distribution, value)
    except ValueError as error:
        raise SearchInvalid(f"{name}: {error}", parameter=name) from None
