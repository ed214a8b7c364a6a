"""The load of one stage of a plan on its devices: seconds of each kind of action, and bytes of memory.

A profile's times are for a device of speed 1. If an operator's backward was not measured
split, its halves follow a rule: without parameters, all of it is input gradient; with
parameters, half of it is weight gradient (a Linear multiplies two matrices of the same size
for each half).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ropewalk.errors import PlanInvalid
from ropewalk.pipeline.operator_costs import OperatorCosts
from ropewalk.pipeline.plans import Plan, Stage
from ropewalk.pipeline.profiles import Operator, Profile
from ropewalk.pipeline.topology import Topology


@dataclass(frozen=True, slots=True)
class StageLoad:
    """The load of one stage, for one micro-batch on one of its devices."""

    forward_s: float
    backward_s: float
    """Seconds of the whole backward, without the second forward of a stage that recomputes."""
    input_gradient_s: float
    weight_gradient_s: float
    weight_bytes: int
    """Bytes of its parameters, each counted once."""
    buffer_bytes: int
    saved_bytes: int
    """Bytes that a forward keeps for its backward, and bytes of the inputs that it keeps instead under recomputation.
    """
    kept_bytes: int
    held_bytes: int
    """Bytes of these that stay from the input-gradient half to the weight-gradient half."""
    recompute: bool


def stage_loads(plan: Plan, profile: Profile, topology: Topology) -> tuple[StageLoad, ...]:
    """Compute the load of each stage of a plan.

    Args:
        plan: stages on devices.
        profile: the times and sizes of the operators.
        topology: the speeds of the devices.

    Raises:
        PlanInvalid: a stage has an operator that the profile lacks, a device that the topology lacks, or devices of
            different speeds.
    """
    costs = OperatorCosts(profile), OperatorCosts(profile, splits_backward=True)
    return tuple(_load(stage, *costs, topology) for stage in plan.stages)


def _load(stage: Stage, costs: OperatorCosts, split: OperatorCosts, topology: Topology) -> StageLoad:
    speed = _speed(stage, topology)
    for id in stage.operators:
        if id not in costs.number_of:
            raise PlanInvalid(f"stage {stage.id} has operator {id!r}, which the profile does not know")
    operators = [costs.profile.by_id[id] for id in stage.operators]
    cost = costs.stage(stage.operators)
    return StageLoad(
        forward_s=cost.forward_s / speed,
        backward_s=cost.backward_s / speed,
        input_gradient_s=math.fsum(_halves(operator)[0] for operator in operators) / speed,
        weight_gradient_s=math.fsum(_halves(operator)[1] for operator in operators) / speed,
        weight_bytes=int(cost.weight_bytes),
        buffer_bytes=int(cost.buffer_bytes),
        saved_bytes=int(cost.saved_bytes),
        kept_bytes=int(cost.kept_bytes),
        held_bytes=int(split.stage(stage.operators).held_bytes),
        recompute=stage.recompute,
    )


def _speed(stage: Stage, topology: Topology) -> float:
    for device in stage.devices:
        if not 0 <= device < topology.num_devices:
            raise PlanInvalid(f"stage {stage.id} uses device {device}, but the topology has {topology.num_devices}")
    speeds = {kind.speed: kind.name for kind in map(topology.kind, stage.devices)}
    if len(speeds) > 1:
        shown = ", ".join(f"{name} (speed {speed:g})" for speed, name in sorted(speeds.items()))
        raise PlanInvalid(f"stage {stage.id} uses devices of different speeds, {shown}; replicas are equally fast")
    return topology.kind(stage.devices[0]).speed


def _halves(operator: Operator) -> tuple[float, float]:
    """The seconds of an operator's input-gradient half and of its weight-gradient half."""
    if operator.input_gradient_s is not None and operator.weight_gradient_s is not None:
        return operator.input_gradient_s, operator.weight_gradient_s
    if not operator.parameters:
        return operator.backward_s, 0.0
    return operator.backward_s / 2, operator.backward_s / 2
