"""The children of a process, and theirs: what a host must end with it."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable
from pathlib import Path

from ropewalk.process_start import stat_fields


def own_children() -> list[int]:
    """Return the pids of the children of this process; some may have ended, if it has not waited for them.

    The kernel lists them without a look at all processes of the host. Its list is complete as long as no other thread
    of this process waits for children meanwhile; that of another process may not be.
    """
    found: list[int] = []
    try:
        for thread in os.listdir("/proc/self/task"):
            found += map(int, Path(f"/proc/self/task/{thread}/children").read_text(encoding="ascii").split())
    except FileNotFoundError:  # a kernel without these files, or a thread that has ended
        return _children_by_parent().get(os.getpid(), [])
    return found


def descendants(pid: int) -> list[int]:
    """Return the pids of the children of a process, and of theirs: parents come before their children."""
    children = _children_by_parent()
    found = [*children.get(pid, [])]
    for each in found:
        found += children.get(each, [])
    return found


def kill(pids: Iterable[int]) -> None:
    """Kill processes; those that have ended, or belong to another user, are passed over."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def _children_by_parent() -> dict[int, list[int]]:
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdecimal():
            with contextlib.suppress(OSError):  # it has ended
                children.setdefault(int(stat_fields(int(entry))[1]), []).append(int(entry))
    return children


__all__ = ["descendants", "kill", "own_children"]
