"""Where snapshots lie: which process keeps whose, where they are after deaths, and which must be copied again.

    seats 0 and 1 on one host, 2 and 3 on another     0 ──▶ 2 ──▶ 1 ──▶ 3 ──▶ 0     each one's keeper
    2 dies                                            those of 0 and of 2 lie with one process each
    copies_of                                         0: from 0 to 3, 2: from 1 to 3

Each snapshot lies with the process that took it and with its keeper, on two hosts if there are two. So any one process
or host may be lost, and another one as soon as what the first one had is copied.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ropewalk.pipeline.plans import Plan, PlanWorker
from ropewalk.pipeline.schedules.streams import Cut

#: What a process says that it keeps: of each snapshot the epoch that took it, the worker, and the cut.
Contents = Iterable[tuple[int, PlanWorker, Cut]]


@dataclass(frozen=True, slots=True)
class WholeCut:
    """A cut of which all snapshots are kept: training goes on from there after a death."""

    cut: Cut
    #: The epoch that took the snapshots. Later epochs go on from them, and other plans count from 0 again.
    epoch: int
    #: The plan of that epoch.
    plan: Plan


class Copy(NamedTuple):
    """An order: one process is to get the snapshot of a worker from another one."""

    worker: PlanWorker
    source: int
    target: int


def keepers_of(hosts: Mapping[int, str]) -> dict[int, int]:
    """By seat, the seat that keeps its snapshots: on another host if there is one, itself only if there is no other.

    Args:
        hosts: by seat, the host of each process that is there.
    """
    by_host: dict[str, list[int]] = {}
    for seat in sorted(hosts):
        by_host.setdefault(hosts[seat], []).append(seat)
    # Hosts take turns, so that all keep about as much.
    order = sorted(hosts, key=lambda seat: (by_host[hosts[seat]].index(seat), seat))
    found: dict[int, int] = {}
    for index, seat in enumerate(order):
        others = order[index + 1 :] + order[:index]
        elsewhere = [other for other in others if hosts[other] != hosts[seat]]
        found[seat] = (elsewhere or others or [seat])[0]
    return found


def holders_of(kept: Mapping[int, Contents], epoch: int, cut: Cut) -> dict[PlanWorker, list[int]]:
    """For each worker the seats where its snapshot lies.

    Args:
        kept: by seat, what lies there.
        epoch: which took the snapshots.
        cut: of which they are.
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
    """For each worker one of the seats where its snapshot lies: its own if it is there.

    Args:
        holders: by worker, seats where its snapshot lies.
        own_seats: where workers sit now.
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
    """What is to be copied so that each snapshot lies with two processes, on two hosts if there are two.

    What no process has is not copied: it lies elsewhere, or is lost.

    Args:
        plan: of the snapshots.
        holders: by worker, the seats where its snapshot lies.
        hosts: by seat, the host of each process that is there.
        own_seats: where the workers of the plan sit now, if it is still carried out.
        same_plan: whether it is. Else the snapshot of one replica of each group is enough.
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
    """Replicas hold the same weights at a cut: for another plan the snapshot of one of them is enough."""
    return list({worker.group: worker for worker in sorted(workers, reverse=True)}.values())


def missing_groups(plan: Plan, there: Collection[PlanWorker], *, same_plan: bool) -> list[int]:
    """Groups of a plan that lack a snapshot: the same plan needs those of all workers, another one of one each."""
    if same_plan:
        return sorted({worker.group for worker in plan.workers if worker not in there})
    return sorted({worker.group for worker in plan.workers} - {worker.group for worker in there})
