"""Stages that share devices, as interleaved and V-shaped schedules want them: each group of devices runs several.

    interleaved, 2 groups, 4 stages    0 1 0 1        zb_v    0 1 1 0

What a device does in all is the sum over its stages, which a chain from the last stage to the
first does not see. So each stage is held to its part of the device's time and memory, as if
the others of its group were like it: exact where stages can be made equal, and else a bound
says how far from it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from ropewalk.errors import ScheduleInvalid
from ropewalk.pipeline.cost import fastest_speed, further_rounds, level_number
from ropewalk.pipeline.operator_costs import OperatorCosts
from ropewalk.pipeline.partitioners.exact_search.placement import Move, Moves, PlacementState, last_run
from ropewalk.pipeline.partitioners.partitioner import PlanRequest
from ropewalk.pipeline.plans import Plan, Stage
from ropewalk.pipeline.topology import Topology


def objection(request: PlanRequest, replicas: int, num_groups: int) -> ScheduleInvalid | None:
    """Why the schedule refuses plans of `num_groups` groups of devices with `replicas` replicas; None: it does not."""
    schedule = request.schedule
    stages = tuple(
        Stage(stage, (str(stage),), tuple(group * replicas + replica for replica in range(replicas)))
        for stage in range(num_groups * schedule.stages_per_worker)
        for group in (schedule.group_of(stage, num_groups),)
    )
    try:
        schedule.check(Plan(stages, schedule=schedule.name, micro_batches=request.micro_batches))
    except ScheduleInvalid as error:
        return error
    return None


def grouped_moves(request: PlanRequest) -> Iterator[tuple[Moves, int]]:
    """For each kind of device, number of replicas, and of groups that the schedule takes: the moves, and how many."""
    topology, each = request.topology, request.schedule.stages_per_worker
    num_operators = sum(not operator.is_input for operator in request.profile.operators)
    for kind in range(len(topology.kinds)):
        num = len(topology.devices_of(kind))
        for replicas in range(1, num + 1):
            for num_groups in range(1, min(num // replicas, num_operators // each) + 1):
                if request.num_stages not in (None, num_groups * each):
                    continue
                runs = _runs(topology, kind, replicas, num_groups)
                if runs is not None and objection(request, replicas, num_groups) is None:
                    devices = [runs[request.schedule.group_of(s, num_groups)] for s in range(num_groups * each)]
                    yield _chain(topology, kind, devices), len(devices)


def _runs(topology: Topology, kind: int, replicas: int, num_groups: int) -> list[tuple[int, ...]] | None:
    """The devices of each group, dealt from the last."""
    found: list[tuple[int, ...]] = []
    free = len(topology.devices_of(kind))
    for _ in range(num_groups):
        run = last_run(topology, kind, free, replicas)
        if run is None:
            return None
        found.append(run)
        free = topology.devices_of(kind).index(run[0])
    return found[::-1]


def _chain(topology: Topology, kind: int, devices: list[tuple[int, ...]]) -> Moves:
    """The only moves there are, if stages run on these devices."""

    def state(stage: int) -> PlacementState:
        """What lies behind a stage."""
        used = len({device for run in devices[stage + 1 :] for device in run})
        level = -1
        if 0 <= stage < len(devices) - 1 and devices[stage] != devices[stage + 1]:
            level = level_number(topology, devices[stage][-1], devices[stage + 1][0])
        return PlacementState((), used, -1, level, len(devices) - 1 - stage)

    stages = range(len(devices) - 1, -1, -1)
    states = [state(stage) for stage in (*stages, -1)]
    moves = [(Move(state(stage), state(stage - 1), kind, devices[stage]),) for stage in stages]
    return Moves(states[0], tuple(states), (*moves, ()))


def simple_bound_s(request: PlanRequest) -> float:
    """No plan has a smaller objective: all work once, and of further rounds each group of devices its part."""
    costs = OperatorCosts(request.profile, request.schedule.splits_backward)
    again = 2.0 if request.recompute is True else 1.0
    work_s = math.fsum(again * operator.forward_s for operator in costs.operators) + math.fsum(costs.backward_s)
    work_s /= fastest_speed(request)
    num, each, batches = request.topology.num_devices, request.schedule.stages_per_worker, request.micro_batches
    if each == 1:  # groups of any replicas: a device can do no more than all the time
        rounds_s = max(0, batches - num) * work_s / num
        return work_s + rounds_s if request.schedule.flushes else batches * work_s / num
    bounds: list[float] = []
    for replicas in range(1, num + 1):
        for num_groups in range(1, num // replicas + 1):
            if request.num_stages not in (None, num_groups * each) or objection(request, replicas, num_groups):
                continue
            if request.schedule.flushes:
                bounds.append(work_s * (1 + further_rounds(batches, replicas) / num_groups))
            else:
                bounds.append(batches * work_s / (num_groups * replicas))
    return min(bounds, default=0.0)
