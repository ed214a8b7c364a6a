"""Comparison of a measured timeline with the planned one, or with an ideal one from its own times; draws both together.

simulate(plan, profile, topology), planned_timeline(plan) ──▶ planned ─┐
ideal_timeline(plan, measured)                            ──▶ ideal ───├─▶ one trace, one picture
records ───────────────────────────────────────────────────▶ measured ─┘
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from ropewalk.pipeline.actions import ActionKind
from ropewalk.pipeline.plans import Plan
from ropewalk.pipeline.profiles import Operator, Profile
from ropewalk.pipeline.schedules import Schedule, make_schedule
from ropewalk.pipeline.simulation.simulator import simulate
from ropewalk.pipeline.simulation.steady import steady_actions
from ropewalk.pipeline.simulation.timeline import Timeline
from ropewalk.pipeline.topology import Level, Topology
from ropewalk.training.measured import MeasuredTimeline, timeline_of, typical_s, window
from ropewalk.training.measured_svg import measured_svg
from ropewalk.training.measured_trace import measured_trace
from ropewalk.training.recorder import Recorder


def planned_and_measured_trace(planned: Timeline, measured: MeasuredTimeline, *, called: str = "planned") -> bytes:
    """Return both timelines in one trace as JSON: for each device a process of the plan, and below it the measured one.

    Args:
        planned: one step; or, for a schedule without a flush, a run long enough to show its rate.
        measured: the measured timeline.
        called: the label of `planned`; "ideal" for an `ideal_timeline`.
    """
    return measured_trace(measured, comparable(planned, measured), called=called)


def planned_and_measured_svg(
    planned: Timeline,
    measured: MeasuredTimeline,
    *,
    called: str = "planned",
    width: int = 1400,
    max_workers: int = 32,
) -> str:
    """Return both timelines in one picture: for each worker a row of the plan, and below it a row of the measurement.

    Args:
        planned: one step; or, for a schedule without a flush, a run long enough to show its rate.
        measured: the measured timeline.
        called: the label of `planned`; "ideal" for an `ideal_timeline`.
        width: the width of the picture, in pixels.
        max_workers: the largest number of rows; the headline covers all workers.

    Returns:
        The SVG text.
    """
    return measured_svg(measured, comparable(planned, measured), called=called, width=width, max_workers=max_workers)


def ideal_timeline(plan: Plan, schedule: str | Schedule, measured: MeasuredTimeline) -> Timeline:
    """Simulate the plan with the measured times of actions, and links and sums that take no time.

    A measured step takes longer because of waits for transfers, the work of passing tensors, and uneven times.

    Args:
        plan: the plan that ran.
        schedule: the schedule that ran.
        measured: the steps that give the times, a median for each kind of action and stage.

    Returns:
        The simulated timeline.
    """
    times = [
        _StageTimes(load.forward_s, load.backward_s, load.input_gradient_s, load.weight_gradient_s)
        for load in measured.loads
    ]
    return _simulated(plan, make_schedule(schedule), times, typical_s(measured, (ActionKind.STEP,)), measured)


def planned_timeline(plan: Plan, schedule: str | Schedule, measured: MeasuredTimeline) -> Timeline | None:
    """Simulate the plan with the times that its prediction has, and links and sums that take no time.

    Args:
        plan: the plan that ran.
        schedule: the schedule that ran.
        measured: gives the number of steps to cover.

    Returns:
        The simulated timeline; None if the plan has no prediction.
    """
    if plan.prediction is None:
        return None
    times: list[_StageTimes] = []
    for stage, one in zip(plan.stages, plan.prediction.stages, strict=True):
        # A prediction counts the second forward as part of the backward; here it is an action of its own.
        backward_s = one.backward_s - (one.forward_s if stage.recompute else 0.0)
        times.append(_StageTimes(one.forward_s, backward_s, backward_s / 2, backward_s / 2))
    return _simulated(plan, make_schedule(schedule), times, {}, measured)


class _StageTimes(NamedTuple):
    """Seconds of one stage for one micro-batch; the last two are the halves of a split backward."""

    forward_s: float
    backward_s: float
    input_gradient_s: float
    weight_gradient_s: float


def _simulated(
    plan: Plan,
    schedule: Schedule,
    times: Sequence[_StageTimes],
    update_s: Mapping[int, float],
    measured: MeasuredTimeline,
) -> Timeline:
    operators: list[Operator] = []
    for number, (stage, own) in enumerate(zip(plan.stages, times, strict=True)):
        first, *others = stage.operators
        whole = Operator(
            first,
            forward_s=own.forward_s,
            backward_s=own.backward_s,
            input_gradient_s=own.input_gradient_s if schedule.splits_backward else None,
            weight_gradient_s=own.weight_gradient_s if schedule.splits_backward else None,
            parameters={tie.parameter: 0 for tie in plan.tied if number in tie.stages},  # sums take no time
        )
        operators += [whole, *map(Operator, others)]
    chain = [operator.id for operator in operators]
    profile = Profile(tuple(operators), tuple(pairwise(chain)))
    topology = Topology((Level(1 + max(map(plan.device_of, plan.workers))),))
    actions = steady_actions(plan, schedule)
    timeline = simulate(plan, profile, topology, actions, schedule=schedule, update_s=update_s)
    return comparable(timeline, measured)


def comparable(planned: Timeline, measured: MeasuredTimeline) -> Timeline:
    """Return the part of a planned timeline that covers as much as the measured one.

    With a flush that is all of it, one step. Without a flush it is as many micro-batches from its middle, where the
    pipeline is full.
    """
    if planned.flushes or isinstance(planned, MeasuredTimeline):
        return planned
    recorders = {worker: Recorder(worker, max(1, len(planned.actions[worker]))) for worker in planned.workers}
    for worker, recorder in recorders.items():
        for span in planned.spans(worker):
            recorder.record(span.action, round(span.start_s * 1e9), round(span.end_s * 1e9))
    records = {worker: recorder.take() for worker, recorder in recorders.items()}
    num = round(measured.num_steps * measured.plan.micro_batches)
    total = sum(
        action.kind is ActionKind.FORWARD and action.stage == 0 for own in planned.actions.values() for action in own
    )
    first = max(0, (total - num) // 2)
    last = min(first + num, total) - 1
    parts = window(planned.plan, records, {}, first, last)
    return timeline_of(measured.plan, False, records, {}, parts, measured.num_steps)
