"""Where snapshots are: which process keeps each one, where they are after deaths, and which must be copied again.

    seats 0 and 1 on one host, 2 and 3 on another     0 ──▶ 2 ──▶ 1 ──▶ 3 ──▶ 0     the keeper of each
    2 dies                                            the snapshots of 0 and of 2 have one holder each
    copies_of                                         0: from 0 to 3, 2: from 1 to 3

Each snapshot is held by the process that took it and by its keeper, on two hosts if there are two. So any one process
or host may be lost, and another one as soon as the snapshots of the first are copied.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ropewalk.pipeline.plans import Plan, PlanWorker
from ropewalk.pipeline.schedules.streams import Cut

Contents = Iterable[tuple[int, PlanWorker, Cut]]
"""The snapshots that a process keeps: of each the epoch that took it, the worker, and the cut."""


@dataclass(frozen=True, slots=True)
class WholeCut:
    """A cut of which all snapshots are kept: training goes on from there after a death."""

    cut: Cut
    epoch: int
    """The epoch that took the snapshots. Later epochs go on from them, and other plans count from 0 again."""
    plan: Plan
    """The plan of that epoch."""


class Copy(NamedTuple):
    """An order for one process to get the snapshot of a worker from another process."""

    worker: PlanWorker
    source: int
    target: int


def keepers_of(hosts: Mapping[int, str]) -> dict[int, int]:
    """Return, by seat, the seat that keeps its snapshots: on another host if there is one, itself only if it is alone.

    Args:
        hosts: by seat, the host of each process that is present.
    """
    by_host: dict[str, list[int]] = {}
    for seat in sorted(hosts):
        by_host.setdefault(hosts[seat], []).append(seat)
    # Hosts take turns, so that all keep about the same number.
    order = sorted(hosts, key=lambda seat: (by_host[hosts[seat]].index(seat), seat))
    found: dict[int, int] = {}
    for index, seat in enumerate(order):
        others = order[index + 1 :] + order[:index]
        elsewhere = [other for other in others if hosts[other] != hosts[seat]]
        found[seat] = (elsewhere or others or [seat])[0]
    return found


def holders_of(kept: Mapping[int, Contents], epoch: int, cut: Cut) -> dict[PlanWorker, list[int]]:
    """Return, for each worker, the seats that hold its snapshot.

    Args:
        kept: by seat, the snapshots that it keeps.
        epoch: the epoch that took the snapshots.
        cut: the cut of the snapshots.
    """
    found: dict[PlanWorker, list[int]] = {}
    for seat, contents in sorted(kept.items()):
        for of_epoch, worker, of_cut in contents:
            if (of_epoch, of_cut) == (epoch, cut):
                found.setdefault(worker, []).append(seat)
    return found


def nearest(
    holders: Mapping[PlanWorker, Collection[int]], own_seats: Mapping[PlanWorker, int]
) -> dict[PlanWorker, int]:
    """Return, for each worker, one of the seats that hold its snapshot: its own if that is one of them.

    Args:
        holders: by worker, the seats that hold its snapshot.
        own_seats: the present seats of workers.
    """
    return {
        worker: own if (own := own_seats.get(worker)) in seats and own is not None else min(seats)
        for worker, seats in holders.items()
    }


def copies_of(
    plan: Plan,
    holders: Mapping[PlanWorker, Collection[int]],
    hosts: Mapping[int, str],
    own_seats: Mapping[PlanWorker, int],
    *,
    same_plan: bool,
) -> list[Copy]:
    """Return the copies needed for each snapshot to be held by two processes, on two hosts if there are two.

    A snapshot that no process holds is not copied: it is stored elsewhere, or lost.

    Args:
        plan: the plan of the snapshots.
        holders: by worker, the seats that hold its snapshot.
        hosts: by seat, the host of each process that is present.
        own_seats: the present seats of the plan's workers, if the plan is still carried out.
        same_plan: whether it is. Otherwise the snapshot of one replica of each group is enough.
    """
    keepers = keepers_of(hosts)
    load = dict.fromkeys(hosts, 0)
    there = {worker: sorted(hosts.keys() & set(seats)) for worker, seats in sorted(holders.items())}
    for seats in there.values():
        for seat in seats:
            load[seat] += 1
    if same_plan:
        wanted = [(worker, set(there.get(worker, ()))) for worker in plan.workers]
    else:
        groups: dict[int, list[PlanWorker]] = {}
        for worker, seats in there.items():
            if seats:
                groups.setdefault(worker.group, []).append(worker)
        wanted = [
            (workers[0], {seat for worker in workers for seat in there[worker]})
            for _, workers in sorted(groups.items())
        ]
    found: list[Copy] = []
    for worker, seats in wanted:
        held_on = {hosts[seat] for seat in seats}
        others = [seat for seat in hosts if seat not in seats]
        if not seats or not others or (len(seats) > 1 and (len(held_on) > 1 or held_on >= set(hosts.values()))):
            continue
        keeper = keepers.get(own_seats.get(worker, -1))
        target = min(others, key=lambda seat: (hosts[seat] in held_on, seat != keeper, load[seat], seat))
        load[target] += 1
        found.append(Copy(worker, min(there[worker], key=lambda seat: (load[seat], seat)), target))
    return found


def one_per_group(workers: Iterable[PlanWorker]) -> list[PlanWorker]:
    """Return one replica per group: replicas hold the same weights at a cut, so another plan needs only one of them."""
    return list({worker.group: worker for worker in sorted(workers, reverse=True)}.values())


def missing_groups(plan: Plan, there: Collection[PlanWorker], *, same_plan: bool) -> list[int]:
    """Return the groups that lack a snapshot: the same plan needs those of all workers, another one of each."""
    if same_plan:
        return sorted({worker.group for worker in plan.workers if worker not in there})
    return sorted({worker.group for worker in plan.workers} - {worker.group for worker in there})
