"""`Trainer(track=...)`: the run that keeps the plan, losses, events, checkpoints and the last report of a trainer."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from ropewalk.pipeline.plans import Plan
from ropewalk.tracking.interruptions import PAUSE
from ropewalk.tracking.observed_run import UNOBSERVED, ObservedRun, Track, observed
from ropewalk.tracking.records import TRAINING
from ropewalk.training.checkpoint_future import CheckpointFuture
from ropewalk.training.report import TrainingReport
from ropewalk.training.step_handle import StepHandle


class TrainingObserver:
    """Writes what a trainer reports. Without a run, every method does nothing.

    Args:
        track: as for `Trainer`.
    """

    def __init__(self, track: Track) -> None:
        self._track = track
        self._num_events = 0
        self.watched = UNOBSERVED

    @property
    def is_on(self) -> bool:
        """Whether there is a run, or will be one."""
        return bool(self._track)

    @property
    def run_id(self) -> str:
        """The id of the run in the store; "" without one."""
        return "" if self.watched.run is None else self.watched.run.id

    def begin(self, name: str, plan: Plan, config: Mapping[str, object], seed: int) -> None:
        """Begin the run, with the plan.

        Args:
            name: of the trainer's processes.
            plan: the plan that is carried out first.
            config: settings of the trainer.
            seed: its seed.
        """
        facts = {
            "stages": len(plan.stages),
            "workers": len(plan.workers),
            "micro_batches": plan.micro_batches,
            "schedule": plan.schedule,
        }
        self.watched = observed(self._track, "trainer", name, {**config, **facts}, seed=seed, take=_take)
        self.watched.event("plan", str(plan), plan=msgspec.to_builtins(plan))

    def resumed_from(self, step: int) -> None:
        """Write from which step the training goes on, after a checkpoint was loaded."""
        self.watched.resumed_from(step)

    def step(self, handle: StepHandle) -> None:
        """Write the loss of a step that is done."""
        metrics = handle.metrics()
        row: dict[str, float] = {"loss": float(metrics.loss)}
        if metrics.gradient_norm is not None:
            row["gradient_norm"] = float(metrics.gradient_norm)
        if metrics.is_skipped:
            row["skipped"] = 1.0
        self.watched.row(row, handle.step + 1, TRAINING)

    def look(self, events: Sequence[str]) -> None:
        """Write the events that are new."""
        for text in events[self._num_events :]:
            self.watched.event("event", text)
        self._num_events = len(events)

    def interrupt(self, step: int) -> None:
        """Raise `RunStopped` if the run was asked to stop."""
        self.watched.interrupt(step, is_saved=False)

    def saving(self, step: int, future: CheckpointFuture) -> None:
        """Write that a checkpoint is complete, when it is; raises `RunPaused` if the run was asked to pause."""

        def written(path: Path) -> None:
            self.watched.checkpoint(step, path)

        if self.watched.run is not None:
            future.when_written(written)
        if self.watched.asked == PAUSE:
            future.wait()
            self.watched.interrupt(step, is_saved=True)

    def report(self, make: Callable[[], TrainingReport], step: int) -> None:
        """Write the last report, if any whole step was done."""
        if self.watched.run is None:
            return
        with contextlib.suppress(ValueError):
            report = make()
            figures = msgspec.to_builtins(report)
            self.watched.row(figures, step)
            self.watched.event("report", report.text(), report=figures)

    def end(self, error: BaseException | None) -> None:
        """End the run as the training has ended."""
        self.watched.end(error)


def _take(watched: ObservedRun, action: str) -> tuple[bool, str]:
    watched.ask(action)
    return True, "it pauses after its next trainer.save" if action == "pause" else "it stops before its next step"
