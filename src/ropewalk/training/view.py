"""The `View` of a trainer, from what its run and its workers say at one moment. Pure.

program's view ──▶ processes ─┐
samples of workers ───────────┼──▶ View of the trainer: header, stage workers, events, data of pictures
history, losses, plan ────────┘
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import msgspec

from ropewalk.control.view import EventView, ProcessView, View
from ropewalk.pipeline.actions import ActionKind
from ropewalk.pipeline.plan_table import plan_in_words, shown_stages
from ropewalk.pipeline.plans import Plan, PlanWorker
from ropewalk.pipeline.simulation.spans import COMPUTING
from ropewalk.training.history import TrainingHistory
from ropewalk.training.loss_history import StepLoss
from ropewalk.training.measured import MeasuredTimeline
from ropewalk.training.panels.pipeline import bubble_of
from ropewalk.training.recorder import WorkerRecord
from ropewalk.training.stage_samples import TimedSample

_SLOW = 1.5
"""A replica is a straggler if its actions take this many times as long as the median of the others."""


@dataclass(frozen=True, slots=True)
class TrainerMoment:
    """What is known of a trainer at one moment.

    Attributes:
        name: of the trainer.
        id: as in `View`.
        pid: of this process.
        state: as in `View`.
        at: Unix time in seconds.
        now_s: the same moment by the clock of the samples.
        began: Unix time at which it began to start its processes.
        history: of the training; None before it has begun.
        plan: that runs; None before it is known.
        schedule: name of the schedule.
        num_steps: that were admitted.
        total_steps: of the whole training; None: it is not known.
        loss: the newest that is known.
        rates: steps and samples per second, if they are known.
        samples: the newest of each worker of the plan.
        measured: the last step that all workers have done, if one is known.
        program: the view of the program of the stage processes; None if there is none.
        seats: by worker, the index of its process in the program.
        run: id of its run in the store.
        panels: data of pictures.
        offers: names of panels.
    """

    name: str
    id: str
    pid: int
    state: str
    at: float
    now_s: float
    began: float
    history: TrainingHistory | None = None
    plan: Plan | None = None
    schedule: str = ""
    num_steps: int = 0
    total_steps: int | None = None
    loss: StepLoss | None = None
    rates: tuple[float, float] | None = None
    samples: Mapping[PlanWorker, TimedSample] = field(default_factory=dict[PlanWorker, TimedSample])
    measured: MeasuredTimeline | None = None
    program: View | None = None
    seats: Mapping[PlanWorker, int] = field(default_factory=dict[PlanWorker, int])
    run: str = ""
    panels: Mapping[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    offers: tuple[str, ...] = ()


def trainer_view(moment: TrainerMoment) -> View:
    """Return what the page and `ropewalk ps` show of a trainer."""
    history, program = moment.history, moment.program
    return View(
        kind="trainer",
        name=moment.name,
        id=moment.id,
        pid=moment.pid,
        state=moment.state,
        started=moment.began,
        at=moment.at,
        run=moment.run,
        progress=_progress(moment),
        left_s=_left_s(moment),
        facts=_facts(moment),
        last_failure="" if history is None else history.last_failure,
        processes=_processes(moment),
        events=_events(moment),
        panels=dict(moment.panels),
        offers=moment.offers,
        actions=() if program is None else program.actions,
        process_actions=() if program is None else program.process_actions,
    )


def _progress(moment: TrainerMoment) -> float | None:
    return min(1.0, moment.num_steps / moment.total_steps) if moment.total_steps else None


def _left_s(moment: TrainerMoment) -> float | None:
    if not moment.total_steps or not moment.rates or not moment.rates[0]:
        return None
    return max(0, moment.total_steps - moment.num_steps) / moment.rates[0]


def _facts(moment: TrainerMoment) -> dict[str, float | int | str]:
    history, measured, rates = moment.history, moment.measured, moment.rates
    snapshot = None if history is None else history.snapshots.newest_whole()
    known: dict[str, float | int | str | None] = {
        "step": moment.num_steps,
        "total_steps": moment.total_steps,
        "loss": None if moment.loss is None else moment.loss.loss,
        "samples_per_s": rates[1] if rates and rates[1] else None,
        "steps_per_s": rates[0] if rates else None,
        "step_time_s": None if measured is None else measured.step_s,
        "goodput": None if history is None else history.goodput(),
        "bubble": None if measured is None else bubble_of(measured),
        "bottleneck": None if measured is None else _bottleneck(measured),
        "restarts": 0 if history is None else history.num_deaths,
        "repeated_steps": history.num_repeated if history and history.num_repeated else None,
        "snapshot_step": snapshot.step if snapshot else None,
        "snapshot_age_s": max(0.0, moment.at - (snapshot.whole or snapshot.asked)) if snapshot else None,
        "plan": plan_in_words(moment.plan, moment.schedule) if moment.plan else None,
    }
    return {name: value for name, value in known.items() if value is not None}


def _bottleneck(measured: MeasuredTimeline) -> str:
    """Say which worker computes most."""
    busiest = max(measured.workers, key=lambda worker: measured.compute_s[worker])
    share = measured.compute_s[busiest] / (measured.length_s or 1.0)
    stages = measured.plan.groups[busiest.group]
    replica = f" on worker {busiest}" if measured.plan.stages[stages[0]].replicas > 1 else ""
    return f"{shown_stages(stages)}{replica} computes {100 * share:.0f} % of a step"


# --- processes --------------------------------------------------------------------------------------------------------


def _processes(moment: TrainerMoment) -> tuple[ProcessView, ...]:
    if moment.program is None:
        return ()
    spare = "" if moment.plan is None else "spare"
    worker_at = {seat: worker for worker, seat in moment.seats.items()}
    slow = stragglers(moment.samples)
    found: list[tuple[tuple[int, int], ProcessView]] = []
    for process in moment.program.processes:
        seat = int(process.name.rpartition(".")[2])
        worker = worker_at.get(seat)
        if worker is None or moment.plan is None or process.state != "running":
            is_spare = worker is None and moment.plan is not None and process.state == "running"
            doing = "keeps snapshots, and replaces what dies" if is_spare else ""
            stages = _stages(moment.plan, worker)
            own = msgspec.structs.replace(process, kind="stage", group=stages or spare, doing=doing, doing_s=0.0)
        else:
            own = _worker(moment, process, worker, is_slow=worker in slow)
        found.append(((len(worker_at) if worker is None else worker.group, seat), own))
    return tuple(process for _, process in sorted(found, key=lambda item: item[0]))


def _stages(plan: Plan | None, worker: PlanWorker | None) -> str:
    known = plan is not None and worker is not None and worker.group < len(plan.groups)
    return shown_stages(plan.groups[worker.group]) if known and plan and worker else ""


def _worker(moment: TrainerMoment, process: ProcessView, worker: PlanWorker, *, is_slow: bool) -> ProcessView:
    timed = moment.samples.get(worker)
    stages = _stages(moment.plan, worker)
    if timed is None or timed.sample.pid not in (0, process.pid):  # that of a process before it
        return msgspec.structs.replace(process, kind="stage", group=stages, doing="", doing_s=0.0)
    sample = timed.sample
    step = f"step {sample.step}: " if sample.step >= 0 else ""
    return msgspec.structs.replace(
        process,
        kind="stage",
        group=stages,
        doing=f"{step}{sample.doing}",
        doing_s=sample.doing_s,
        memory_bytes=sample.memory_bytes or process.memory_bytes,
        cpu_s=max(sample.cpu_s, process.cpu_s),
        silent_s=max(0.0, moment.now_s - timed.at_s),
        straggler=is_slow,
        done=max(0, sample.step),
        waiting=0,
    )


def stragglers(samples: Mapping[PlanWorker, TimedSample]) -> frozenset[PlanWorker]:
    """Return the replicas that are remarkably slower than the others of their stages.

    Args:
        samples: of the workers, with their newest actions.
    """
    seconds = {
        worker: _typical_s(timed.sample.record) for worker, timed in samples.items() if timed.sample.record is not None
    }
    slow: set[PlanWorker] = set()
    for worker, own_s in seconds.items():
        others = [one for other, one in seconds.items() if other.group == worker.group and other != worker]
        if others and own_s > _SLOW * median(others):
            slow.add(worker)
    return frozenset(slow)


def _typical_s(record: WorkerRecord) -> float:
    """Return the median seconds of each kind of computing, added up: one slow action does not change it."""
    found: dict[tuple[ActionKind, int], list[int]] = {}
    for action, start_ns, end_ns in zip(record.actions, record.start_ns, record.end_ns, strict=True):
        if action.kind in COMPUTING:
            found.setdefault((action.kind, action.stage), []).append(end_ns - start_ns)
    return sum(median(durations) for durations in found.values()) / 1e9


def _events(moment: TrainerMoment) -> tuple[EventView, ...]:
    """Return the trainer's events, and those of its program that the trainer does not tell.

    These are joined and lost hosts, and until the training has begun all of them, such as why a job waits in its queue.
    """
    own = () if moment.history is None else moment.history.events
    theirs = () if moment.program is None else moment.program.events
    is_begun = moment.history is not None
    more = [event for event in theirs if not is_begun or event.kind in ("join", "leave", "preemption", "scale")]
    return tuple(sorted([*own, *more], key=lambda event: event.at))
