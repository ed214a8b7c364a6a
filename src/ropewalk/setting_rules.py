"""Rules of settings: one function per kind of value, from what was given to what is kept.

A rule takes the value and the `SettingOrigin` where it stood, and raises what `SettingOrigin.wrong` makes of it if it
cannot be.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

from ropewalk.errors import SettingsError
from ropewalk.quantities import parse_memory


@dataclasses.dataclass(frozen=True, slots=True)
class SettingOrigin:
    """Where a value stands, for the message and for relative paths."""

    name: str
    origin: str
    folder: Path

    def wrong(self, rule: str, value: object) -> SettingsError:
        """The error that says rule, value and origin; raise what is returned."""
        message = f"setting {self.name} must be {rule}, not {value!r} (from {self.origin})"
        return SettingsError(message, name=self.name, origin=self.origin, value=value)


def text(value: object, place: SettingOrigin) -> str:
    """A text that says something, without the space around it."""
    if not isinstance(value, str) or not value.strip():
        raise place.wrong("a text that is not empty", value)
    return value.strip()


def one_of(*words: str) -> Callable[[object, SettingOrigin], str]:
    """One of these words."""

    def word(value: object, place: SettingOrigin) -> str:
        if value not in words:
            raise place.wrong(f"one of {', '.join(words)}", value)
        return str(value)

    return word


def path(value: object, place: SettingOrigin) -> Path:
    """A path, relative to the file that names it."""
    if not isinstance(value, str | Path) or not str(value):
        raise place.wrong("a path", value)
    try:
        return place.folder / Path(value).expanduser()
    except RuntimeError as error:  # "~name" of somebody who does not exist
        raise place.wrong("a path whose home folder exists", value) from error


def count(least: int) -> Callable[[object, SettingOrigin], int]:
    """A whole number, or a text that is one."""
    rule = f"a whole number of at least {least}"

    def count(value: object, place: SettingOrigin) -> int:
        given = value
        if isinstance(value, str):
            try:
                value = int(value)
            except ValueError:
                raise place.wrong(rule, given) from None
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise place.wrong(rule, given)
        return value

    return count


def seconds(*, zero: bool) -> Callable[[object, SettingOrigin], float]:
    """A number of seconds, or a text that is one."""
    rule = "a number of seconds, 0 or more" if zero else "a number of seconds above 0"

    def seconds(value: object, place: SettingOrigin) -> float:
        given = value
        if isinstance(value, str):
            try:
                value = float(value)
            except ValueError:
                raise place.wrong(rule, given) from None
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise place.wrong(rule, given)
        if value < 0 or (value == 0 and not zero):
            raise place.wrong(rule, given)
        return float(value)

    return seconds


def quantity(parse: Callable[[Any], float]) -> Callable[[object, SettingOrigin], float]:
    """A size or a duration, whose parser says the rule."""

    def quantity(value: object, place: SettingOrigin) -> float:
        try:
            return parse(value)
        except (ValueError, TypeError) as error:
            message = f"setting {place.name}: {error} (from {place.origin})"
            raise SettingsError(message, name=place.name, origin=place.origin, value=value) from None

    return quantity


def memory_text(value: object, place: SettingOrigin) -> str:
    """A size of memory, kept as it was written."""
    quantity(parse_memory)(value, place)
    return str(value)


def cpus(value: object, place: SettingOrigin) -> float:
    """CPUs, perhaps a part of one."""
    rule = "a number of CPUs above 0"
    try:
        cpus = float(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else 0.0
    except ValueError:
        raise place.wrong(rule, value) from None
    if not (math.isfinite(cpus) and cpus > 0):
        raise place.wrong(rule, value)
    return cpus


def ip_address(value: object, place: SettingOrigin) -> str:
    """An address that others can dial: an IP, as names mean other things on other hosts."""
    import ipaddress  # here, because hardly anybody names an address

    rule = "the IP address of an interface of this host, such as 10.0.0.5 (ip addr lists them)"
    try:
        address = ipaddress.ip_address(value.strip()) if isinstance(value, str) else None
    except ValueError:
        raise place.wrong(rule, value) from None
    if address is None or address.is_unspecified or address.is_multicast:
        raise place.wrong(f"{rule}; a wildcard would listen everywhere", value)
    return str(address)


def options_table(value: object, place: SettingOrigin) -> dict[str, object]:
    """Values by name; in a text, as a JSON object."""
    rule = 'a table of options by name; in the environment a JSON object such as {"partition": "gpu"}'
    given = value
    if isinstance(value, str):
        import json

        try:
            given = json.loads(value)
        except (ValueError, RecursionError):
            raise place.wrong(rule, value) from None
    table = cast("Mapping[object, object]", given) if isinstance(given, Mapping) else {None: given}
    if not all(isinstance(name, str) for name in table):
        raise place.wrong(rule, value)
    return cast("dict[str, object]", dict(table))
