"""The configuration of a run: hyperparameters and other settings, read like a dictionary."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast


class RunConfig(Mapping[str, Any]):
    """Settings by name. Read and set as in a dictionary; changes are recorded.

    Args:
        values: the settings.
        changed: called with the settings that have changed, as JSON can represent them.
    """

    def __init__(self, values: Mapping[str, Any], changed: Callable[[dict[str, Any]], None]) -> None:
        self._values = dict(values)
        self._changed = changed

    if not TYPE_CHECKING:  # checkers should know which attributes there are

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(f"a configuration has no attribute {name!r}; settings are items: run.config[{name!r}]")

        def __setattr__(self, name: str, value: Any) -> None:
            if name.startswith("_"):
                object.__setattr__(self, name, value)
                return
            # It would be kept nowhere, without a word.
            raise AttributeError(f"settings are items: run.config[{name!r}] = ..., not run.config.{name} = ...")

    def __getitem__(self, name: str) -> Any:
        try:
            return self._values[name]
        except KeyError:
            raise KeyError(
                f"{name!r} is not in the configuration of this run; it has {', '.join(self._values)}"
            ) from None

    def __setitem__(self, name: str, value: Any) -> None:
        self.update({name: value})

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, name: object) -> bool:
        return name in self._values

    def __repr__(self) -> str:
        return f"RunConfig({self._values!r})"

    def update(self, values: Mapping[str, Any] | None = None, /, **named: Any) -> None:
        """Add settings, or replace them.

        Args:
            values: settings by name.
            **named: further settings.
        """
        given = {**(values or {}), **named}
        self._values |= given
        self._changed(to_plain(given))


def to_plain(value: Any) -> Any:
    """Return a value as JSON can represent it; what it cannot represent becomes its `repr`.

    Args:
        value: dictionaries, dataclasses, sequences, sets, paths, scalars of numpy, texts and numbers.
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else repr(value)
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in cast("Mapping[Any, Any]", value).items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, list | tuple | set | frozenset):
        return [to_plain(item) for item in cast("list[Any]", value)]
    if isinstance(value, os.PathLike):
        return os.fspath(cast("os.PathLike[str]", value))
    if callable(item := getattr(value, "item", None)) and getattr(value, "shape", None) == ():
        return to_plain(item())
    return repr(value)[:1000]


__all__ = ["RunConfig", "to_plain"]
