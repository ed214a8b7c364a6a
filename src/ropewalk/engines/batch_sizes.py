"""The sizes of hosts, jobs and time limits, as batch systems are asked for them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ropewalk.engines.resources import HostCapacity, Resources
from ropewalk.quantities import counted

_MIB = 2**20
_GOOD_USE = 0.75


class SizedHost(Protocol):
    """A host whose capacity is known."""

    @property
    def room(self) -> HostCapacity:
        """Its capacity for processes, busy or not."""
        ...

    @property
    def is_usable(self) -> bool:
        """Whether jobs can run on it now."""
        ...


@dataclass(frozen=True, slots=True)
class BatchHost:
    """A host of a batch system."""

    name: str
    """A host name that can be resolved, or an IP address."""
    room: HostCapacity
    """Its capacity for processes, busy or not."""
    is_usable: bool
    """Whether jobs can start on it today, once it is free."""


def best_share(hosts: Sequence[SizedHost], process: Resources) -> int:
    """Choose how many processes one job should host: as many as possible while most of the cluster can be used.

    Large jobs mean few agents. But with one host of 128 CPUs among a hundred of 4, jobs of 128 processes would all wait
    for that host. So the result is the largest number with which the hosts run three quarters of the processes that
    they could run at best.

    Args:
        hosts: the hosts.
        process: the request of each process.

    Returns:
        The number of processes, or 0 if no host can run even one.
    """
    places = Counter(host.room.holds(process) for host in hosts)
    at_best = sum(place * count for place, count in places.items())
    for share in range(max(places, default=0), 0, -1):
        if sum(place // share * share * count for place, count in places.items()) >= _GOOD_USE * at_best:
            return share
    return 0


def usable_share(hosts: Sequence[SizedHost], process: Resources) -> int:
    """Return `best_share` of the hosts that can be used, or of all if none of these can run a process."""
    usable = [host for host in hosts if host.is_usable] or hosts
    return best_share(usable, process) or best_share(hosts, process)


def describe(hosts: Sequence[SizedHost]) -> str:
    """Describe the largest capacity of a host in words."""
    rooms = [host.room for host in hosts]
    words = [counted(math.floor(max((room.cpus for room in rooms), default=0)), "CPU")]
    memories = [room.memory_bytes for room in rooms if room.memory_bytes is not None]
    if memories:
        words.append(f"{max(memories) // _MIB} MiB of memory")
    gpus = max((room.gpus for room in rooms), default=0)
    words.append(counted(gpus, "GPU") if gpus else "no GPU")
    return ", ".join(words)


def describe_request(job: Resources) -> str:
    """Describe the request of a job, in the same form as `describe`."""
    words = [counted(math.ceil(job.cpus), "CPU")]
    if job.memory_bytes:
        words.append(f"{mib_of(job)} MiB of memory")
    if job.gpus:
        words.append(counted(job.gpus, "GPU"))
    return ", ".join(words)


def mib_of(job: Resources) -> int:
    """Return the memory request of a job in MiB, rounded up; 0 if it has none."""
    return math.ceil((job.memory_bytes or 0) / _MIB)


def hours_and_minutes(seconds: float) -> str:
    """Write a time limit as "hours:minutes", rounded up to whole minutes: batch systems have no finer limits.

    Example:
        >>> hours_and_minutes(5430)
        '1:31'
    """
    minutes = max(1, math.ceil(seconds / 60))
    return f"{minutes // 60}:{minutes % 60:02}"
