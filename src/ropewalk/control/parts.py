"""Which of the things that run are parts of others: what a process launched, and the pool that evaluates. Pure.

search ── "pool" among its facts ──▶ pool of its trials ── pid of a process ──▶ pool that a trial has made
"""

from __future__ import annotations

import platform
from collections.abc import Sequence

from ropewalk.control.view import View

_HERE = ("", "this host")
"""What views call the host of their launcher, if they do not name it."""
_LATE_S = 5.0
"""Seconds by which the last view of a whole may be older than the start of its part."""


def wholes_of(views: Sequence[View]) -> dict[str, str]:
    """Return the id of the whole by the id of each part.

    A pool that a population or a search names among its facts is its part: the newest of that name in the same
    launcher, and of several wholes that of the first. What was launched by a process of another thing is its part too.

    Args:
        views: of everything that is known, what has ended included.
    """
    found: dict[str, str] = {}
    for whole in views:
        pool = pool_of(whole, views)
        if pool is not None:
            found.setdefault(pool.id, whole.id)
    hosts = (*_HERE, platform.node())
    by_pid: dict[int, list[View]] = {}
    for whole in views:
        for process in whole.processes:
            if process.pid != whole.pid and process.host in hosts:  # what runs in threads has its launcher's pid
                by_pid.setdefault(process.pid, []).append(whole)
    for part in views:
        for whole in by_pid.get(part.pid, ()):
            if whole.started < part.started <= whole.at + _LATE_S:  # else the pid was that of another process
                found.setdefault(part.id, whole.id)
    return found


def pool_of(whole: View, views: Sequence[View]) -> View | None:
    """Return the pool that evaluates for a thing, the newest of its name; None if it names none, or it is not seen.

    Args:
        whole: a population, a search, or something else.
        views: of everything that is known; of several pools with the name, one that runs is preferred.
    """
    name = whole.facts.get("pool")
    if not name or whole.processes:
        return None
    of_name = [each for each in views if each.kind == "pool" and each.name == name and each.pid == whole.pid]
    return max(of_name, key=lambda each: (not each.has_ended, each.started), default=None)


def below_wholes(views: Sequence[View]) -> list[tuple[View, int]]:
    """Return all views in their order, but each part after its whole.

    Returns:
        Pairs of a view and its depth: 0 for what is no part of another thing, 1 for its parts, 2 for their parts.
    """
    wholes = wholes_of(views)
    parts: dict[str, list[View]] = {}
    for view in views:
        if view.id in wholes:
            parts.setdefault(wholes[view.id], []).append(view)
    ordered: list[tuple[View, int]] = []
    left = [(view, 0) for view in reversed(views) if view.id not in wholes]
    while left:
        view, depth = left.pop()
        ordered.append((view, depth))
        left += [(part, depth + 1) for part in reversed(parts.get(view.id, ()))]
    return ordered


__all__ = ["below_wholes", "pool_of", "wholes_of"]
