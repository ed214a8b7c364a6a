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


class RecentKills:
    """What the counters were a moment ago: older kills were of other processes than the one that has just died.

    Args:
        now: the counters.
    """

    def __init__(self, now: MemoryKills) -> None:
        self._before = self._last = now

    def note(self, now: MemoryKills) -> None:
        """Take a reading, one in each interval. The last two count: a death is noticed a little later than its kill."""
        self._before, self._last = self._last, now

    def take(self, now: MemoryKills) -> str:
        """Return the evidence that a process that has died now was killed; the next death gets none of it.

        Args:
            now: the counters.
        """
        found = evidence(self._before, now)
        if found:
            self._before = self._last = now
        return found


def evidence(before: MemoryKills, after: MemoryKills) -> str:
    """Describe the changes between two readings; empty if there are none."""
    if after.cgroup > before.cgroup:
        return "the memory limit of the job's cgroup was reached (oom_kill rose)"
    if after.host > before.host:
        return "perhaps: the host's kernel killed a process for lack of memory at that time, this one or another"
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
