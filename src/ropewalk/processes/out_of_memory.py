"""Whether the kernel killed a process for lack of memory: from the counters of its cgroup, or of the host.

The kernel counts such kills, and does not tell which processes it killed. So a death is blamed on memory only if the
process was killed by SIGKILL, not by us, while a counter rose that no other death explains:

    cgroup   counts the kills of processes in it, whoever's limit was met (cgroup v2: `memory.events`, v1:
             `memory.oom_control`); it is the cgroup of the agent, and of all processes that the agent has started
    host     counts those of every process of the host, also in other containers (`oom_kill` of /proc/vmstat); it says
             nothing certain, and is used only where the cgroup does not count

(kernel: Documentation/admin-guide/cgroup-v2.rst, "memory.events"; mm/oom_kill.c, `__oom_kill_process`.)
"""

from __future__ import annotations

from collections import deque
from pathlib import Path

import msgspec

WINDOW_S = 10.0
"""Seconds for which a kill that no death has explained may explain one: a process that holds much memory takes a while
to end."""


class MemoryKills(msgspec.Struct, frozen=True):
    """How often the kernel has killed a process for lack of memory; None where it does not say."""

    cgroup: int | None = None
    host: int | None = None
    limit: int | None = None
    """How often an allocation failed at the limit of the cgroup itself, rather than at that of the host or of a cgroup
    around it."""


def count_kills(root: Path = Path("/")) -> MemoryKills:
    """Read the counters."""
    kills, limit = _of_cgroup(root)
    return MemoryKills(kills, _number_after("oom_kill", root / "proc/vmstat"), limit)


class MemoryEvidence:
    """Decides which deaths are blamed on memory. Pure.

    Args:
        kills: the counters now.
        now: monotonic time in seconds.
    """

    def __init__(self, kills: MemoryKills, now: float) -> None:
        self._readings = deque([(now, kills, 0)])
        """Time, counters, and the number of kills that had been explained until then."""
        self._num_explained = 0

    def look(self, kills: MemoryKills, now: float) -> None:
        """Note the counters; about once a second."""
        self._readings.append((now, kills, self._num_explained))
        self._forget(now)

    def explain(self, num_deaths: int, kills: MemoryKills, now: float) -> str:
        """Say whether processes that have just died ran out of memory, in words that follow "was killed by SIGKILL".

        Args:
            num_deaths: the number of processes; none of them was killed by us.
            kills: the counters after their deaths.
            now: monotonic time in seconds.

        Returns:
            The words; empty if they did not, as far as one can know.
        """
        self._forget(now)
        _, before, num_before = self._readings[0]
        is_certain = kills.cgroup is not None and before.cgroup is not None
        then, since = (before.cgroup, kills.cgroup) if is_certain else (before.host, kills.host)
        if then is None or since is None:
            return ""
        num_kills = since - then - (self._num_explained - num_before)
        if num_kills <= 0:
            return ""
        self._num_explained += min(num_kills, num_deaths)
        self.look(kills, now)
        if not is_certain:
            return "perhaps out of memory (the kernel killed a process of this host for it, and does not say which)"
        if num_kills < num_deaths:
            return f"perhaps out of memory (the kernel killed {num_kills} of {num_deaths} processes that died at once)"
        return f"out of memory ({_whose_limit(before, kills)})"

    def _forget(self, now: float) -> None:
        while len(self._readings) > 1 and self._readings[1][0] <= now - WINDOW_S:
            self._readings.popleft()


def _whose_limit(before: MemoryKills, after: MemoryKills) -> str:
    if before.limit is None or after.limit is None:
        return "the kernel killed a process of the job's cgroup for it"
    if after.limit > before.limit:
        return "the memory limit of the job's cgroup was reached"
    return "of the host, or of a cgroup around that of the job"


def _of_cgroup(root: Path) -> tuple[int | None, int | None]:
    """Return the kills in the cgroup of this process, and how often its own limit was met."""
    try:
        groups = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None, None
    kills: int | None = None
    limit: int | None = None
    for group in groups:
        _, controllers, path = group.split(":", 2)
        relative = path.lstrip("/")
        if not controllers:
            events = root / "sys/fs/cgroup" / relative / "memory.events"
            found, limit = _number_after("oom_kill", events), _number_after("oom", events)
        elif "memory" in controllers.split(","):
            found = _number_after("oom_kill", root / "sys/fs/cgroup/memory" / relative / "memory.oom_control")
        else:
            continue
        if found is not None:
            kills = (kills or 0) + found
    return kills, limit


def _number_after(word: str, path: Path) -> int | None:
    try:
        for line in path.read_text().splitlines():
            name, _, number = line.partition(" ")
            if name == word:
                return int(number)
    except (OSError, ValueError):
        pass
    return None
