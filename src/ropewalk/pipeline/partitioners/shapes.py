"""What `exact` searches one after the other: where it must know replicas or the number of stages beforehand."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ropewalk.pipeline.partitioners.grouped import grouped_moves, objection
from ropewalk.pipeline.partitioners.partitioner import Request
from ropewalk.pipeline.partitioners.placement import Moves, moves


@dataclass(frozen=True, slots=True)
class Shape:
    """The moves that stages may make, and how many of them there must be; None: any number."""

    moves: Moves
    num_stages: int | None

    @property
    def known_stages(self) -> int:
        """The number of stages, where memory depends on it."""
        return self.num_stages or 1


def shapes(request: Request, *, equal: bool = False) -> list[Shape]:
    """All there is to search.

    Args:
        request: what to plan for.
        equal: only equally many replicas of all stages, of which the schedule takes so many.
    """
    topology, num = request.topology, request.topology.num_devices
    if request.schedule.stages_per_worker > 1:
        return [Shape(there, num_stages) for there, num_stages in grouped_moves(request)]
    counted = request.num_stages is None and _memory_depends_on_stages(request)
    if not (equal or request.schedule.uniform_replicas):
        widths = tuple(range(1, num + 1))
        numbers = range(1, num + 1) if counted else (request.num_stages,)
        return [Shape(moves(topology, widths, number), number) for number in numbers]
    found: list[Shape] = []
    for width in range(1, num + 1):
        asked = range(1, num // width + 1) if request.num_stages is None else (request.num_stages,)
        taken = [number for number in asked if objection(request, width, number) is None]
        if request.num_stages is None and not counted and len(taken) == num // width:
            found.append(Shape(moves(topology, (width,)), None))
        else:
            found += [Shape(moves(topology, (width,), number), number) for number in taken]
    return found


def _memory_depends_on_stages(request: Request) -> bool:
    """Whether what a stage keeps depends on how many stages there are."""
    if not any(request.memory_limit(kind) < math.inf for kind in range(len(request.topology.kinds))):
        return False
    num, batches = request.topology.num_devices, request.micro_batches

    def kept(after: int, num_stages: int) -> tuple[int, int]:
        held = request.schedule.held(after, 1, batches, num_stages)
        return held, request.schedule.extra_versions(after, 1, num_stages)

    return any(kept(after, after + 1) != kept(after, num) for after in range(num))
