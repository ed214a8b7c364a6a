"""Plans that need no search: what anybody would try first, and what a searched plan must not be worse than."""

from __future__ import annotations

import contextlib
import math

from ropewalk.errors import NoPlanFits, ScheduleInvalid
from ropewalk.pipeline.cost import objective_s
from ropewalk.pipeline.partitioners.balanced import Balanced
from ropewalk.pipeline.partitioners.partitioner import Partition, PlanRequest
from ropewalk.pipeline.plans import Stage, assemble


def simple_plans(request: PlanRequest) -> list[Partition]:
    """Those that fit and that the schedule takes, by objective: `balanced`, all on one device, copies on all of a kind.

    Raises:
        ProfileInvalid: there is nothing but inputs.
    """
    found: list[Partition] = []
    with contextlib.suppress(NoPlanFits):
        found.append(Balanced().partition(request))
    if request.num_stages in (None, 1) and request.schedule.stages_per_worker == 1:
        for kind in range(len(request.topology.kinds)):
            devices = request.topology.devices_of(kind)
            for run in {devices[:1]: None, devices: None}:
                if run and request.topology.nests(run):
                    found += _whole(request, run)
    return sorted(
        (of for of in found if objection_to(request, of.stages) is None),
        key=lambda of: (of.objective_s, len(of.stages)),
    )


def objection_to(request: PlanRequest, stages: tuple[Stage, ...]) -> ScheduleInvalid | None:
    """What the schedule has against a plan of these stages; None: nothing."""
    name, batches = request.schedule.name, request.micro_batches
    try:
        request.schedule.check(assemble(request.profile, stages, schedule=name, micro_batches=batches))
    except ScheduleInvalid as error:
        return error
    return None


def _whole(request: PlanRequest, devices: tuple[int, ...]) -> list[Partition]:
    """The whole model on each of these devices, without recomputation if it fits so; nothing if it does not fit."""
    for recompute in (False, True) if request.recompute is None else (request.recompute,):
        stages = (Stage(0, request.profile.order, devices, recompute),)
        if (seconds := objective_s(request, stages)) < math.inf:
            return [Partition(stages, seconds)]
    return []
