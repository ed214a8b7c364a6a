"""Predicts a plan's seconds and bytes by the cost model and its step time by simulation, and names the bottleneck."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import replace
from typing import Protocol, runtime_checkable

from ropewalk.pipeline.cost import PlanCost, plan_cost
from ropewalk.pipeline.partitioners.partitioner import Partition, Partitioner, PlanRequest
from ropewalk.pipeline.plans import Plan, Stage, assemble
from ropewalk.pipeline.prediction import LinkLoad, Prediction, StagePrediction
from ropewalk.pipeline.schedules.gpipe import GPipe
from ropewalk.pipeline.schedules.schedule import Schedule
from ropewalk.pipeline.simulation.simulator import simulate
from ropewalk.pipeline.simulation.steady import steady_actions
from ropewalk.pipeline.simulation.timeline import Timeline
from ropewalk.pipeline.topology_text import describe_topology
from ropewalk.quantities import shown_duration


@runtime_checkable
class OwnCosts(Protocol):
    """A partitioner with a cost model of its own, which counts seconds per profiled mini-batch."""

    @property
    def cost_model(self) -> str:
        """The name of the cost model."""
        ...

    def one_device_s(self, request: PlanRequest) -> float:
        """Return the seconds of a mini-batch with the whole model on one device."""
        ...

    def data_parallel_s(self, request: PlanRequest) -> float:
        """Return the seconds of a mini-batch with a copy of the model on every device."""
        ...


def predict(
    request: PlanRequest,
    partitioner: Partitioner,
    partition: Partition,
    plan: Plan,
    schedule: Schedule,
    planning_s: float,
) -> Prediction:
    """Predict the times and memory of a plan on the topology that it was made for.

    Args:
        request: the model, the devices and the constraints.
        partitioner: the partitioner that made the plan.
        partition: the stages that it returned.
        plan: the plan.
        schedule: the plan's schedule.
        planning_s: seconds that the search took.
    """
    cost = plan_cost(request, plan.stages)
    timeline = simulated(request, plan, schedule)
    step_s = timeline.step_s
    one, copies = _whole(request, 1), _whole(request, request.topology.num_devices)
    alike = _as_slow_as_the_slowest(request)
    copies_cost = plan_cost(alike, [copies])
    if isinstance(partitioner, OwnCosts):
        cost_model = f"the cost model of the {partitioner.cost_model}"
        one_s, copies_s = partitioner.one_device_s(request), partitioner.data_parallel_s(request)
    else:
        cost_model = "the sum of its stages" if schedule.flushes else "its slowest stage"
        one_s, copies_s = plan_cost(request, [one]).objective_s, copies_cost.objective_s
    limit = min(map(request.memory_limit, range(len(request.topology.kinds))))
    return Prediction(
        partitioner=partitioner.name,
        cost_model=cost_model,
        topology=f"{request.profile.model or 'the model'} on {describe_topology(request.topology)}",
        num_devices=request.topology.num_devices,
        objective_s=partition.objective_s,
        lower_bound_s=partition.lower_bound_s,
        least_objective_s=partition.least_objective_s or partition.objective_s,
        planning_s=planning_s,
        step_s=step_s,
        samples_per_s=request.micro_batches * request.profile.num_samples / step_s if step_s else 0.0,
        idle=timeline.idle,
        speedup_over_one=_ratio(one_s, partition.objective_s),
        speedup_over_data_parallel=_ratio(copies_s, partition.objective_s),
        simulated_speedup_over_one=_ratio(_simulated_s(request, one), step_s),
        simulated_speedup_over_data_parallel=_ratio(_simulated_s(alike, copies), step_s),
        data_parallel_bytes=copies_cost.device_bytes[0],
        memory_bytes=None if math.isinf(limit) else int(limit),
        bottleneck=_bottleneck(plan, schedule, cost, timeline),
        stages=tuple(
            StagePrediction(
                forward_s=share.forward_s,
                backward_s=share.backward_s,
                link_s=share.link_s,
                reduce_s=share.reduce_s,
                in_flight=share.in_flight,
                memory=share.memory,
                busy=busy,
            )
            for share, busy in zip(cost.stages, _busy(timeline), strict=True)
        ),
        links=_links(plan),
        notes=(*partition.notes, *filter(None, [request.profile.spread_in_words])),
    )


def simulated(request: PlanRequest, plan: Plan, schedule: Schedule) -> Timeline:
    """Simulate a plan: one step or, without a flush, enough micro-batches to show the steady rate."""
    return simulate(
        plan,
        request.profile,
        request.topology,
        steady_actions(plan, schedule),
        schedule=schedule,
        optimizer_slots=request.optimizer_slots,
    )


def _whole(request: PlanRequest, num_devices: int) -> Stage:
    """The whole model on each of `num_devices` devices, whether or not it fits."""
    return Stage(0, request.profile.order, tuple(range(num_devices)), recompute=request.recompute is True)


def _as_slow_as_the_slowest(request: PlanRequest) -> PlanRequest:
    """The request with devices of the slowest kind alone: equal shares on all devices are done when the slowest is."""
    topology = request.topology
    slowest = min(map(topology.kind, range(topology.num_devices)), key=lambda kind: kind.speed)
    return replace(request, topology=replace(topology, kinds=(slowest,), kind_of=()))


def _simulated_s(request: PlanRequest, whole: Stage) -> float:
    """Seconds of a mini-batch with whole copies: all micro-batches, and one reduction of the gradients."""
    plan = assemble(request.profile, [whole], schedule="gpipe", micro_batches=request.micro_batches)
    return simulated(request, plan, GPipe()).step_s


def _ratio(one_s: float, other_s: float) -> float:
    return one_s / other_s if other_s else 1.0


def _busy(timeline: Timeline) -> list[float]:
    """For each stage, the share of the time in which its devices compute, for any stage."""
    length_s = timeline.length_s
    shares: list[list[float]] = [[] for _ in timeline.plan.groups]
    for worker, compute_s in timeline.compute_s.items():
        shares[worker.group].append(compute_s / length_s if length_s else 0.0)
    return [sum(shares[group]) / len(shares[group]) for group in timeline.plan.placement]


def _links(plan: Plan) -> tuple[LinkLoad, ...]:
    """Bytes between stages in one step, over all edges."""
    forward: dict[tuple[int, int], int] = defaultdict(int)
    backward: dict[tuple[int, int], int] = defaultdict(int)
    for edge in plan.edges:
        for target in edge.targets:
            forward[edge.source, target] += edge.size_bytes * plan.micro_batches
            backward[edge.source, target] += edge.gradient_bytes * plan.micro_batches
    return tuple(LinkLoad(*pair, forward[pair], backward[pair]) for pair in sorted(forward))


def _bottleneck(plan: Plan, schedule: Schedule, cost: PlanCost, timeline: Timeline) -> str:
    """The bottleneck in words, as a hint what to change first."""
    share = cost.stages[cost.bottleneck]
    stage = plan.stages[cost.bottleneck]
    num_between = -(-schedule.round_size(plan, stage.id) // stage.replicas)  # micro-batches of a replica for each sum
    rate_s = share.compute_s / stage.replicas
    if share.link_s > rate_s:
        what = (
            f"the links of stage {stage.id}: {shown_duration(share.link_s)} for each micro-batch, against "
            f"{shown_duration(rate_s)} of computing"
        )
    elif share.reduce_s > num_between * share.compute_s:
        what = (
            f"summing the gradients of stage {stage.id}'s {stage.replicas} replicas: {shown_duration(share.reduce_s)}, "
            f"against {shown_duration(num_between * share.compute_s)} of computing between two sums"
        )
    else:
        on = f" on {stage.replicas} replicas" if stage.replicas > 1 else ""
        what = f"computing in stage {stage.id}: {shown_duration(share.compute_s)} for each micro-batch{on}"
    return f"{what}; {timeline.busiest}"
