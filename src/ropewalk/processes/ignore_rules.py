"""Ignore files in the syntax of .gitignore (https://git-scm.com/docs/gitignore), matched as git matches them.

The tests compare with git itself. What git has beyond this (rules of the user, case folding, tracked files that stay
although they are ignored) does not belong to a bundle. `docs/internals/choices.md` says why this is not a dependency.
"""

from __future__ import annotations

import dataclasses
import re

_CLASSES = {
    "alnum": "a-zA-Z0-9", "alpha": "a-zA-Z", "blank": " \\t", "digit": "0-9", "lower": "a-z", "space": "\\s",
    "upper": "A-Z", "xdigit": "0-9a-fA-F",
}  # fmt: skip


@dataclasses.dataclass(frozen=True, slots=True)
class _Rule:
    pattern: re.Pattern[str]
    folder: str
    """Folder of the file with the rule: "" for the root, else ending in a slash."""
    by_name: bool
    """Whether it matches the last part of a path, at any depth."""
    ignores: bool
    only_folders: bool


@dataclasses.dataclass(frozen=True, slots=True)
class IgnoreRules:
    """The rules of a folder: of its own ignore file and of those above it; the last match decides."""

    rules: tuple[_Rule, ...] = ()

    def and_those_of(self, text: str, folder: str = "") -> IgnoreRules:
        """Return these rules, and those of an ignore file in a folder (relative to the root, "" for the root)."""
        prefix = f"{folder}/" if folder else ""
        read = (_read(line, prefix) for line in text.split("\n"))
        return IgnoreRules((*self.rules, *(rule for rule in read if rule)))

    def ignores(self, path: str, *, is_folder: bool) -> bool:
        """Return whether a path is ignored, relative to the root and with slashes.

        No folder above it may be ignored.
        """
        name = path.rpartition("/")[2]
        for rule in reversed(self.rules):
            if (rule.only_folders and not is_folder) or not path.startswith(rule.folder):
                continue
            if rule.pattern.fullmatch(name if rule.by_name else path[len(rule.folder) :]):
                return rule.ignores
        return False


def _read(line: str, folder: str) -> _Rule | None:
    """Return the rule of a line; None if it has none, or one that can match nothing."""
    pattern = _without_trailing_spaces(line.removesuffix("\r"))
    if not pattern or pattern.startswith("#"):
        return None
    ignores = not pattern.startswith("!")
    pattern = pattern if ignores else pattern[1:]
    only_folders = pattern.endswith("/")
    pattern = pattern.removesuffix("/")
    by_name = "/" not in pattern
    try:
        regex = re.compile(_segment(pattern) if by_name else _path(pattern.removeprefix("/")), re.DOTALL)
    except (re.error, _NeverMatches):
        return None
    return _Rule(regex, folder, by_name, ignores, only_folders) if pattern else None


def _without_trailing_spaces(line: str) -> str:
    kept = line.rstrip(" ")
    num_backslashes = len(kept) - len(kept.rstrip("\\"))
    return f"{kept} " if kept != line and num_backslashes % 2 else kept


class _NeverMatches(Exception):
    pass


def _path(pattern: str) -> str:
    """Return the regular expression of a pattern with slashes; a segment of two or more stars matches any folders."""
    *front, last = pattern.split("/")
    regex = "".join("(?:.*/)?" if _spans_folders(segment) else f"{_segment(segment)}/" for segment in front)
    return regex + (".+" if _spans_folders(last) else _segment(last))


def _spans_folders(segment: str) -> bool:
    return len(segment) > 1 and not segment.strip("*")


def _segment(pattern: str) -> str:
    """Return the regular expression of a pattern without slashes."""
    regex, at = "", 0
    while at < len(pattern):
        letter = pattern[at]
        at += 1
        if letter == "*":
            regex += "" if regex.endswith("[^/]*") else "[^/]*"  # several stars are one, and cost no backtracking
        elif letter == "?":
            regex += "[^/]"
        elif letter == "[":
            letters, at = _bracket(pattern, at)
            regex += letters
        elif letter == "\\":
            if at == len(pattern):
                raise _NeverMatches
            regex += re.escape(pattern[at])
            at += 1
        else:
            regex += re.escape(letter)
    return regex


def _bracket(pattern: str, at: int) -> tuple[str, int]:
    """Return the set of characters that begins after a bracket, and where it ends."""
    negated = pattern[at : at + 1] in ("!", "^")
    at += negated
    items, first = "", True
    while first or pattern[at : at + 1] != "]":
        named = re.compile(r"\[:(\w+):\]").match(pattern, at)
        if named and named[1] in _CLASSES:
            items, at = items + _CLASSES[named[1]], named.end()
        else:
            low, at = _letter(pattern, at)
            if pattern[at : at + 1] == "-" and pattern[at + 1 : at + 2] not in ("", "]"):
                high, at = _letter(pattern, at + 1)
                items += f"{re.escape(low)}-{re.escape(high)}" if low <= high else re.escape(low)  # as git does
            else:
                items += re.escape(low)
        first = False
    return f"(?!/)[{'^' if negated else ''}{items}]", at + 1


def _letter(pattern: str, at: int) -> tuple[str, int]:
    at += pattern[at : at + 1] == "\\"
    if at >= len(pattern):
        raise _NeverMatches  # the bracket is never closed
    return pattern[at], at + 1
