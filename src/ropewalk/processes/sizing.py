"""How many agents, and how large: from the processes that wait to the shares to ask for. Pure.

A share is what one job gets of a host: room for so many processes of one kind. Processes
of another kind use up a part of it: one of which `n` fit into a job takes 1/n.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ropewalk.engines.resources import Resources

#: How many processes of a kind fit into one job, None for any number.
PerJob = Mapping[Resources, int | None]
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Share:
    """What one agent may use."""

    slots: int | None
    """How many processes like `kind` it has room for; None for any number."""
    kind: Resources

    @property
    def resources(self) -> Resources:
        """What its job asks the engine for."""
        n = self.slots or 1
        memory = self.kind.memory_bytes
        return Resources(self.kind.cpus * n, self.kind.gpus * n, memory * n if memory else None)


def fits(share: Share, hosted: Iterable[Resources], another: Resources, per_job: PerJob) -> bool:
    """Whether a share has room for another process beside those that it hosts."""
    if share.slots is None:
        return True
    whole = per_job.get(share.kind) or share.slots
    room = share.slots / whole
    used = sum(_part(each, per_job, whole) for each in (*hosted, another))
    return used <= room + _ROUNDING


def shares(
    waiting: Sequence[Resources],
    per_job: PerJob,
    coming: Sequence[Share],
    *,
    hosts: int | None,
    most: int | None,
    now: int,
) -> list[Share]:
    """The agents to ask for.

    Args:
        waiting: processes that no agent has room for; with `hosts`, at least one of the kind to make room for.
        per_job: as asked of the engine for each kind that waits.
        coming: agents that are under way, and will take some of them.
        hosts: the number of agents that the user has asked for; they are as large as a job may be.
        most: how many agents there can be at once.
        now: how many there are, with those under way.
    """
    if hosts is not None:
        kind = waiting[0]
        return [Share(per_job.get(kind), kind)] * max(0, hosts - now)
    room = Counter[Resources]()
    for share in coming:
        room[share.kind] += share.slots if share.slots is not None else len(waiting)
    wanted: list[Share] = []
    for kind, count in Counter(waiting).items():
        count -= room[kind]
        largest = per_job.get(kind)
        if largest is None:
            wanted += [Share(None, kind)] if count > 0 and not (now or wanted or coming) else []
            continue
        num_jobs = math.ceil(max(0, count) / largest)
        # Evenly: 5 processes of which 4 fit are 3 and 2, not 4 and 1.
        wanted += [Share(len(range(job, count, num_jobs)), kind) for job in range(num_jobs)]
    return wanted if most is None else wanted[: max(0, most - now)]


def _part(kind: Resources, per_job: PerJob, whole: int) -> float:
    return 1 / (per_job.get(kind) or whole)
