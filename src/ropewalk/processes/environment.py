"""The environment variables of a process: those of the program that started it, at that moment.

    os.environ at `start` ─┬─ on this host: what differs from the agent's ───────────▶ StartProcess.changes ─▶ process
                           └─ on others: what differs from the program's beginning ──▶

A process inherits the variables of its agent and is told the difference. On the program's host that makes them the same
as the program's. Another host keeps its own (PATH, HOME, variables of a scheduler), and is told what the program itself
has changed; for a list of folders, such as PATH, those are the folders that the program has put before and after.

Pure, but for `snapshot`, `at_beginning` and `apply`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar, cast

from ropewalk.surroundings import as_sent, sendable

Change = str | None | tuple[str, str]
"""The change of a variable: a new value, None (it is removed), or a list of folders with further ones before and after.
"""

C = TypeVar("C", bound=Change)
"""A change, or a value only."""

_IDENTITY = frozenset(("ROPEWALK_PROCESS", "ROPEWALK_RUN_ID", "ROPEWALK_JOB"))
"""Variables that identify a process, set by the agent."""
_SETTINGS = "ROPEWALK_"
"""Prefix of settings of the place in which a program runs; another host has its own."""
_PROCESS = Path("/proc/self/environ")


def snapshot() -> dict[str, str]:
    """Return the variables of this process, as they are now."""
    while True:
        try:
            return dict(os.environ)
        except KeyError:  # another thread removed one between two of our steps
            continue


def at_beginning(file: Path = _PROCESS) -> dict[str, str]:
    """Return the variables with which this program was started; where that is not known, those that it has now."""
    now = snapshot()
    try:
        entries = file.read_bytes().split(b"\0")
    except OSError:
        return now
    pairs = (entry.partition(b"=") for entry in entries if b"=" in entry)
    then = {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}
    # A program that changes its title in `ps` overwrites this memory.
    is_intact = 2 * len(then.keys() & now.keys()) > len(now)
    return then if is_intact else now


def changes_here(now: Mapping[str, str], agent: Mapping[str, str]) -> dict[str, Change]:
    """Return the changes for a process on the program's host.

    Args:
        now: variables of the program.
        agent: variables that the process inherits.
    """
    changes: dict[str, Change] = {name: value for name, value in now.items() if agent.get(name) != value}
    changes |= dict.fromkeys(agent.keys() - now.keys())
    return {name: change for name, change in changes.items() if name not in _IDENTITY}


def changes_elsewhere(now: Mapping[str, str], beginning: Mapping[str, str]) -> dict[str, Change]:
    """Return the changes for a process on another host.

    Args:
        now: variables of the program.
        beginning: variables with which it was started.
    """
    changed = {name: value for name, value in changes_here(now, beginning).items() if not name.startswith(_SETTINGS)}
    return {
        name: _more(beginning.get(name), value) if name.endswith("PATH") else value for name, value in changed.items()
    }


def _more(before: str | None, after: Change) -> Change:
    """Return the change of a list of folders as the folders put before and after it, if that is all."""
    if not before or not isinstance(after, str):
        return after
    head, found, tail = f"{os.pathsep}{after}{os.pathsep}".partition(f"{os.pathsep}{before}{os.pathsep}")
    return (head.strip(os.pathsep), tail.strip(os.pathsep)) if found else after


def changed(environment: Mapping[str, str], changes: Mapping[str, Change]) -> dict[str, str]:
    """Return an environment after changes."""
    result = dict(environment)
    for name, change in changes.items():
        if change is None:
            result.pop(name, None)
        elif isinstance(change, str):
            result[name] = change
        else:
            result[name] = os.pathsep.join(filter(None, (change[0], result.get(name, ""), change[1])))
    return result


def sendable_variables(variables: Mapping[str, C]) -> dict[str, C]:
    """Return variables, or changes of them, in a form that messages can carry: see `surroundings.sendable`."""
    return {sendable(name): _each(sendable, value) for name, value in variables.items()}


def variables_as_sent(variables: Mapping[str, C]) -> dict[str, C]:
    """Return the variables, or changes of them, from which `sendable_variables` made these."""
    return {as_sent(name): _each(as_sent, value) for name, value in variables.items()}


def _each(turn: Callable[[str], str], value: C) -> C:
    if value is None:
        return value
    turned = turn(value) if isinstance(value, str) else (turn(value[0]), turn(value[1]))
    return cast("C", turned)


def become(environment: Mapping[str, str]) -> None:
    """Set exactly these variables, and no others, in this process."""
    zone = os.environ.get("TZ")
    for name in os.environ.keys() - environment.keys():
        del os.environ[name]
    os.environ.update(environment)
    if os.environ.get("TZ") != zone:
        time.tzset()


__all__ = [
    "Change",
    "at_beginning",
    "become",
    "changed",
    "changes_elsewhere",
    "changes_here",
    "sendable_variables",
    "snapshot",
    "variables_as_sent",
]
