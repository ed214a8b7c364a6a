"""Why no plan fits: the two numbers, and the smallest change that would do, each of them tried."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from ropewalk.errors import NoPlanFits
from ropewalk.pipeline.down_sets import BitGraph
from ropewalk.pipeline.operator_costs import OperatorCosts
from ropewalk.pipeline.partitioners.exact_search.candidates import Candidates, candidates
from ropewalk.pipeline.partitioners.exact_search.chains import ChainSearch
from ropewalk.pipeline.partitioners.exact_search.grouped import objection
from ropewalk.pipeline.partitioners.exact_search.shapes import shapes
from ropewalk.pipeline.partitioners.exact_search.stage_costs import MemoryCosts
from ropewalk.pipeline.partitioners.partitioner import PlanRequest
from ropewalk.pipeline.topology import Level, Topology
from ropewalk.quantities import shown_size


def refusal(request: PlanRequest, graph: BitGraph, sets: Sequence[int]) -> NoPlanFits:
    """The error to raise for a request that no plan over these sets fulfils."""
    costs = OperatorCosts(request.profile, request.schedule.splits_backward)
    them = candidates(costs, graph, sets)
    beyond = _least_beyond(request, them, request.recompute)
    if beyond == math.inf:
        return _no_places(request, them)
    limit = min(request.memory_limit(kind) for kind in range(len(request.topology.kinds)))
    needed = math.ceil(limit + beyond)
    ways = [f"allow {shown_size(needed)} ({needed} bytes)"]
    if request.recompute is False and _least_beyond(request, them, None) <= 0:
        ways.append("let stages recompute (recompute=None)")
    if (num := _devices_that_do(request, them)) is not None:
        ways.append(f"take {num} devices instead of {request.topology.num_devices}")
    return NoPlanFits(
        f"every plan needs at least {shown_size(needed)} on some device, and there is {shown_size(int(limit))} "
        f"({int(limit)} bytes); {', or '.join(ways)}",
        needed=needed,
        available=int(limit),
    )


def _least_beyond(request: PlanRequest, them: Candidates, recompute: bool | None) -> float:
    """The least number of bytes by which some device is over its limit; `inf` if stages find no places at all."""
    each = request.schedule.stages_per_worker
    return min(
        (
            ChainSearch(
                them,
                shape.moves,
                MemoryCosts(request, them, shape.known_stages, recompute=recompute, stages_per_device=each),
                shape.num_stages,
            ).least_slowest()
            for shape in shapes(request)
        ),
        default=math.inf,
    )


def _devices_that_do(request: PlanRequest, them: Candidates) -> int | None:
    """The least number of devices, side by side on one level, on which a plan fits; None if a few more do not help."""
    if len(request.topology.kinds) > 1:
        return None
    num = request.topology.num_devices
    for more in range(num + 1, 2 * num + 5):
        topology = Topology((Level(more),), request.topology.kinds)
        if _least_beyond(replace(request, topology=topology), them, request.recompute) <= 0:
            return more
    return None


def _no_places(request: PlanRequest, them: Candidates) -> NoPlanFits:
    """Stages cannot be placed, whatever memory there is."""
    schedule, num = request.schedule, request.topology.num_devices
    free = replace(request, memory_bytes=None)
    asked = request.num_stages
    if asked is None:
        reason = objection(request, 1, 1)
        return NoPlanFits(
            f"schedule {schedule.name} takes no plan on {num} devices with {request.micro_batches} micro-batches"
            + (f": {reason}" if reason else "; take more devices, or another schedule"),
            needed=schedule.stages_per_worker,
            available=num,
        )
    possible = [
        number
        for number in range(1, num * schedule.stages_per_worker + 1)
        if _least_beyond(replace(free, num_stages=number), them, None) < math.inf
    ]
    near = min(possible, key=lambda number: (abs(number - asked), number), default=0)
    what = f"ask for num_stages={near}" if near else "take another schedule"
    return NoPlanFits(
        f"{asked} stages of schedule {schedule.name} cannot be placed on these {num} devices; {what}",
        needed=asked,
        available=near,
    )
