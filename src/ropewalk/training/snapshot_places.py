"""Where the snapshots of a cut lie, and whether there are enough of them to go on from it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from ropewalk.pipeline.plans import Plan, Worker
from ropewalk.pipeline.schedules.streams import Cut

#: What a process says that it keeps: epoch, worker and cut of each snapshot.
Contents = Iterable[tuple[int, Worker, Cut]]


def places_of(
    kept: Mapping[int, Contents], epochs: Collection[int], cut: Cut, own_seats: Mapping[Worker, int]
) -> dict[Worker, int]:
    """For each worker a seat where its snapshot lies; its own if it is there.

    Args:
        kept: by seat, what lies there.
        epochs: which took the snapshots, or went on from them.
        cut: of which they are.
        own_seats: where workers sit now.
    """
    found: dict[Worker, int] = {}
    for seat, contents in kept.items():
        for of_epoch, worker, of_cut in contents:
            is_nearest = worker not in found or seat == own_seats.get(worker)
            if of_epoch in epochs and of_cut == cut and is_nearest:
                found[worker] = seat
    return found


def one_per_group(places: Mapping[Worker, int]) -> dict[Worker, int]:
    """Replicas hold the same weights at a cut: for another plan those of one of them are enough."""
    first = {worker.group: worker for worker in sorted(places, reverse=True)}
    return {worker: places[worker] for worker in first.values()}


def missing_groups(plan: Plan, places: Mapping[Worker, int], *, same_plan: bool) -> list[int]:
    """Groups of a plan that lack a snapshot: the same plan needs those of all workers, another one of one each."""
    wanted = plan.workers if same_plan else one_per_group(dict.fromkeys(plan.workers, 0))
    have = set(places) if same_plan else {worker.group for worker in places}
    return sorted({worker.group for worker in wanted if (worker if same_plan else worker.group) not in have})
