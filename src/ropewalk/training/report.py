"""The report of a training run: where the time of each worker went, compared with the plan's prediction.

records  ──▶ the last whole steps ──▶ shares of computing, passing, updating, waiting (and its causes), other
counters ──▶ bytes over links, memory, versions, copies, snapshots
plan     ──▶ the same, predicted           all of it ──▶ TrainingReport ──▶ table, JSON
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

import msgspec

from ropewalk.exchange.exchange import ExchangeReport
from ropewalk.pipeline.actions import ActionKind
from ropewalk.pipeline.plans import Plan, PlanWorker
from ropewalk.pipeline.prediction import Prediction
from ropewalk.pipeline.schedules import Schedule, make_schedule
from ropewalk.pipeline.simulation.spans import COMPUTING
from ropewalk.training.counters import WorkerCounters
from ropewalk.training.measured import MeasuredTimeline, measured_timeline
from ropewalk.training.planned_and_measured import ideal_timeline
from ropewalk.training.recorder import BACK_PRESSURE, STARVED, WorkerRecord
from ropewalk.training.report_table import report_table

_STEPS = 100
"""The report covers this many of the last steps, if the records hold them."""

_LAST = "others to end"
"""The cause of waiting of a worker that finishes first, at the end of the last step."""


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """The figures of one worker. Shares are fractions of the time that the report covers, and add up to 1."""

    worker: str
    stages: tuple[int, ...]
    device: int
    host: str
    pid: int
    computing: float
    passing: float
    """Sending and receiving tensors."""
    updating: float
    """Summing gradients and running the optimizer."""
    waiting: Mapping[str, float]
    """The share of each cause of waiting, such as "starved by stage 0"."""
    other: float
    """Time between actions: the loop itself, and time that was not recorded."""
    peak_memory_bytes: int
    peak_device_bytes: int | None
    """Peak of tensors on an accelerator, in bytes; None: the worker has none."""
    predicted_memory_bytes: int | None
    """Bytes that its stages hold according to the plan; None: the plan does not say."""
    copies_per_update: float
    """Copies of the weights made for updates, per update."""
    num_snapshots: int
    snapshots: float
    """Share of the time of all steps in which snapshots kept the worker from computing."""
    exchange: ExchangeReport | None
    notes: tuple[str, ...]

    @property
    def idle(self) -> float:
        """The share of the time in which the worker was idle."""
        return sum(self.waiting.values()) + self.other


@dataclass(frozen=True, slots=True)
class StageReport:
    """Median times of one stage, for one micro-batch on one of its workers, beside the prediction."""

    stage: int
    forward_s: float
    backward_s: float
    """The whole backward, including the second forward if the stage recomputes."""
    predicted_forward_s: float | None
    predicted_backward_s: float | None
    versions_held: int
    """The largest number of versions of its weights held at once; 0: it was not counted."""


@dataclass(frozen=True, slots=True)
class LinkReport:
    """The traffic from one worker to another: activations, their gradients, and the sums over replicas.

    What an exchange sends goes over connections of its own and is not among it: `WorkerReport.exchange` has it.
    """

    source: str
    target: str
    total_bytes: int
    step_bytes: float
    predicted_step_bytes: float | None
    """Bytes per step according to the plan; None: the plan does not say, as between replicas of the same stages."""


@dataclass(frozen=True, slots=True)
class TrainingReport:
    """The measurements of a run on a plan, beside the prediction. Made by `TrainingReport.of`."""

    schedule: str
    micro_batches: int
    num_steps: float
    """The number of steps covered, and the number since the workers were last deployed."""
    num_steps_of_run: float
    step_s: float
    """Seconds per step: the median, or, without a flush, from the rate at which micro-batches leave the last stage."""
    predicted_step_s: float | None
    ideal_step_s: float
    """Seconds per step from the simulator with the measured times, if links, sums and loops took no time."""
    samples_per_s: float | None
    bubble: float
    """Share of the time in which the busiest worker does not compute."""
    idle: float
    """Share of all workers' time in which they are idle."""
    predicted_idle: float | None
    workers: tuple[WorkerReport, ...]
    stages: tuple[StageReport, ...]
    links: tuple[LinkReport, ...]

    @classmethod
    def of(
        cls,
        plan: Plan,
        prediction: Prediction | None,
        records: Mapping[PlanWorker, WorkerRecord],
        counters: Mapping[PlanWorker, WorkerCounters],
        *,
        schedule: str | Schedule | None = None,
        offsets: Mapping[PlanWorker, int] | None = None,
        samples_per_micro_batch: float | None = None,
    ) -> TrainingReport:
        """Build a report.

        Args:
            plan: the plan that ran.
            prediction: the prediction for it; None: there is none.
            records: the recorded actions of each worker.
            counters: the counters of each worker; a missing worker counts as zero.
            schedule: the schedule that ran; None: that of the plan.
            offsets: nanoseconds to add to each worker's times to bring them to one clock; None: none.
            samples_per_micro_batch: used for the rate; None: the rate is left out.

        Returns:
            The report.

        Raises:
            ValueError: the records show no whole step.
        """
        schedule = make_schedule(plan.schedule if schedule is None else schedule)
        measured = measured_timeline(plan, schedule, records, offsets, num_steps=_STEPS)
        step_s = _step_s(measured)
        num_steps_of_run = _num_steps(plan, schedule, records)
        counted = {worker: counters.get(worker, WorkerCounters(worker)) for worker in plan.workers}
        length_s = measured.length_s or 1.0
        return cls(
            schedule=schedule.name,
            micro_batches=plan.micro_batches,
            num_steps=measured.num_steps,
            num_steps_of_run=num_steps_of_run,
            step_s=step_s,
            predicted_step_s=prediction.step_s if prediction else None,
            ideal_step_s=ideal_timeline(plan, schedule, measured).step_s,
            samples_per_s=samples_per_micro_batch * plan.micro_batches / step_s
            if samples_per_micro_batch and step_s
            else None,
            bubble=1 - max(measured.compute_s.values()) / length_s,
            idle=measured.idle,
            predicted_idle=prediction.idle if prediction else None,
            workers=tuple(
                _worker(measured, worker, prediction, counted[worker], num_steps_of_run * step_s)
                for worker in plan.workers
            ),
            stages=tuple(_stage(measured, stage.id, prediction, counted.values()) for stage in plan.stages),
            links=tuple(_links(plan, prediction, counted.values(), num_steps_of_run)),
        )

    def __str__(self) -> str:
        return self.text()

    def text(self) -> str:
        """Return the report as a table for a terminal."""
        return report_table(self)

    def to_json(self) -> str:
        """Return the whole report as JSON."""
        return msgspec.json.encode(self).decode()


def _worker(
    measured: MeasuredTimeline,
    worker: PlanWorker,
    prediction: Prediction | None,
    counters: WorkerCounters,
    run_s: float,
) -> WorkerReport:
    plan, length_s = measured.plan, measured.length_s or 1.0
    spent: dict[str, float] = defaultdict(float)
    for _, action, start_s, end_s in measured.spans(worker):
        spent[_activity(action.kind)] += (end_s - start_s) / length_s
    waiting: dict[str, float] = defaultdict(float)
    for wait in measured.waits.get(worker, ()):
        waiting[_why(wait.cause, wait.stage)] += (wait.end_s - wait.start_s) / length_s
    if any(measured.waits.values()) and measured.ends[worker]:  # none: they were not recorded
        waiting[_LAST] += (measured.length_s - measured.ends[worker][-1]) / length_s
    stages = plan.groups[worker.group]
    num_updates = sum(counters.num_updates.values())
    return WorkerReport(
        worker=str(worker),
        stages=stages,
        device=plan.device_of(worker),
        host=counters.host,
        pid=counters.pid,
        computing=spent["computing"],
        passing=spent["passing"],
        updating=spent["updating"],
        waiting=dict(sorted(waiting.items(), key=lambda item: -item[1])),
        other=max(0.0, 1 - math.fsum(spent.values()) - math.fsum(waiting.values())),
        peak_memory_bytes=counters.peak_memory_bytes,
        peak_device_bytes=counters.peak_device_bytes,
        predicted_memory_bytes=sum(prediction.stages[stage].memory.total for stage in stages) if prediction else None,
        copies_per_update=sum(counters.num_copies.values()) / num_updates if num_updates else 0.0,
        num_snapshots=counters.num_snapshots,
        snapshots=counters.snapshot_s / run_s if run_s else 0.0,
        exchange=counters.exchange,
        notes=counters.notes,
    )


def _activity(kind: ActionKind) -> str:
    if kind in COMPUTING:
        return "computing"
    return "passing" if kind in (ActionKind.SEND, ActionKind.RECEIVE) else "updating"


def _why(cause: str, stage: int | None) -> str:
    if stage is None:
        return cause
    return f"{cause} {({STARVED: 'by', BACK_PRESSURE: 'of'}).get(cause, 'for')} stage {stage}"


def _stage(
    measured: MeasuredTimeline, stage: int, prediction: Prediction | None, counters: Iterable[WorkerCounters]
) -> StageReport:
    load = measured.loads[stage]
    predicted = prediction.stages[stage] if prediction else None
    again_s = load.forward_s if load.recompute else 0.0
    return StageReport(
        stage=stage,
        forward_s=load.forward_s,
        backward_s=load.backward_s + again_s,
        predicted_forward_s=predicted.forward_s if predicted else None,
        predicted_backward_s=predicted.backward_s if predicted else None,
        versions_held=max((one.versions_held.get(stage, 0) for one in counters), default=0),
    )


def _links(
    plan: Plan, prediction: Prediction | None, counters: Iterable[WorkerCounters], num_steps: float
) -> list[LinkReport]:
    sent = {(one.worker, other): size_bytes for one in counters for other, size_bytes in one.sent_bytes.items()}
    return [
        LinkReport(
            str(source),
            str(target),
            size,
            size / num_steps if num_steps else 0.0,
            predicted_link_bytes(plan, prediction, *ends),
        )
        for ends, size in sorted(sent.items())
        for source, target in [ends]
    ]


def predicted_link_bytes(
    plan: Plan, prediction: Prediction | None, source: PlanWorker, target: PlanWorker
) -> float | None:
    """Return the predicted bytes per step, which replicas that pass to each other share equally.

    None between replicas of the same stages, whose sums the plan does not count in bytes.
    """
    if prediction is None or source.group == target.group:
        return None
    total = 0
    for link in prediction.links:
        ends = plan.placement[link.source], plan.placement[link.target]
        total += link.forward_bytes if ends == (source.group, target.group) else 0
        total += link.backward_bytes if ends == (target.group, source.group) else 0
    widths = (plan.stages[plan.groups[worker.group][0]].replicas for worker in (source, target))
    return total / math.lcm(*widths)


def _step_s(measured: MeasuredTimeline) -> float:
    """Return the median time between the ends of steps, if there are enough; a single slow step does not count."""
    ends: dict[int, float] = defaultdict(float)
    for worker in measured.workers:
        for _, action, _, end_s in measured.spans(worker):
            if action.kind is ActionKind.STEP and action.version is not None:
                ends[action.version] = max(ends[action.version], end_s)
    if not measured.flushes or len(ends) < 4:
        return measured.step_s
    return median(later - earlier for earlier, later in pairwise(sorted(ends.values())))


def _num_steps(plan: Plan, schedule: Schedule, records: Mapping[PlanWorker, WorkerRecord]) -> float:
    """Return the number of steps since the records began; steps dropped from a ring are assumed as long as the rest."""
    record = records[plan.workers[0]]
    if schedule.flushes:
        seen = len({action.version for action in record.actions if action.kind is ActionKind.STEP})
    else:
        forwards = {action.micro_batch for action in record.actions if action.kind is ActionKind.FORWARD}
        seen = len(forwards) * plan.stages[0].replicas / plan.micro_batches
    whole = seen * (len(record) + record.num_forgotten) / len(record)
    return round(whole) if schedule.flushes else whole
