"""Spaces as data: what a TOML file holds, what JSON keeps, and what a trial sends to suggest a hyperparameter.

    constraints = ["model.layers * model.width <= 2048"]

    [parameters]
    batch = 32                                                          # a constant
    rate = { log_uniform = [1e-5, 1e-1] }
    dropout = { uniform = [0.0, 0.5], step = 0.1 }
    optimizer = { choice = ["adam", "sgd"] }
    momentum = { uniform = [0.0, 0.99], when = { optimizer = "sgd" } }
    warmup = { constant = 100, when = { optimizer = ["adam", "sgd"] } }

    [parameters.model]                                                  # model.layers and model.width
    layers = { integers = [1, 8] }
    width = { integers = [16, 1024], log = true }

A table with one of the keys choice, constant, integers, log_uniform and uniform is a hyperparameter; another table is a
level of names, and may have `when` too.
"""

from __future__ import annotations

import copy
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, cast

from ropewalk.errors import SearchInvalid
from ropewalk.near_names import instead_of
from ropewalk.population.hyperparameters import Choice, Integers, LogUniform, Uniform
from ropewalk.search.conditions import Hyperparameter, When

_KINDS: dict[str, tuple[Callable[..., Any], frozenset[str]]] = {
    "uniform": (Uniform, frozenset({"step"})),
    "log_uniform": (LogUniform, frozenset()),
    "integers": (Integers, frozenset({"step", "log"})),
    "choice": (Choice, frozenset()),
    "constant": (copy.copy, frozenset()),
}
"""For each key that names a kind, what makes it and the further keys that it may have."""


def read_toml(path: Path | str) -> dict[str, Any]:
    """Read a TOML file.

    Raises:
        SearchInvalid: it is not TOML.
        OSError: it cannot be read.
    """
    try:
        return tomllib.loads(Path(path).read_text("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SearchInvalid(f"the file is not TOML: {error}") from None


def parameters_of(data: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the arguments of `SearchSpace` from data.

    Args:
        data: the table `parameters`, and `constraints`, a list of texts.

    Raises:
        SearchInvalid: the data does not have that form; the message names the hyperparameter.
    """
    for name in data:
        if name not in ("parameters", "constraints"):
            raise SearchInvalid(f"there is no table {name!r}{instead_of(name, ['parameters', 'constraints'])}")
    parameters, constraints = data.get("parameters"), data.get("constraints", [])
    if not isinstance(parameters, Mapping):
        raise SearchInvalid("the table [parameters] is missing: it has the hyperparameters, by name")
    if not isinstance(constraints, list) or not all(isinstance(each, str) for each in cast(list[object], constraints)):
        raise SearchInvalid(f'constraints are a list of texts, such as ["layers * width <= 64"], not {constraints!r}')
    return _level(cast(Mapping[str, Any], parameters), ""), cast(list[str], constraints)


def described_parameters(parameters: Iterable[Hyperparameter]) -> dict[str, Any]:
    """Return hyperparameters by dotted name, in the form that `parameters_of` reads.

    A distribution of another class is described by its `repr`, which cannot be read back.
    """
    found: dict[str, Any] = {}
    for each in parameters:
        described = {"constant": each.distribution} if each.is_constant else described_distribution(each.distribution)
        if each.conditions:
            described["when"] = {name: list(allowed) for name, allowed in each.conditions}
        found[each.name] = described
    return found


def described_distribution(distribution: Any) -> dict[str, Any]:
    """Return a distribution as data, such as `{"uniform": [0.0, 0.5], "step": 0.1}`."""
    match distribution:
        case Uniform(low=low, high=high, step=step):
            return {"uniform": [low, high]} | ({} if step is None else {"step": step})
        case LogUniform(low=low, high=high):
            return {"log_uniform": [low, high]}
        case Integers(low=low, high=high, step=step, log=log):
            return {"integers": [low, high]} | ({} if step == 1 else {"step": step}) | ({"log": True} if log else {})
        case Choice(values=values):
            return {"choice": list(values)}
        case _:
            return {"other": repr(distribution)}


def distribution_of(data: Mapping[str, Any], name: str) -> Any:
    """Return the distribution that data describes, or the value of a constant.

    Args:
        data: one of the keys choice, constant, integers, log_uniform and uniform, and options of that kind.
        name: dotted name of the hyperparameter, for messages.

    Raises:
        SearchInvalid: the data is wrong; the message names the hyperparameter.
    """
    kinds = [key for key in data if key in _KINDS]
    if len(kinds) != 1:
        raise SearchInvalid(f"{name} needs one of the keys {', '.join(_KINDS)}, not {list(data)}", parameter=name)
    make, options = _KINDS[kinds[0]]
    for key in data:
        if key != kinds[0] and key not in options:
            raise SearchInvalid(f"{name} has the key {key!r}{instead_of(key, [kinds[0], *sorted(options), 'when'])}")
    value, further = data[kinds[0]], {key: data[key] for key in data if key != kinds[0]}
    try:
        if make is Choice or kinds[0] == "constant":
            return make(value)
        _check_bounds(value)
        return make(*value, **further)
    except (ValueError, TypeError) as error:
        raise SearchInvalid(f"{name} = {dict(data)} is not valid: {error}", parameter=name) from None


def _check_bounds(value: Any) -> None:
    if not isinstance(value, list | tuple) or len(cast(list[object], value)) != 2:
        raise ValueError(f"the value is a list of the two bounds, not {value!r}")
    for bound in cast(list[object], value):
        if isinstance(bound, bool) or not isinstance(bound, int | float):
            raise ValueError(f"bounds are numbers, not {bound!r}")


def _level(table: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    return {name: _entry(each, prefix + name) for name, each in table.items()}


def _entry(value: Any, name: str) -> Any:
    if isinstance(value, list):
        raise SearchInvalid(f"{name} is the list {value}; one of its values is {{ choice = [...] }}", parameter=name)
    if not isinstance(value, Mapping):
        return value
    table = dict(cast(Mapping[str, Any], value))
    when = table.pop("when", None)
    if any(key in _KINDS for key in table):
        then = distribution_of(table, name)
    else:
        _check_level(table, name)
        then = _level(table, f"{name}.")
    if when is None:
        return then
    if not isinstance(when, Mapping):
        raise SearchInvalid(f'when of {name} is a table such as {{ optimizer = "sgd" }}, not {when!r}', parameter=name)
    return When(cast(Mapping[str, Any], when), then)


def _check_level(table: Mapping[str, Any], name: str) -> None:
    """A table whose values are lists and numbers is a distribution with a misspelt kind rather than a level."""
    lists = [key for key, value in table.items() if isinstance(value, list)]
    if lists:
        raise SearchInvalid(f"{name} has the key {lists[0]!r}{instead_of(lists[0], [*_KINDS, 'when'])}", parameter=name)
