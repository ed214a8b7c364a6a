"""A process's memory limit: the kernel refuses allocations beyond it, and the agent watches its whole process tree.

The kernel's limit (RLIMIT_DATA) is on the memory that a process has allocated for itself, used or not, and makes an
allocation beyond it fail, as MemoryError in Python. It is not on address space, of which CUDA takes more than there is
memory. Each process that it starts has such a limit of its own; only the agent sees what they use together.
"""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TypeVar

from ropewalk.quantities import shown_size

T = TypeVar("T")

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_PARENT, _SESSION, _RESIDENT = 1, 3, 21
"""Positions in /proc/pid/stat after the name: the parent, the session, and resident pages."""


def limit_this_process(limit_bytes: int) -> None:
    """Make allocations fail beyond a limit; processes that this one starts inherit it."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if hard != resource.RLIM_INFINITY:
        limit_bytes = min(limit_bytes, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, hard))


def explaining(function: Callable[[], T]) -> Callable[[], T]:
    """Wrap the function so that its MemoryErrors say which limit they have met, if this process has one."""
    limit_bytes, _ = resource.getrlimit(resource.RLIMIT_DATA)
    if limit_bytes == resource.RLIM_INFINITY:
        return function

    def explained() -> T:
        try:
            return function()
        except MemoryError as error:
            error.add_note(f"the memory limit of this process is {shown_size(limit_bytes)} (requires(memory=...))")
            raise

    return explained


def overuse(limits: Mapping[int, int], proc: Path = Path("/proc")) -> dict[int, str]:
    """Return which processes use more than they may, with all that they started, and a description of each.

    Args:
        limits: limits in bytes, by the process id of a session's leader.
        proc: folder in which the kernel describes processes.
    """
    if not limits:
        return {}
    families, resident = _families(limits, proc)
    found: dict[int, str] = {}
    for pid, limit_bytes in limits.items():
        used_bytes = sum(resident[member] for member in families[pid])
        if used_bytes > limit_bytes:  # not certain: memory that several share counts once for each
            used_bytes = sum(_own_part(proc / str(member), resident[member]) for member in families[pid])
        if used_bytes > limit_bytes:
            found[pid] = (
                f"it used {shown_size(used_bytes)}, its memory limit is {shown_size(limit_bytes)} "
                "(requires(memory=...))"
            )
    return found


def _families(leaders: Iterable[int], proc: Path) -> tuple[dict[int, list[int]], dict[int, int]]:
    """Return the members of each leader's session with all their descendants, and each process's resident memory."""
    resident: dict[int, int] = {}
    parents: dict[int, tuple[int, int]] = {}
    for folder in os.scandir(proc):
        if not folder.name.isdecimal():
            continue
        with contextlib.suppress(OSError, ValueError, IndexError):  # the process is gone
            facts = (proc / folder.name / "stat").read_bytes().rpartition(b")")[2].split()
            pid = int(folder.name)
            parents[pid] = int(facts[_PARENT]), int(facts[_SESSION])
            resident[pid] = int(facts[_RESIDENT]) * _PAGE_BYTES
    families: dict[int, list[int]] = {leader: [] for leader in leaders}
    for pid in parents:
        at, seen = pid, 0
        while at in parents and seen < len(parents):  # a pid may be reused while we read
            parent, session = parents[at]
            if session in families:
                families[session].append(pid)
                break
            at, seen = parent, seen + 1
    return families, resident


def _own_part(process: Path, resident_bytes: int) -> int:
    """Return a process's memory, where shared memory counts in part.

    This is slow, so it is for processes that seem to have too much.
    """
    with contextlib.suppress(OSError, ValueError):  # the process is gone, or belongs to another user
        for line in (process / "smaps_rollup").read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) << 10
    return resident_bytes
