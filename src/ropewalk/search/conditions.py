"""Hyperparameters with their conditions: how a mapping of the user becomes a list in which conditions come first.

{"optimizer": Choice(["adam", "sgd"]),
 "sgd": When({"optimizer": "sgd"}, {"momentum": Uniform(0, 0.99), "nesterov": Choice([True, False])})}

optimizer           always
sgd.momentum        if optimizer is 'sgd'
sgd.nesterov        if optimizer is 'sgd'
"""

from __future__ import annotations

import graphlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from ropewalk.errors import SearchInvalid
from ropewalk.near_names import instead_of
from ropewalk.population.hyperparameters import Distribution, plain
from ropewalk.search.fitting import fitted, is_same

Terms = tuple[tuple[str, tuple[Any, ...]], ...]
"""Names, each with the values of which it must have one."""


@dataclass(frozen=True)
class When:
    """Makes a hyperparameter, or a nested mapping of them, active only if others have certain values.

    One that is not active is absent from the configuration. Conditions may depend on conditional hyperparameters: if
    such a one is not active, the condition does not hold.

    Attributes:
        condition: dotted names of other hyperparameters, each with a value, or a list of values of which it has one.
        then: a distribution, a constant, a nested mapping, or another `When`.

    Example:
        >>> from ropewalk.population import Choice, Uniform
        >>> space = {"optimizer": Choice(["adam", "sgd"]), "momentum": When({"optimizer": "sgd"}, Uniform(0, 0.99))}
    """

    condition: Mapping[str, Any]
    then: Any

    def __post_init__(self) -> None:
        if not isinstance(self.condition, Mapping) or not self.condition:
            raise SearchInvalid(
                f'When needs the names and values of its condition, such as {{"optimizer": "sgd"}}, not '
                f"{self.condition!r}"
            )

    @property
    def terms(self) -> Terms:
        """The names of the condition, each with its values."""
        return tuple((name, _as_values(value)) for name, value in self.condition.items())


@dataclass(frozen=True, slots=True)
class Hyperparameter:
    """One hyperparameter of a space.

    Attributes:
        name: dotted name, such as "optimizer.momentum".
        distribution: its distribution; the value itself if it is a constant.
        conditions: names of others and their values; it is active only if all of them hold.
    """

    name: str
    distribution: Any
    conditions: Terms = ()

    @property
    def is_constant(self) -> bool:
        """Whether it has only one value, and needs no distribution."""
        return not isinstance(self.distribution, Distribution)

    def is_active(self, values: Mapping[str, Any]) -> bool:
        """Return whether it has a value in a configuration.

        Args:
            values: values by name of at least those in its conditions, if they are active.
        """
        return all(
            name in values and any(is_same(values[name], each) for each in allowed) for name, allowed in self.conditions
        )

    def condition_text(self) -> str:
        """Return the conditions in words: "optimizer is 'sgd'"."""
        return " and ".join(f"{name} is {' or '.join(map(repr, allowed))}" for name, allowed in self.conditions)


def in_order_of_conditions(parameters: Mapping[str, Any]) -> list[Hyperparameter]:
    """Flatten a mapping, and put each hyperparameter after those on which it depends; otherwise the order is kept.

    Args:
        parameters: names to distributions, constants, nested mappings and `When`.

    Returns:
        The hyperparameters, with dotted names.

    Raises:
        SearchInvalid: a name is wrong or given twice; a condition has an unknown name, a value that its
            hyperparameter never has, or conditions depend on each other in a cycle.
    """
    found = list(_flattened(parameters, "", ()))
    by_name = {each.name: each for each in found}
    _check_names([each.name for each in found])
    for each in found:
        for name, allowed in each.conditions:
            _check_term(each.name, name, allowed, by_name)
    depends = {each.name: [name for name, _ in each.conditions] for each in found}
    try:
        graphlib.TopologicalSorter(depends).prepare()
    except graphlib.CycleError as error:
        cycle: list[str] = error.args[1]
        raise SearchInvalid(
            f"conditions depend on each other in a cycle: {' -> '.join(cycle)}; remove one of them", parameter=cycle[0]
        ) from None
    return list(_parents_first(found, by_name))


def _flattened(parameters: Mapping[Any, Any], prefix: str, conditions: Terms) -> Iterator[Hyperparameter]:
    for key, value in parameters.items():
        if not isinstance(key, str) or not all(key.split(".")):
            raise SearchInvalid(
                f"{key!r} is not a name of a hyperparameter{f' in {prefix[:-1]!r}' if prefix else ''}; names are "
                "texts, with dots between the levels of nested ones"
            )
        yield from _one(prefix + key, value, conditions)


def _one(name: str, value: Any, conditions: Terms) -> Iterator[Hyperparameter]:
    if isinstance(value, When):
        yield from _one(name, value.then, (*conditions, *value.terms))
    elif isinstance(value, Mapping):
        nested = cast(Mapping[Any, Any], value)
        if not nested:
            raise SearchInvalid(f"{name} is an empty mapping; leave it out or fill it", parameter=name)
        yield from _flattened(nested, f"{name}.", conditions)
    elif isinstance(value, type) or (isinstance(value, Sequence) and not isinstance(value, str)):
        raise SearchInvalid(
            f"{name} is {value!r:.60}, which is neither a distribution nor a constant; one of several values is "
            "Choice([...]), a number between two bounds Uniform(low, high)",
            parameter=name,
        )
    elif isinstance(value, Distribution):
        yield Hyperparameter(name, value, conditions)
    else:
        try:
            yield Hyperparameter(name, plain(value, name), conditions)
        except TypeError as error:
            raise SearchInvalid(str(error), parameter=name) from None


def _check_names(names: list[str]) -> None:
    known: set[str] = set()
    for name in names:
        if name in known:
            raise SearchInvalid(f"the hyperparameter {name} is given twice; remove one of them", parameter=name)
        known.add(name)
    for name in names:
        levels = name.split(".")
        for above in (".".join(levels[:count]) for count in range(1, len(levels))):
            if above in known:
                raise SearchInvalid(
                    f"{above} is a hyperparameter and also the mapping that contains {name}; rename one of them",
                    parameter=name,
                )


def _check_term(owner: str, name: str, allowed: tuple[Any, ...], by_name: Mapping[str, Hyperparameter]) -> None:
    if name not in by_name:
        raise SearchInvalid(
            f"the condition of {owner} names {name!r}, which is not in the space{instead_of(name, by_name)}",
            parameter=owner,
        )
    for value in allowed:
        try:
            fitted(by_name[name].distribution, value)
        except ValueError as error:
            raise SearchInvalid(
                f"the condition of {owner} can never hold: {name} is never {value!r}: {error}", parameter=owner
            ) from None


def _parents_first(found: Iterable[Hyperparameter], by_name: Mapping[str, Hyperparameter]) -> Iterator[Hyperparameter]:
    done: set[str] = set()

    def visit(each: Hyperparameter) -> Iterator[Hyperparameter]:
        if each.name in done:
            return
        done.add(each.name)
        for name, _ in each.conditions:
            yield from visit(by_name[name])
        yield each

    for each in found:
        yield from visit(each)


def _as_values(value: Any) -> tuple[Any, ...]:
    if isinstance(value, list | tuple | set | frozenset):
        return tuple(cast(Iterable[Any], value))
    return (value,)
