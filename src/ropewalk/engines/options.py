"""The options of an engine: a dataclass for each engine, filled from tables and words, with errors that name options.

    @dataclasses.dataclass(frozen=True)
    class SlurmOptions:
        partition: str = ""
        \"\"\"Where jobs are queued; the cluster's default partition if empty.\"\"\"

    options = read_options("slurm", SlurmOptions, {"partition": "gpu"})

Values come from `ropewalk.toml` (`[engines.slurm]`), from `--option partition=gpu` and from Python, so a text is
converted to the field's type where possible.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import re
import typing
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar, cast

from ropewalk.errors import SettingsError
from ropewalk.near_names import instead_of

_Options = TypeVar("_Options")
_YES, _NO = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


def read_options(engine: str, kind: type[_Options], given: Mapping[str, object]) -> _Options:
    """Make the options of an engine from the values given.

    Args:
        engine: the name of the engine, for errors.
        kind: a dataclass whose fields are of the types str, int, float, bool, `list[str]`, `dict[str, str]`,
            or one of these `| None`.
        given: values by name, typed or as text; as text, a list is separated by commas or written as JSON, and a
            dictionary is written `a=1,b=2`.

    Returns:
        The options.

    Raises:
        SettingsError: an option is unknown, or has an invalid value.
    """
    types = typing.get_type_hints(kind)
    names = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for name, value in given.items():
        if name not in names:
            hint = instead_of(name, sorted(names), "it has", quoted=False)
            raise SettingsError(
                f"the engine {engine!r} has no option {name}{hint}",
                name=name,
                value=value,
            )
        try:
            values[name] = _read(types[name], value)
        except ValueError as error:
            raise SettingsError(
                f"option {name} of the engine {engine!r} must be {error}, not {value!r}", name=name, value=value
            ) from None
    try:
        return kind(**values)
    except (ValueError, TypeError) as error:
        raise SettingsError(f"the options of the engine {engine!r} do not fit: {error}") from error


def words_to_options(words: Iterable[str]) -> dict[str, str]:
    """Read `name=value` words, as `--option` takes them.

    Returns:
        The values, as text, by name.

    Raises:
        SettingsError: a word has no `=`, or a name comes twice.
    """
    options: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or not name:
            raise SettingsError(f"an engine's option is written name=value, not {word!r}")
        if name in options:
            raise SettingsError(f"the option {name} is given twice: {options[name]!r} and {value!r}")
        options[name] = value
    return options


def refuse_control_characters(options: Mapping[str, object]) -> None:
    """Refuse options that would break out of a line of a script or of a request.

    Args:
        options: the texts and lists of texts, by name.

    Raises:
        ValueError: an option has a control character.
    """
    for name, value in options.items():
        words = cast(list[object], value) if isinstance(value, list) else [value]
        if any(re.search(r"[\x00-\x1f\x7f]", str(word)) for word in words):
            raise ValueError(f"{name} must hold no control characters such as a line break, not {value!r}")


def _read(kind: Any, value: object) -> object:
    alternatives = [each for each in typing.get_args(kind) if each is not type(None)]
    if type(None) in typing.get_args(kind):
        return None if value is None else _read(alternatives[0], value)
    origin = typing.get_origin(kind) or kind
    return _READERS[origin](value)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("a text")
    return value


def _whole(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip().removeprefix("-").isdecimal():
        return int(value)
    raise ValueError("a whole number")


def _number(value: object) -> float:
    if isinstance(value, int | float | str) and not isinstance(value, bool):
        with contextlib.suppress(ValueError):
            if math.isfinite(number := float(value)):
                return number
    raise ValueError("a number")


def _flag(value: object) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in _YES + _NO:
        return value.lower() in _YES
    raise ValueError("true or false")


def _list(value: object) -> list[str]:
    if isinstance(value, str) and value.startswith("["):  # as in ropewalk.toml
        with contextlib.suppress(ValueError, RecursionError):
            import json  # takes 1 ms, for which a first process would wait

            value = json.loads(value)
    if isinstance(value, str):
        return [word.strip() for word in value.split(",") if word.strip()]
    if isinstance(value, list | tuple) and all(isinstance(each, str) for each in value):  # pyright: ignore[reportUnknownVariableType]
        return list(value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    raise ValueError("a list of texts")


def _table(value: object) -> dict[str, str]:
    if isinstance(value, str):
        pairs = [word.partition("=") for word in _list(value)]
        if all(equals and name.strip() for name, equals, _ in pairs):
            return {name.strip(): text.strip() for name, _, text in pairs}
    if isinstance(value, Mapping) and all(isinstance(each, str) for each in (*value, *value.values())):  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        return dict(value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    raise ValueError("a table of strings, as in a=1,b=2")


_READERS: dict[object, Any] = {
    str: _text,
    int: _whole,
    float: _number,
    bool: _flag,
    list: _list,
    dict: _table,
}
