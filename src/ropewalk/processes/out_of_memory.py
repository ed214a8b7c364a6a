"""Evidence that the kernel ran out of memory: counters of the cgroup and of the host, before and after a death."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class MemoryKills:
    """How often the kernel has killed a process for lack of memory, as far as it reports that."""

    cgroup: int
    host: int


def count_kills(root: Path = Path("/")) -> MemoryKills:
    """Read the counters; those that cannot be read are 0."""
    return MemoryKills(_cgroup_kills(root), _number_after("oom_kill", root / "proc/vmstat"))


def evidence(before: MemoryKills, after: MemoryKills) -> str:
    """Describe the changes between two readings; empty if there are none."""
    if after.cgroup > before.cgroup:
        return "the memory limit of the job's cgroup was reached (oom_kill rose)"
    if after.host > before.host:
        return "the host ran out of memory (its oom_kill counter rose)"
    return ""


def _cgroup_kills(root: Path) -> int:
    total = 0
    try:
        groups = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return 0
    for group in groups:
        _, controllers, path = group.split(":", 2)
        relative = path.lstrip("/")
        if not controllers:
            total += _number_after("oom_kill", root / "sys/fs/cgroup" / relative / "memory.events")
        elif "memory" in controllers.split(","):
            total += _number_after("oom_kill", root / "sys/fs/cgroup/memory" / relative / "memory.oom_control")
    return total


def _number_after(word: str, path: Path) -> int:
    try:
        for line in path.read_text().splitlines():
            name, _, number = line.partition(" ")
            if name == word:
                return int(number)
    except (OSError, ValueError):
        pass
    return 0
