"""Families whose members are found by name: engines, schedules, partitioners, compressors.

    SCHEDULES = Family("schedule", {"gpipe": GPipe, ...}, group="ropewalk.schedules", unknown=ScheduleInvalid)
    SCHEDULES.member("gpipe")

A family is a dictionary of its members. Installed packages add others with entry points of its group; such a member is
imported when it is requested by name, and cannot take the name of a built-in member.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from types import UnionType
from typing import Any, TypeVar

from ropewalk.near_names import instead_of

_Entry = TypeVar("_Entry")


class Family(dict[str, _Entry]):
    """Members by name: each value is the member itself, or a text `module:attribute` to import it from.

    Args:
        noun: the word for a member in messages.
        members: the built-in members, by name.
        group: name of the entry point group in which installed packages add members.
        unknown: exception class for a name or an option that does not exist, and for a name that is taken.
        broken: exception class for a member that cannot be imported; defaults to `unknown`.
        added_by: name of the function that adds members, for messages.
    """

    def __init__(
        self,
        noun: str,
        members: Mapping[str, _Entry],
        *,
        group: str,
        unknown: type[Exception],
        broken: type[Exception] | None = None,
        added_by: str = "",
    ) -> None:
        super().__init__(members)
        self._noun, self._group, self._added_by = noun, group, added_by
        self._unknown, self._broken = unknown, broken or unknown

    def installed(self) -> dict[str, str]:
        """Return `module:attribute` of the members that installed packages add, by name; imports none of them."""
        # Imported here: it takes 20 ms, which every agent and every program would pay although few need it.
        metadata = importlib.import_module("importlib.metadata")
        return {entry.name: entry.value for entry in metadata.entry_points(group=self._group) if entry.name not in self}

    def member(self, name: str) -> Any:
        """Return the member with this name, importing it if necessary.

        Raises:
            Exception: of the type `unknown` if there is none, with all names and the closest match; of the type
                `broken` if it cannot be imported, with the place and the reason.
        """
        entry = self[name] if name in self else self.installed().get(name)  # searching installed packages is slow
        if entry is None:
            known = [*self, *sorted(self.installed())]
            added = f"; another is added with {self._added_by}" if self._added_by else ""
            raise self._unknown(f"there is no {self._noun} {name!r}{instead_of(name, known)}{added}")
        if not isinstance(entry, str):
            return entry
        module, _, attribute = entry.partition(":")
        try:
            return getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError) as error:
            raise self._broken(f"the {self._noun} {name!r} cannot be loaded from {entry}: {error}") from error

    def of(self, wanted: object, options: Mapping[str, Any], kind: type | UnionType) -> Any:
        """Return what a user gives as a member: an object of this kind as it is, or what a name and options make.

        Args:
            wanted: a name, or an object.
            options: keyword arguments of the member; only with a name.
            kind: the type of such objects.

        Raises:
            Exception: as `make`; also of the type `unknown` if it is neither, or options come with an object.
        """
        if isinstance(wanted, str):
            return self.make(wanted, options)
        if not isinstance(wanted, kind):
            names = ", ".join(self)
            raise self._unknown(
                f"a {self._noun} is given by its name or as an object, not as {wanted!r:.80}; there are {names}"
            )
        if options:
            raise self._unknown(f"{wanted!r} is configured already; it takes no {', '.join(options)}")
        return wanted

    def make(self, name: str, options: Mapping[str, Any]) -> Any:
        """Call the member with this name with options, after checking them.

        Args:
            name: name of the member.
            options: keyword arguments of the member.

        Returns:
            The result of the call.

        Raises:
            Exception: as `member`; also of the type `unknown` if an option does not exist, or a required option
                is missing.
        """
        member = self.member(name)
        parameters = inspect.signature(member).parameters.values()
        named = {one.name: one for one in parameters if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)}
        takes_any_name = any(one.kind is one.VAR_KEYWORD for one in parameters)
        if strange := [option for option in options if option not in named and not takes_any_name]:
            raise self._unknown(
                f"{self._noun} {name!r} has no option {strange[0]!r}{instead_of(strange[0], named, 'it has')}"
            )
        if needed := [key for key, one in named.items() if one.default is one.empty and key not in options]:
            example = f"{getattr(member, '__name__', name)}({', '.join(f'{key}=...' for key in needed)})"
            raise self._unknown(f"{self._noun} {name!r} needs the option {needed[0]!r}, as in {example}")
        return member(**options)

    def add(self, name: str, entry: _Entry) -> None:
        """Add a member under a name.

        Args:
            name: the name.
            entry: the member, or a text `module:attribute` to import it from.

        Raises:
            Exception: of the type `unknown`, if the name is taken, or the class has another one as `name`.
        """
        own = getattr(entry, "name", name)
        if isinstance(entry, type) and isinstance(own, str) and own != name:
            raise self._unknown(f"the name of {entry.__name__} is {own!r}; add it under that, and not as {name!r}")
        if self.setdefault(name, entry) is not entry:
            raise self._unknown(f"{name!r} is the name of {self[name]!r}; give yours another name")
