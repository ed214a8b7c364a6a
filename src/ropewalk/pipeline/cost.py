"""The cost of stages: seconds, bytes and memory, as pure functions.

Why these formulas: docs/theory.md, "Objective of the planner", "Cost model" and "Memory model".

`exact` minimises `objective_s`, its tests compare it with brute force over the same
function, and a plan reports it. For stage s with r_s replicas, c_s = seconds of forward and
backward of one micro-batch (with a second forward if the stage recomputes), M micro-batches:

    no flush:  M max_s max((ceil(U_s / r_s) c_s + Reduce_s) / U_s, link_s)
    flush:     sum_s c_s + max_s max((ceil(M / r_s) - 1) c_s, (M - 1) link_s) + links + exposed

- With a flush, the literature has (M - 1) c_s / r_s. The formula here rounds up and excludes
  each replica's first micro-batch, which the sum has already, so that it equals the elapsed
  time: M micro-batches on r devices take exactly ceil(M / r) c.
- U_s: micro-batches of one update of the stage: r_s with `pipedream`, M with `pipedream_2bw`.
- link_s: seconds of the stage's busiest port for one micro-batch. Each device has one port out
  and one port in at each level; values pass one way and gradients the other, and a tensor is
  counted once, whatever the number of stages that read it.
- links: seconds for the transfer of the values that a stage receives, and of their gradients,
  summed over the boundaries between neighbours.
- Reduce_s: seconds until replicas have the sum of their gradients, once per update. Exposed is
  the part that no backward of an earlier stage hides: all of it at stage 0; at other stages the
  excess over the backwards of all earlier stages, on the fastest kind of device and without
  recomputation.
- If several stages share a device, their c_s and link_s are summed before the maximum.

The objective does not count sums over tied parameters; the update itself; the wait of a stage
with few micro-batches in flight until one returns over slow links; and, without a flush, the
wait of an update for all pieces of its round to come. `plan()` therefore lets the simulator
choose among the best plans by this objective.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ropewalk.pipeline.operator_costs import OperatorCosts, StageCost
from ropewalk.pipeline.partitioners.partitioner import PlanRequest
from ropewalk.pipeline.plans import Stage
from ropewalk.pipeline.prediction import MemoryUse
from ropewalk.pipeline.topology import Level, Topology

Amount = TypeVar("Amount", float, NDArray[np.float64])
"""One number, or an array with one float64 number for each candidate."""


# --- formulas, for one stage or for arrays of candidates -------------------------------------------------------------


def reduce_s(weight_bytes: Amount, replicas: int, level: Level) -> Amount:
    """Return the seconds until replicas that this level joins have the sum of their gradients.

    They send slices to each other, and then the sums of slices: as many bytes as a ring all-reduce, by two messages one
    after the other. Two replicas send each other whole gradients, by one (`ropewalk.training.sliced_sum`).

    Args:
        weight_bytes: bytes of the stage's weights.
        replicas: number of replicas.
        level: the level that joins them.
    """
    share, messages = 2 * (replicas - 1) / replicas, min(replicas - 1, 2)
    return weight_bytes * (share / level.bandwidth) + messages * level.latency_s


def activation_bytes(
    saved_bytes: Amount,
    kept_bytes: Amount,
    held_bytes: Amount,
    in_flight: int,
    held: int,
    between: int,
    recompute: bool,
) -> Amount:
    """Return the bytes that a stage keeps for its backwards.

    Of the micro-batches, of which there are at most `held` in all, as many take the larger number of bytes as can.

    Args:
        saved_bytes: bytes that autograd saves for the backward of one micro-batch.
        kept_bytes: bytes of the stage's inputs, from which a forward can run again.
        held_bytes: bytes from the first to the second half of a split backward.
        in_flight: most micro-batches between their forward and their backward (or its first half).
        held: most micro-batches between their forward and the end of their backward.
        between: most micro-batches between the halves of their backward.
        recompute: whether the stage keeps only its inputs, and runs its forward again before the backward.
    """
    each = kept_bytes if recompute else saved_bytes
    forwards_first = each * in_flight + held_bytes * min(between, held - in_flight)
    between = min(between, held)
    halves_first = each * min(in_flight, held - between) + held_bytes * between
    most: Any = np.maximum(forwards_first, halves_first)
    return most + saved_bytes if recompute else most


def further_rounds(micro_batches: int, replicas: int) -> int:
    """Return the micro-batches that each replica runs after its first: `ceil(micro_batches / replicas) - 1`."""
    return -(-micro_batches // replicas) - 1


def update_pieces(request: PlanRequest, replicas: int) -> tuple[int, int]:
    """Return the micro-batches of one update of a stage without a flush: most of one replica, and all."""
    size = request.schedule.update_size(replicas, request.micro_batches)
    return -(-size // replicas), size


def weight_copies(optimizer_slots: int, extra_versions: int) -> int:
    """Return the memory of a device in multiples of its weights: newest, gradients, optimizer, earlier versions."""
    return 2 + optimizer_slots + extra_versions


def transfer_s(size_bytes: float, level: Level) -> float:
    """Return the seconds until a value has arrived over a level; 0 if it has no bytes.

    Args:
        size_bytes: bytes of the value.
        level: the level, with its bandwidth and latency.
    """
    return size_bytes / level.bandwidth + level.latency_s if size_bytes else 0.0


# --- whole plans ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StageShare:
    """The cost of one stage of a plan on its devices, for one micro-batch."""

    forward_s: float
    backward_s: float
    """Includes the second forward if the stage recomputes."""
    link_s: float
    """Seconds of its devices' busiest port."""
    transit_s: float
    """Seconds for the transfer of the values that it receives, and of their gradients."""
    reduce_s: float
    exposed_s: float
    """The part of `reduce_s` that no backward of an earlier stage hides."""
    in_flight: int
    memory: MemoryUse

    @property
    def compute_s(self) -> float:
        """Seconds of forward and backward."""
        return self.forward_s + self.backward_s


@dataclass(frozen=True)
class PlanCost:
    """The cost of stages on devices by the planner's objective."""

    stages: tuple[StageShare, ...]
    bottleneck_s: float
    """The slowest device's seconds per micro-batch, and the first stage that it runs."""
    bottleneck: int
    objective_s: float
    device_bytes: tuple[int, ...] = field(default=())
    """For each stage, the bytes that each of its devices needs for all stages that the device runs."""


def plan_cost(request: PlanRequest, stages: Sequence[Stage]) -> PlanCost:
    """Compute the cost of stages on devices.

    Args:
        request: the model, the devices, the schedule and the limits.
        stages: all stages of a plan, in order.
    """
    costs = OperatorCosts(request.profile, request.schedule.splits_backward)
    shares = tuple(_share(request, stages, number, costs) for number in range(len(stages)))
    flushes = request.schedule.flushes
    groups: dict[tuple[int, ...], list[int]] = {}
    for number, stage in enumerate(stages):
        groups.setdefault(stage.devices, []).append(number)
    bottleneck_s, bottleneck, steady_s = 0.0, 0, 0.0
    for devices, group in groups.items():
        work_s = math.fsum(shares[number].compute_s for number in group)
        rate_s = work_s / len(devices)
        if not flushes:
            most, size = update_pieces(request, len(devices))
            rate_s = math.fsum(most * shares[number].compute_s + shares[number].reduce_s for number in group) / size
        link_s = math.fsum(shares[number].link_s for number in group)
        if max(rate_s, link_s) > bottleneck_s:
            bottleneck_s, bottleneck = max(rate_s, link_s), group[0]
        steady_s = max(steady_s, further_rounds(request.micro_batches, len(devices)) * work_s)
        steady_s = max(steady_s, (request.micro_batches - 1) * link_s)
    total_s = request.micro_batches * bottleneck_s
    if flushes:
        total_s = steady_s + math.fsum(share.compute_s + share.transit_s + share.exposed_s for share in shares)
    device_bytes = tuple(sum(shares[number].memory.total for number in groups[stage.devices]) for stage in stages)
    return PlanCost(shares, bottleneck_s, bottleneck, total_s, device_bytes)


def objective_s(request: PlanRequest, stages: Sequence[Stage]) -> float:
    """Return the seconds per mini-batch in steady state; `inf` if a device has too little memory.

    Args:
        request: the model, the devices, the schedule and the limits.
        stages: all stages of a plan, in order.
    """
    cost = plan_cost(request, stages)
    for stage, size_bytes in zip(stages, cost.device_bytes, strict=True):
        kinds = request.topology.kind_of
        if size_bytes > request.memory_limit(kinds[stage.devices[0]] if kinds else 0):
            return math.inf
    return cost.objective_s


def _share(request: PlanRequest, stages: Sequence[Stage], number: int, costs: OperatorCosts) -> StageShare:
    topology, schedule, stage = request.topology, request.schedule, stages[number]
    cost = costs.stage(stage.operators)
    speed = topology.kind(stage.devices[0]).speed
    workers_after = len({device for later in stages[number + 1 :] for device in later.devices})
    in_flight = schedule.in_flight(workers_after, stage.replicas, request.micro_batches)
    held = schedule.held(workers_after, stage.replicas, request.micro_batches, len(stages))
    between = schedule.between_halves(workers_after, stage.replicas, request.micro_batches, len(stages))
    extra = schedule.extra_versions(workers_after, stage.replicas, len(stages))
    before = boundary(request, stages, number - 1) if number else None
    after = boundary(request, stages, number) if number + 1 < len(stages) else None
    sum_s = reduce_s(cost.weight_bytes, stage.replicas, topology.level_of(stage.devices))
    earlier_s = math.fsum(
        costs.backward_s[costs.number_of[id]] for earlier in stages[:number] for id in earlier.operators
    )
    transit_s = (
        transfer_s(cost.in_bytes, topology.levels[before]) + transfer_s(cost.in_gradient_bytes, topology.levels[before])
        if before is not None
        else 0.0
    )
    weights = int(cost.weight_bytes)
    return StageShare(
        forward_s=cost.forward_s / speed,
        backward_s=(cost.backward_s + (cost.forward_s if stage.recompute else 0.0)) / speed,
        link_s=busiest_port_s(cost, topology, before, after) / stage.replicas,
        transit_s=transit_s,
        reduce_s=sum_s,
        exposed_s=max(0.0, sum_s - earlier_s / fastest_speed(request)),
        in_flight=in_flight,
        memory=MemoryUse(
            weights=weights,
            gradients=weights,
            optimizer=weights * request.optimizer_slots,
            stashed=weights * extra,
            buffers=int(cost.buffer_bytes),
            activations=int(
                activation_bytes(
                    cost.saved_bytes, cost.kept_bytes, cost.held_bytes, in_flight, held, between, stage.recompute
                )
            ),
        ),
    )


def fastest_speed(request: PlanRequest) -> float:
    """Return the speed of the fastest device in the topology."""
    return max(request.topology.kind(device).speed for device in range(request.topology.num_devices))


def boundary(request: PlanRequest, stages: Sequence[Stage], number: int) -> int | None:
    """Return the index of the slowest level between a stage and the next; None if they are on the same devices."""
    one, other = stages[number].devices, stages[number + 1].devices
    if one == other:
        return None
    meetings = {(one[turn % len(one)], other[turn % len(other)]) for turn in range(math.lcm(len(one), len(other)))}
    return max(level_number(request.topology, *pair) for pair in meetings)


def level_number(topology: Topology, one: int, other: int) -> int:
    """Return the index of the innermost level that joins two devices."""
    return next(number for number, size in enumerate(topology.component_sizes) if one // size == other // size)


def busiest_port_s(costs: StageCost, topology: Topology, before: int | None, after: int | None) -> float:
    """Return the seconds of a stage's busiest port; each device has one port in and one port out at each level.

    Args:
        costs: the operators of the stage, for one micro-batch.
        topology: its levels have the bandwidths.
        before: index of the level that joins the stage to the one before; None: nothing to transfer.
        after: index of the level that joins the stage to the one after; None: nothing to transfer.
    """
    if before is None or after is None or before == after:
        number = before if after is None else after
        if number is None:
            return 0.0
        received = (costs.in_bytes if before is not None else 0) + (
            costs.out_gradient_bytes if after is not None else 0
        )
        sent = (costs.in_gradient_bytes if before is not None else 0) + (costs.out_bytes if after is not None else 0)
        return max(received, sent) / topology.levels[number].bandwidth
    return max(
        max(costs.in_bytes, costs.in_gradient_bytes) / topology.levels[before].bandwidth,
        max(costs.out_bytes, costs.out_gradient_bytes) / topology.levels[after].bandwidth,
    )
