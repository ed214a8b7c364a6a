"""The panel "pipeline": the last step of each worker as it was measured, and as it was planned.

Data, with times in seconds from the first action:

    {"schedule": "one_f_one_b", "micro_batches": 8, "step": 117, "num_steps": 1,
     "workers": [{"name": "0.0", "stages": [0], "host": "n1", "computing": 0.62}, ...],
     "step_s": 0.0963, "bubble": 0.19, "idle": 0.26,
     "planned_step_s": 0.0930, "planned_bubble": 0.17, "planned_from": "plan",
     "measured": [[worker, kind, stage, micro_batch, start_s, end_s], ...],
     "planned": [[worker, kind, stage, micro_batch, start_s, end_s], ...],
     "waits": [[worker, cause, stage, start_s, end_s], ...],
     "bottleneck": {"name": "1.0", "stages": [1], "computing": 0.81}}

`worker` is an index into "workers"; `kind` is the letter of an action ("F", "B", "I", "W", "C", "S", "R", "A", "U"; see
`pipeline.actions`); `micro_batch` is None for updates and sums; `stage` of a wait is the one that was waited for, or
None. "planned_from" is "plan" if the times are those of the plan's prediction, and "measured" if the plan has none:
then they are the measured ones, without waits for tensors and sums. "computing" and "bubble" are shares of the length;
the bubble is the share of the time in which the busiest worker does not compute. "step" is the latest that a worker
was at when the actions were taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ropewalk.pipeline.plans import Plan, PlanWorker
from ropewalk.pipeline.schedules.schedule import Schedule
from ropewalk.pipeline.simulation.timeline import Timeline
from ropewalk.training.measured import MeasuredTimeline, measured_timeline
from ropewalk.training.planned_and_measured import ideal_timeline, planned_timeline
from ropewalk.training.worker_sample import WorkerSample

_MOST_WORKERS = 64
"""Workers that are shown; the numbers cover all."""


def last_step(
    plan: Plan, schedule: Schedule, samples: Mapping[PlanWorker, WorkerSample], offsets: Mapping[PlanWorker, int]
) -> MeasuredTimeline | None:
    """Return the last step that all workers have done; None if their samples do not show one.

    Args:
        plan: the plan that runs.
        schedule: the schedule that runs.
        samples: of the workers, with actions.
        offsets: nanoseconds to add to a worker's times to bring them to one clock.
    """
    records = {worker: sample.record for worker, sample in samples.items() if sample.record is not None}
    try:
        return measured_timeline(plan, schedule, records, offsets)
    except ValueError:
        return None


def pipeline_panel(
    plan: Plan, schedule: Schedule, measured: MeasuredTimeline, samples: Mapping[PlanWorker, WorkerSample]
) -> dict[str, Any]:
    """Return the data of the panel.

    Args:
        plan: the plan that runs.
        schedule: the schedule that runs.
        measured: the result of `last_step`.
        samples: of the workers.
    """
    planned = planned_timeline(plan, schedule, measured)
    source = "measured" if planned is None else "plan"
    planned = ideal_timeline(plan, schedule, measured) if planned is None else planned
    length_s = measured.length_s or 1.0
    workers = [
        {
            "name": str(worker),
            "stages": list(plan.groups[worker.group]),
            "host": samples[worker].host if worker in samples else "",
            "computing": measured.compute_s[worker] / length_s,
        }
        for worker in plan.workers
    ]
    busiest = max(workers, key=lambda worker: float(str(worker["computing"])))
    predicted_s = plan.prediction.step_s if plan.prediction else planned.step_s
    return {
        "schedule": schedule.name,
        "micro_batches": plan.micro_batches,
        "step": max((sample.step for sample in samples.values()), default=-1),
        "num_steps": measured.num_steps,
        "workers": workers[:_MOST_WORKERS],
        "step_s": measured.step_s,
        "bubble": bubble_of(measured),
        "idle": measured.idle,
        "planned_step_s": predicted_s,
        "planned_bubble": bubble_of(planned),
        "planned_from": source,
        "measured": list(_spans(measured)),
        "planned": list(_spans(planned)),
        "waits": list(_waits(measured)),
        "bottleneck": {name: busiest[name] for name in ("name", "stages", "computing")},
    }


def bubble_of(timeline: Timeline) -> float:
    """Return the share of a timeline's length in which its busiest worker does not compute."""
    return 1 - max(timeline.compute_s.values()) / timeline.length_s if timeline.length_s else 0.0


def _spans(timeline: Timeline) -> Iterator[list[Any]]:
    for index, worker in enumerate(timeline.workers[:_MOST_WORKERS]):
        for _, action, start_s, end_s in timeline.spans(worker):
            if end_s > start_s:
                yield [index, action.kind.value, action.stage, action.micro_batch, round(start_s, 7), round(end_s, 7)]


def _waits(measured: MeasuredTimeline) -> Iterator[list[Any]]:
    for index, worker in enumerate(measured.workers[:_MOST_WORKERS]):
        for wait in measured.waits.get(worker, ()):
            yield [index, wait.cause, wait.stage, round(wait.start_s, 7), round(wait.end_s, 7)]
