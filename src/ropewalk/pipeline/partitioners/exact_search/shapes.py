"""What `exact` searches one after the other: where it must know replicas or the number of stages beforehand.

Of more than 24 devices not every number of replicas is tried, and of more than 64 they are
dealt in units of several, so that any request ends in seconds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ropewalk.pipeline.partitioners.exact_search.grouped import grouped_moves, objection
from ropewalk.pipeline.partitioners.exact_search.placement import Moves, moves
from ropewalk.pipeline.partitioners.partitioner import PlanRequest

_ALL_WIDTHS = 24
_MOST_UNITS = 64


@dataclass(frozen=True, slots=True)
class Shape:
    """The moves that stages may make, and how many of them there must be; None: any number."""

    moves: Moves
    num_stages: int | None

    @property
    def known_stages(self) -> int:
        """The number of stages, where memory depends on it."""
        return self.num_stages or 1


def shapes(request: PlanRequest, *, equal: bool = False) -> list[Shape]:
    """All there is to search.

    Args:
        request: what to plan for.
        equal: only equally many replicas of all stages, and only numbers of them that the schedule allows.
    """
    num = request.topology.num_devices
    if request.schedule.stages_per_worker > 1:
        return [Shape(there, num_stages) for there, num_stages in grouped_moves(request)]
    counted = request.num_stages is None and _memory_depends_on_stages(request)
    if not (equal or request.schedule.uniform_replicas):
        widths = widths_of(request)
        numbers = range(1, num + 1) if counted else (request.num_stages,)
        return [Shape(moves_of(request, widths, number), number) for number in numbers]
    found: list[Shape] = []
    for width in widths_of(request):
        asked = range(1, num // width + 1) if request.num_stages is None else (request.num_stages,)
        taken = [number for number in asked if objection(request, width, number) is None]
        if request.num_stages is None and not counted and len(taken) == num // width:
            found.append(Shape(moves_of(request, (width,)), None))
        else:
            found += [Shape(moves_of(request, (width,), number), number) for number in taken]
    return found


def moves_of(request: PlanRequest, widths: Sequence[int], num_stages: int | None = None) -> Moves:
    """The moves of stages of these numbers of replicas, told apart by no more than what this request's costs see."""
    return moves(request.topology, widths, num_stages, counts_used=_limits_memory(request))


def widths_of(request: PlanRequest) -> tuple[int, ...]:
    """The numbers of replicas that are tried: all of few devices; of many the small, the round, and nearly all."""
    topology, num = request.topology, request.topology.num_devices
    if num <= _ALL_WIDTHS:
        return tuple(range(1, num + 1))
    unit = next(unit for unit in range(1, num + 1) if num % unit == 0 and num // unit <= _MOST_UNITS)
    units = num // unit
    tried = {*range(1, 9), units, units - 1, units - 2, units - 4}
    tried |= {factor << power for factor in (1, 3) for power in range(units.bit_length())}
    tried |= {times * size // unit for size in topology.component_sizes for times in range(1, 9) if size % unit == 0}
    return tuple(width * unit for width in sorted(tried) if 0 < width <= units)


def tries_all_widths(request: PlanRequest) -> bool:
    """Whether every number of replicas is tried."""
    return request.topology.num_devices <= _ALL_WIDTHS


def _memory_depends_on_stages(request: PlanRequest) -> bool:
    """Whether what a stage keeps depends on how many stages there are."""
    if not _limits_memory(request):
        return False
    num, batches = request.topology.num_devices, request.micro_batches

    def kept(after: int, num_stages: int) -> tuple[int, int, int]:
        held = request.schedule.held(after, 1, batches, num_stages)
        between = request.schedule.between_halves(after, 1, batches, num_stages)
        return held, between, request.schedule.extra_versions(after, 1, num_stages)

    return any(kept(after, after + 1) != kept(after, num) for after in range(num))


def _limits_memory(request: PlanRequest) -> bool:
    return any(request.memory_limit(kind) < math.inf for kind in range(len(request.topology.kinds)))
