"""`TrainerTarget`: a trainer as other terminals, the page and reports see it; it collects what `trainer_view` shows.

    page, ropewalk ps ── Look ──▶ TrainerTarget.view ──▶ samples of stage processes (nothing is drained)
                                       └──▶ history, losses, plan: what the thread of the trainer has recorded

Nothing runs here until somebody looks.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ropewalk.control.target import ControlTarget, new_id
from ropewalk.control.view import Kind, View
from ropewalk.pipeline.plans import Plan, PlanWorker
from ropewalk.training.loss_history import LossHistory
from ropewalk.training.measured import MeasuredTimeline
from ropewalk.training.panels.exchange import ExchangePanel
from ropewalk.training.panels.links import links_panel
from ropewalk.training.panels.losses import loss_panel
from ropewalk.training.panels.memory import memory_panel
from ropewalk.training.panels.pipeline import last_step, pipeline_panel
from ropewalk.training.panels.versions import versions_panel
from ropewalk.training.run import TrainingRun
from ropewalk.training.stage_samples import StageSamples, TimedSample
from ropewalk.training.view import TrainerMoment, trainer_view
from ropewalk.training.worker_sample import WorkerSample


class TrainerTarget(ControlTarget):
    """One trainer, seen from outside of its own thread.

    Args:
        name: of the trainer.
        losses: of its steps.
        total_steps: number of steps of the whole training; None: it is not known.
    """

    kind: Kind = "trainer"
    tells_deaths = True

    def __init__(self, name: str, losses: LossHistory, total_steps: int | None = None) -> None:
        self.id: str = new_id()
        self._name = name
        self._losses = losses
        self._total_steps = total_steps
        self._run: TrainingRun | None = None
        self.processes: ControlTarget | None = None
        """The program of the stage processes, from its launch on; None if there is none."""
        self._tracked = ""
        self._state = "starting"
        self._began = time.time()
        self._lock = threading.Lock()
        """Of what follows, which looks share."""
        self._samples: StageSamples | None = None
        self._measured: tuple[object, MeasuredTimeline] | None = None
        """The last step, and the records that it is from."""
        self._panels: dict[str, dict[str, Any]] = {}
        """The last data of panels that need samples, for looks after the end."""
        self._exchange = ExchangePanel()

    # --- what the trainer says ----------------------------------------------------------------------------------------

    def begin(self, run: TrainingRun, tracked: str = "") -> None:
        """Record that the training has begun.

        Args:
            run: carries it out.
            tracked: id of its run in the store; "" if it is not tracked.
        """
        self._samples = StageSamples(run.ask_samples)
        self._tracked, self._run, self._state = tracked, run, "running"

    def end(self, error: BaseException | None) -> None:
        """Record that the training has ended; may be called twice."""
        if self._state in ("starting", "running"):
            self._state = "completed"
            if error is not None:
                self._state = "failed" if isinstance(error, Exception) else "stopped"
        if self._run is not None and self._run.history.ended is None:
            self._run.history.ended = self._run.history.now()

    # --- what others see and do ---------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """Of the trainer."""
        return self._name

    def view(self, panels: Mapping[str, int] | None = None) -> View:
        """Return what the trainer shows now; it does not wait for steps.

        Args:
            panels: names of panels with their cursors; see `Observable.view`.
        """
        with self._lock:
            return trainer_view(self._moment(panels or {}))

    def stop(self, grace_s: float | None) -> None:
        """End the stage processes; the trainer's next call raises.

        Args:
            grace_s: as for a program.

        Raises:
            ValueError: it has no processes.
        """
        processes = self._processes("stopped")
        if self._state in ("starting", "running"):
            self._state = "stopped"
        processes.stop(grace_s)

    def act(self, action: str, process: str) -> str:
        """Kill or restart a stage process; see `ControlTarget.act`."""
        return self._processes(f"asked to {action} a process").act(action, process)

    def log_files(self) -> Mapping[str, Path]:
        """The output file of each stage process."""
        return {} if self.processes is None else self.processes.log_files()

    def stacks(self, node: str | None, timeout_s: float) -> Mapping[str, str]:
        """The Python stacks of stage processes."""
        return {} if self.processes is None else self.processes.stacks(node, timeout_s)

    def _processes(self, what: str) -> ControlTarget:
        if self.processes is None:
            raise ValueError(f"trainer {self.name} has no processes, and cannot be {what}")
        return self.processes

    # --- collecting ---------------------------------------------------------------------------------------------------

    def _moment(self, panels: Mapping[str, int]) -> TrainerMoment:
        run, at = self._run, time.time()
        program = None if self.processes is None else self.processes.view({})
        if run is None or self._samples is None:
            now_s = time.monotonic()
            return TrainerMoment(self.name, self.id, os.getpid(), self._state, at, now_s, self._began, program=program)
        is_live = self._state == "running"
        timed = self._samples.look() if is_live else self._samples.newest()
        plan, schedule = run.plan, run.schedule
        timed = _of_one_epoch(timed, plan)
        samples = {worker: one.sample for worker, one in timed.items()}
        measured = self._last_step(run, plan, samples)
        self._collect(run, plan, samples, at)
        offers = _offers(run, has_links=program is not None and len(plan.workers) > 1)
        wanted = [name for name in offers if name in panels]
        data = {name: data for name in wanted if (data := self._data(name, panels[name], run)) is not None}
        return TrainerMoment(
            self.name,
            self.id,
            os.getpid(),
            self._state,
            at,
            time.monotonic(),
            self._began,
            history=run.history,
            plan=plan,
            schedule=schedule.name,
            num_steps=run.num_steps,
            total_steps=self._total_steps,
            loss=self._losses.last(),
            rates=self._losses.rates(at) if is_live else None,
            samples=timed,
            measured=measured,
            program=program,
            seats=run.seats,
            run=self._tracked,
            panels=data,
            offers=offers,
        )

    def _last_step(
        self, run: TrainingRun, plan: Plan, samples: Mapping[PlanWorker, WorkerSample]
    ) -> MeasuredTimeline | None:
        """Return the last step of all workers; computed once for the same records."""
        key = plan, [id(sample.record) for sample in samples.values()]
        if self._measured is not None and self._measured[0] == key:
            return self._measured[1]
        began_s = time.thread_time()
        measured = last_step(plan, run.schedule, samples, run.clock_offsets(samples))
        if measured is not None:
            self._measured = key, measured
            self._panels["pipeline"] = pipeline_panel(plan, run.schedule, measured, samples)
        if self._samples is not None:
            self._samples.pay(time.thread_time() - began_s)
        return None if self._measured is None or self._measured[1].plan is not plan else self._measured[1]

    def _collect(
        self,
        run: TrainingRun,
        plan: Plan,
        samples: Mapping[PlanWorker, WorkerSample],
        at: float,
    ) -> None:
        if samples:
            self._exchange.take(samples, at)
            self._panels["links"] = links_panel(plan, samples)
            self._panels["memory"] = memory_panel(plan, samples)
            self._panels["versions"] = versions_panel(plan, run.schedule, samples)

    def _data(self, name: str, cursor: int, run: TrainingRun) -> dict[str, Any] | None:
        if name == "loss":
            return loss_panel(self._losses, cursor)
        if name == "exchange":
            return self._exchange.data(cursor)
        if name == "snapshots":
            return run.snapshots_panel()
        return self._panels.get(name)


def _offers(run: TrainingRun, *, has_links: bool) -> tuple[str, ...]:
    names = ["pipeline", "loss", "memory", "versions"]
    if has_links:
        names.append("links")
    if run.has_exchange:
        names.append("exchange")
    if run.snapshots_panel() is not None:
        names.append("snapshots")
    return tuple(names)


def _of_one_epoch(timed: Mapping[PlanWorker, TimedSample], plan: Plan) -> dict[PlanWorker, TimedSample]:
    """Return the samples that belong to the newest deployment that any of them is of."""
    newest = max((one.sample.epoch for one in timed.values()), default=0)
    workers = set(plan.workers)
    return {worker: one for worker, one in timed.items() if one.sample.epoch == newest and worker in workers}
