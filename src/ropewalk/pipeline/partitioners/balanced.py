"""GPipe's partitioner: as many contiguous cells as devices, with the least maximum cost of a cell.

Huang et al., "GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism", 2018
(arXiv:1811.06965), section 2.2. Cells are runs of operators in topological order; their cost is the
measured time of forward and backward:

    3  1  4 | 1  5 | 9 | 2  6        4 cells, the maximum cost is 9

The paper minimises the variance of the cells' costs, and lingvo's code distributes layers in one
pass without a search. This module minimises the maximum exactly, since a pipeline waits for its
slowest stage. Of the cuts with the least maximum, it takes those with the least sum of squares,
which for equal devices have the least variance.

There are no replicas, and links cost nothing. A stage recomputes if it does not fit into memory
otherwise; GPipe always recomputes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ropewalk.errors import NoPlanFits, ProfileInvalid
from ropewalk.pipeline.cost import plan_cost
from ropewalk.pipeline.partitioners.partitioner import Partition, PlanRequest
from ropewalk.pipeline.plans import Stage
from ropewalk.quantities import shown_size


class Balanced:
    """Makes cells of least maximum cost, one on each device; the cost of a cell depends on its device's speed."""

    name = "balanced"

    def partition(self, request: PlanRequest) -> Partition:
        """Choose the stages: `num_stages` of them, or one for each device if there are enough operators.

        Raises:
            NoPlanFits: a stage does not fit into its device's memory, or the schedule needs more stages than there are
                operators.
            ProfileInvalid: all operators are inputs.
        """
        profile = request.profile
        units = [id for id in profile.order if not profile.by_id[id].is_input]
        groups = _groups(request, len(units))
        speeds = [request.topology.kind(group).speed for group in groups]
        costs = [profile.by_id[id].forward_s + profile.by_id[id].backward_s for id in units]
        cells = least_maximum_cells(costs, speeds)
        stage_of = {units[place]: stage for stage, cell in enumerate(cells) for place in cell}
        # Inputs cost nothing; each belongs to the first stage that reads it.
        for id in profile.order:
            if id not in stage_of:
                stage_of[id] = min((stage_of[target] for target in profile.targets[id]), default=0)
        operators = [tuple(id for id in profile.order if stage_of[id] == stage) for stage in range(len(groups))]
        return _fitting(request, operators, groups)


def least_maximum_cells(costs: Sequence[float], speeds: Sequence[float]) -> list[range]:
    """Cut a sequence of costs into non-empty runs, one for each speed, with the least maximum of sum over speed.

    Ties are broken by the least sum of squares, and then by the earliest cuts, compared from the last cut backwards.

    Args:
        costs: the cost of each unit, in order.
        speeds: the speed of the device of each run.

    Returns:
        The indices of each run.
    """
    sums = np.append(0.0, np.cumsum(costs))
    slowest = _dynamic_program(sums, speeds, math.inf, squared=False)[0]
    _, cuts = _dynamic_program(sums, speeds, slowest, squared=True)
    ends = [len(costs)]
    for cut in reversed(cuts[1:]):
        ends.append(int(cut[ends[-1]]))
    ends.append(0)
    return [range(start, end) for end, start in zip(ends[-2::-1], ends[:0:-1], strict=True)]


def _dynamic_program(
    sums: NDArray[np.float64], speeds: Sequence[float], limit: float, *, squared: bool
) -> tuple[float, list[NDArray[np.int_]]]:
    """The least maximum of the cells' times, or the least sum of squares with no time above `limit`; and all starts.

    `best[j]` is for the first j costs, in the cells up to the current one.
    """
    best = np.full(len(sums), np.inf)
    best[0] = 0.0
    cuts: list[NDArray[np.int_]] = []
    for number, speed in enumerate(speeds):
        following, cut = np.full(len(sums), np.inf), np.zeros(len(sums), dtype=np.int_)
        for end in range(number + 1, len(sums)):
            times = (sums[end] - sums[number:end]) / speed
            if squared:
                found = np.where(times <= limit, best[number:end] + times**2, np.inf)
            else:
                found = np.maximum(best[number:end], times)
            place = int(found.argmin())
            following[end], cut[end] = found[place], number + place
        best = following
        cuts.append(cut)
    return float(best[-1]), cuts


def _groups(request: PlanRequest, num_units: int) -> list[int]:
    """The device of each stage."""
    schedule, num_devices = request.schedule, request.topology.num_devices
    each = schedule.stages_per_worker
    if not num_units:
        raise ProfileInvalid(
            f"none of the {len(request.profile.operators)} operators is more than an input; there is nothing to cut"
        )
    if num_units < each:
        raise NoPlanFits(
            f"schedule {schedule.name} runs {each} stages on each device, and the model has {num_units} operators "
            f"beside its inputs; use a schedule with one stage on each",
            needed=each,
            available=num_units,
        )
    num_stages = request.num_stages or each * min(num_devices, num_units // each)
    if num_stages % each:
        raise NoPlanFits(
            f"schedule {schedule.name} runs {each} stages on each device, and {num_stages} is not a multiple of that; "
            f"ask for num_stages={num_stages - num_stages % each or each}",
            needed=num_stages,
            available=num_stages - num_stages % each,
        )
    return [schedule.group_of(stage, num_stages // each) for stage in range(num_stages)]


def _fitting(request: PlanRequest, operators: Sequence[tuple[str, ...]], groups: Sequence[int]) -> Partition:
    """These stages, without recomputation where they fit without it."""
    least, limit, tight = math.inf, math.inf, 0
    for recompute in (False, True) if request.recompute is None else (request.recompute,):
        stages = tuple(Stage(i, ids, (groups[i],), recompute) for i, ids in enumerate(operators))
        cost = plan_cost(request, stages)
        limits = [request.memory_limit(request.topology.kind_of[g] if request.topology.kind_of else 0) for g in groups]
        over = [size - most for size, most in zip(cost.device_bytes, limits, strict=True)]
        worst = max(range(len(over)), key=over.__getitem__)
        if over[worst] <= 0:
            return Partition(stages, cost.objective_s)
        if cost.device_bytes[worst] < least:
            least, limit, tight = cost.device_bytes[worst], limits[worst], worst
    raise NoPlanFits(
        f"balanced cells do not fit: device {groups[tight]} of stage {tight} needs {least} bytes "
        f"({shown_size(int(least))}) and has {int(limit)} ({shown_size(int(limit))}); allow that, use more stages, or "
        f"the partitioner 'exact', which looks for plans that fit",
        needed=least,
        available=limit,
    )
