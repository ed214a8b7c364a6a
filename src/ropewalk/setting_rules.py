"""Rules of settings: one function per kind of value, which checks and converts it.

A rule takes the value and its `SettingOrigin`, and raises the error from `SettingOrigin.wrong` if the value is invalid.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

from ropewalk.errors import SettingsError
from ropewalk.quantities import parse_memory


class SettingOrigin(NamedTuple):
    """Where a value was found: for error messages, and to resolve relative paths."""

    name: str
    origin: str
    folder: Path

    def wrong(self, rule: str, value: object) -> SettingsError:
        """Return an error that names the rule, the value and the origin; the caller raises it."""
        message = f"setting {self.name} must be {rule}, not {value!r} (from {self.origin})"
        return SettingsError(message, name=self.name, origin=self.origin, value=value)


def text(value: object, place: SettingOrigin) -> str:
    """Accept a text that is not empty; surrounding whitespace is removed."""
    if not isinstance(value, str) or not value.strip():
        raise place.wrong("a text that is not empty", value)
    return value.strip()


def one_of(*words: str) -> Callable[[object, SettingOrigin], str]:
    """Return a rule that accepts one of these words."""

    def word(value: object, place: SettingOrigin) -> str:
        if value not in words:
            raise place.wrong(f"one of {', '.join(words)}", value)
        return str(value)

    return word


def path(value: object, place: SettingOrigin) -> Path:
    """Accept a path; a relative path is relative to the file that names it."""
    if not isinstance(value, str | Path) or not str(value):
        raise place.wrong("a path", value)
    try:
        return place.folder / Path(value).expanduser()
    except RuntimeError as error:  # "~name" of an unknown user
        raise place.wrong("a path whose home folder exists", value) from error


def path_or_url(value: object, place: SettingOrigin) -> str:
    """Accept a URL as it is, and a path as `path` does."""
    return value if isinstance(value, str) and "://" in value else str(path(value, place))


def count(least: int) -> Callable[[object, SettingOrigin], int]:
    """Return a rule that accepts an integer of at least `least`, or a text that contains one."""
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
    """Return a rule that accepts a number of seconds, or a text that contains one; 0 only if `zero`."""
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
    """Return a rule that accepts a size or a duration; the error of `parse` explains the format."""

    def quantity(value: object, place: SettingOrigin) -> float:
        try:
            return parse(value)
        except (ValueError, TypeError) as error:
            message = f"setting {place.name}: {error} (from {place.origin})"
            raise SettingsError(message, name=place.name, origin=place.origin, value=value) from None

    return quantity


def memory_text(value: object, place: SettingOrigin) -> str:
    """Accept a size of memory, and keep it as written."""
    quantity(parse_memory)(value, place)
    return str(value)


def cpus(value: object, place: SettingOrigin) -> float:
    """Accept a number of CPUs, which may be fractional."""
    rule = "a number of CPUs above 0"
    try:
        cpus = float(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else 0.0
    except ValueError:
        raise place.wrong(rule, value) from None
    if not (math.isfinite(cpus) and cpus > 0):
        raise place.wrong(rule, value)
    return cpus


def ip_address(value: object, place: SettingOrigin) -> str:
    """Accept an IP address that other hosts can reach; a host name may resolve differently on other hosts."""
    import ipaddress  # imported here because few deployments set an address

    rule = "the IP address of an interface of this host, such as 10.0.0.5 (ip addr lists them)"
    try:
        address = ipaddress.ip_address(value.strip()) if isinstance(value, str) else None
    except ValueError:
        raise place.wrong(rule, value) from None
    if address is None or address.is_unspecified or address.is_multicast:
        raise place.wrong(f"{rule}; a wildcard would listen everywhere", value)
    return str(address)


def options_table(value: object, place: SettingOrigin) -> dict[str, object]:
    """Accept a table of values by name; a text is parsed as a JSON object."""
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
