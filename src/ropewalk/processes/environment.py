"""The environment variables of a process: those of the program that started it, as they were in that moment.

    os.environ at `start` ─┬─ on this host: what differs from the agent's ───────────▶ StartProcess.changes ─▶ process
                           └─ on others: what differs from the program's beginning ──▶

A process inherits the variables of its agent and is told the difference. On the program's host that makes them the same
as the program's. Another host keeps its own (PATH, HOME, what a scheduler has set), and is told what the program itself
has changed; of a list of folders, such as PATH, that is what the program has put before and after.

Pure, but for `snapshot`, `at_beginning` and `apply`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

#: What a variable becomes: a text, nothing (it is taken away), or a list of folders with some more before and after.
Change = str | None | tuple[str, str]

#: Who a process is, which the agent says.
_IDENTITY = frozenset(("ROPEWALK_PROCESS", "ROPEWALK_RUN_ID", "ROPEWALK_JOB"))
#: Settings of the place that a program runs in, which another host has its own of.
_SETTINGS = "ROPEWALK_"
_PROCESS = Path("/proc/self/environ")


def snapshot() -> dict[str, str]:
    """The variables of this process, as they are now."""
    while True:
        try:
            return dict(os.environ)
        except KeyError:  # another thread took one away between two of our steps
            continue


def at_beginning(file: Path = _PROCESS) -> dict[str, str]:
    """The variables that this program was started with; where nobody has noted that, those that it has now."""
    now = snapshot()
    try:
        entries = file.read_bytes().split(b"\0")
    except OSError:
        return now
    pairs = (entry.partition(b"=") for entry in entries if b"=" in entry)
    then = {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}
    # A program that shows something else than its arguments in `ps` writes that over its variables.
    is_intact = 2 * len(then.keys() & now.keys()) > len(now)
    return then if is_intact else now


def changes_here(now: Mapping[str, str], agent: Mapping[str, str]) -> dict[str, Change]:
    """What a process on the program's host is told.

    Args:
        now: of the program.
        agent: what the process inherits.
    """
    changes: dict[str, Change] = {name: value for name, value in now.items() if agent.get(name) != value}
    changes |= dict.fromkeys(agent.keys() - now.keys())
    return {name: change for name, change in changes.items() if name not in _IDENTITY}


def changes_elsewhere(now: Mapping[str, str], beginning: Mapping[str, str]) -> dict[str, Change]:
    """What a process on another host is told.

    Args:
        now: of the program.
        beginning: what it was started with.
    """
    changed = {name: value for name, value in changes_here(now, beginning).items() if not name.startswith(_SETTINGS)}
    return {
        name: _more(beginning.get(name), value) if name.endswith("PATH") else value for name, value in changed.items()
    }


def _more(before: str | None, after: Change) -> Change:
    """The change of a list of folders as what was put before and after it, if that is all."""
    if not before or not isinstance(after, str):
        return after
    head, found, tail = f"{os.pathsep}{after}{os.pathsep}".partition(f"{os.pathsep}{before}{os.pathsep}")
    return (head.strip(os.pathsep), tail.strip(os.pathsep)) if found else after


def changed(environment: Mapping[str, str], changes: Mapping[str, Change]) -> dict[str, str]:
    """An environment after changes."""
    result = dict(environment)
    for name, change in changes.items():
        if change is None:
            result.pop(name, None)
        elif isinstance(change, str):
            result[name] = change
        else:
            result[name] = os.pathsep.join(filter(None, (change[0], result.get(name, ""), change[1])))
    return result


def become(environment: Mapping[str, str]) -> None:
    """Have these variables, and no others, in this process."""
    zone = os.environ.get("TZ")
    for name in os.environ.keys() - environment.keys():
        del os.environ[name]
    os.environ.update(environment)
    if os.environ.get("TZ") != zone:
        time.tzset()


__all__ = ["Change", "at_beginning", "become", "changed", "changes_elsewhere", "changes_here", "snapshot"]
