"""Measured timelines: the actions of a plan's workers, from their records, by one clock.

    records ── offsets ──▶ one clock ── the last whole steps ──▶ MeasuredTimeline
    worker 0   F0 F1 ········ B0 B1 U   F0 F1 ··· ...              text, svg, trace, bubble, idle
    worker 1     ··F0 B0 F1 B1 U ········ F0 B0 ...

One step of a schedule with a flush is everything that a worker does up to its Steps of one
version. Without a flush there are no such boundaries, and a window is taken: from the first
forward of some piece to the last backward of a later one, with everything others did meanwhile.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import median
from typing import NamedTuple

from ropewalk.pipeline.actions import Action, ActionKind
from ropewalk.pipeline.plans import Plan, PlanWorker
from ropewalk.pipeline.schedules import Schedule, make_schedule
from ropewalk.pipeline.simulation.stage_load import StageLoad
from ropewalk.pipeline.simulation.timeline import Timeline
from ropewalk.pipeline.topology import Level, Topology
from ropewalk.training.measured_svg import measured_svg
from ropewalk.training.measured_trace import measured_trace
from ropewalk.training.recorder import WorkerRecord


class MeasuredWait(NamedTuple):
    """A wait of a worker before an action."""

    cause: str
    stage: int | None
    """The stage that it waited for, if there is one."""
    start_s: float
    end_s: float


@dataclass(frozen=True, repr=False)
class MeasuredTimeline(Timeline):
    """The measured actions of each worker, over one or several steps. Times are seconds from the first action."""

    waits: Mapping[PlanWorker, Sequence[MeasuredWait]] = field(default_factory=dict[PlanWorker, Sequence[MeasuredWait]])
    num_steps: float = 1
    """The number of steps covered; without a flush, in units of a step's micro-batches."""

    @cached_property
    def step_s(self) -> float:
        """Seconds per step; without a flush, from the rate at which micro-batches leave the last stage."""
        if self.flushes:
            return self.length_s / self.num_steps
        left = self._left_last_stage
        num = len(left) - 1
        return (left[-1] - left[0]) / num * self.plan.micro_batches if num > 0 else self.length_s

    @property
    def range_s(self) -> float:
        """The range of the timeline in seconds, per step."""
        return super().range_s / self.num_steps

    @property
    def bubble_s(self) -> float:
        """The bubble of the timeline in seconds, per step."""
        return self.range_s - max(self.compute_s.values()) / self.num_steps

    def svg(self, *, width: int = 1400, max_workers: int = 64) -> str:
        """Draw the timeline as SVG of this width in pixels; with many workers, only the first `max_workers`."""
        return measured_svg(self, width=width, max_workers=max_workers)

    def trace(self) -> bytes:
        """Return the trace as JSON for ui.perfetto.dev, with waits and an arrow for each tensor that was passed."""
        return measured_trace(self)


def measured_timeline(
    plan: Plan,
    schedule: str | Schedule,
    records: Mapping[PlanWorker, WorkerRecord],
    offsets: Mapping[PlanWorker, int] | None = None,
    *,
    num_steps: int = 1,
) -> MeasuredTimeline:
    """Return the timeline of a run's last steps, by one clock.

    Args:
        plan: the plan that ran.
        schedule: the schedule that ran.
        records: the recorded actions of each worker.
        offsets: nanoseconds to add to a worker's times to convert them to the common clock; a missing worker uses it.
        num_steps: the largest number of steps; without a flush, this many times `plan.micro_batches` pieces.

    Raises:
        ValueError: the records show no whole step.
    """
    schedule = make_schedule(schedule)
    if missing := [worker for worker in plan.workers if not len(records.get(worker, ()))]:
        raise ValueError(f"there is no record of worker {missing[0]}; nothing was run yet, or it was not asked for one")
    if schedule.flushes:
        parts, steps = _last_steps(plan, records, num_steps)
    else:
        first, last = _last_pieces(plan, records, num_steps * plan.micro_batches)
        parts, steps = window(plan, records, offsets or {}, first, last), (last - first + 1) / plan.micro_batches
    return timeline_of(plan, schedule.flushes, records, offsets or {}, parts, steps)


# --- selecting a part of the records ----------------------------------------------------------------------------------


def _last_steps(
    plan: Plan, records: Mapping[PlanWorker, WorkerRecord], num: int
) -> tuple[dict[PlanWorker, range], int]:
    """Return the last steps that all workers have completed, for a schedule with a flush."""
    found = {worker: _steps(records[worker]) for worker in plan.workers}
    whole = set[int].intersection(*(set(steps) for steps in found.values()))
    if not whole:
        raise ValueError(
            "the records show no step that all workers have done; wait for the first (drain), or record more actions"
        )
    first, last = _last_run(whole, num)
    parts = {worker: range(steps[first].start, steps[last].stop) for worker, steps in found.items()}
    return parts, last - first + 1


def _steps(record: WorkerRecord) -> dict[int, range]:
    """Return where each step is, by the version that its Steps make; the last of them ends it."""
    found: dict[int, range] = {}
    begin = 0
    for place, action in enumerate(record.actions):
        if action.kind is ActionKind.STEP:
            version = action.version or 0
            if version in found:
                begin = found[version].start
            found[version] = range(begin, place + 1)
            begin = place + 1
    if record.num_forgotten and found:
        del found[min(found)]  # its beginning may be lost
    return found


def _last_pieces(plan: Plan, records: Mapping[PlanWorker, WorkerRecord], num: int) -> tuple[int, int]:
    """Return the last pieces, at most `num`, that the first stage has finished, as (first, last).

    Pieces before a drain count, that is, those after whose backward the stage went on with the forward of another.
    """
    begun: set[int] = set()
    ended: set[int] = set()
    before_drain: set[int] = set()
    for worker in plan.workers:
        own: set[int] = set()
        for action in records[worker].actions:
            if action.stage == 0 and action.micro_batch is not None:
                if action.kind is ActionKind.FORWARD:
                    begun.add(action.micro_batch)
                    before_drain |= own
                elif action.kind in (ActionKind.BACKWARD, ActionKind.INPUT_GRADIENT):
                    own.add(action.micro_batch)
        ended |= own
    whole = begun & before_drain or begun & ended
    if not whole:
        raise ValueError("the records show no micro-batch that came back to the first stage; run or record more")
    return _last_run(whole, num)


def _last_run(numbers: Collection[int], most: int) -> tuple[int, int]:
    """Return the first and the last of the last numbers without a gap, at most `most`."""
    last = max(numbers)
    first = last
    while first - 1 in numbers and last - first + 1 < most:
        first -= 1
    return first, last


def window(
    plan: Plan, records: Mapping[PlanWorker, WorkerRecord], offsets: Mapping[PlanWorker, int], first: int, last: int
) -> dict[PlanWorker, range]:
    """Return the actions between the forward of the first piece and the backward of the last, at the first stage."""
    begins, ends = math.inf, -math.inf
    for worker in plan.workers:
        record, offset = records[worker], offsets.get(worker, 0)
        for place, action in enumerate(record.actions):
            if action.stage == 0 and action.micro_batch is not None and first <= action.micro_batch <= last:
                if action.kind is ActionKind.FORWARD:
                    begins = min(begins, record.start_ns[place] + offset)
                elif action.kind in (ActionKind.BACKWARD, ActionKind.INPUT_GRADIENT):
                    ends = max(ends, record.end_ns[place] + offset)
    parts: dict[PlanWorker, range] = {}
    for worker in plan.workers:
        record, offset = records[worker], offsets.get(worker, 0)
        inside = [
            place
            for place in range(len(record))
            if record.start_ns[place] + offset >= begins and record.end_ns[place] + offset <= ends
        ]
        parts[worker] = range(inside[0], inside[-1] + 1) if inside else range(0)
    return parts


# --- from records to a timeline ---------------------------------------------------------------------------------------


def timeline_of(
    plan: Plan,
    flushes: bool,
    records: Mapping[PlanWorker, WorkerRecord],
    offsets: Mapping[PlanWorker, int],
    parts: Mapping[PlanWorker, range],
    num_steps: float,
) -> MeasuredTimeline:
    """Return the timeline of these parts of the records."""
    zero = min(records[worker].start_ns[part[0]] + offsets.get(worker, 0) for worker, part in parts.items() if part)
    actions: dict[PlanWorker, list[Action]] = {}
    starts: dict[PlanWorker, list[float]] = {}
    ends: dict[PlanWorker, list[float]] = {}
    waits: dict[PlanWorker, list[MeasuredWait]] = {}
    for worker, part in parts.items():
        record, shift = records[worker], offsets.get(worker, 0) - zero
        actions[worker] = [record.actions[place] for place in part]
        starts[worker] = [(record.start_ns[place] + shift) / 1e9 for place in part]
        ends[worker] = [(record.end_ns[place] + shift) / 1e9 for place in part]
        waits[worker] = []
        before_s = 0.0
        for place, start_s, end_s in zip(part, starts[worker], ends[worker], strict=True):
            since_s = max(before_s, start_s - record.waited_ns[place] / 1e9)
            if record.waited_ns[place] and since_s < start_s:
                waits[worker].append(MeasuredWait(*record.cause(place), since_s, start_s))
            before_s = end_s
    timeline = MeasuredTimeline(
        plan=plan,
        topology=Topology((Level(1 + max(map(plan.device_of, plan.workers))),)),
        loads=(),
        optimizer_slots=0,
        actions=actions,
        starts=starts,
        ends=ends,
        transfers=(),
        sums=(),
        flushes=flushes,
        waits=waits,
        num_steps=num_steps,
    )
    return replace(timeline, loads=_loads(timeline))


def _loads(timeline: MeasuredTimeline) -> tuple[StageLoad, ...]:
    """Return the typical seconds of each stage; bytes are not measured by action."""
    forward = typical_s(timeline, (ActionKind.FORWARD,))
    whole = typical_s(timeline, (ActionKind.BACKWARD,))
    into, weights = (
        typical_s(timeline, (ActionKind.INPUT_GRADIENT,)),
        typical_s(timeline, (ActionKind.WEIGHT_GRADIENT,)),
    )
    return tuple(
        StageLoad(
            forward_s=forward.get(stage.id, 0.0),
            backward_s=whole.get(stage.id, into.get(stage.id, 0.0) + weights.get(stage.id, 0.0)),
            input_gradient_s=into.get(stage.id, 0.0),
            weight_gradient_s=weights.get(stage.id, 0.0),
            weight_bytes=0,
            buffer_bytes=0,
            saved_bytes=0,
            kept_bytes=0,
            held_bytes=0,
            recompute=stage.recompute,
        )
        for stage in timeline.plan.stages
    )


def typical_s(timeline: Timeline, kinds: Iterable[ActionKind]) -> dict[int, float]:
    """Return, for each stage, the median duration in seconds of actions of these kinds."""
    wanted = frozenset(kinds)
    found: dict[int, list[float]] = defaultdict(list)
    for worker in timeline.workers:
        for _, action, start_s, end_s in timeline.spans(worker):
            if action.kind in wanted:
                found[action.stage].append(end_s - start_s)
    return {stage: median(seconds) for stage, seconds in found.items()}
