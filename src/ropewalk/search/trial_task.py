"""One attempt of a trial: what is sent to a place, what happens there, and what comes back."""

from __future__ import annotations

import enum
import inspect
import os
import platform
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ropewalk.errors import SearchInvalid
from ropewalk.program.program import Program
from ropewalk.tracking.checkpoints import CheckpointPolicy
from ropewalk.tracking.current import running_as
from ropewalk.tracking.failure_classes import class_of
from ropewalk.tracking.records import AttemptBegan, AttemptEnded, RecordSink
from ropewalk.tracking.run import Run, RunPaused, RunStopped


class Request(enum.IntEnum):
    """What is asked of an attempt under way."""

    NOTHING, PAUSE, STOP = range(3)

    def word(self, attempt: int) -> int:
        """Return the request as a word of the task page, for this attempt of a trial and no other."""
        return attempt << 8 | self.value


@dataclass(frozen=True, slots=True)
class TrialTask:
    """All that an attempt needs."""

    trial: int
    run: str
    """Id of the trial's run."""
    attempt: int
    hyperparameters: Mapping[str, Any]
    """Nested, as the function takes them."""
    metrics: tuple[str, ...]
    """Names of the objectives, each with its group: "accuracy", "validation/loss"."""
    budget: float | None
    """The step at which it pauses."""
    end_at: float | None
    """The step at which `run.steps` ends."""
    name: str
    project: str
    folder: str
    seed: int
    checkpoints: CheckpointPolicy


@dataclass(frozen=True, slots=True)
class TrialOutcome:
    """How an attempt ended."""

    outcome: Literal["done", "paused", "stopped", "failed"]
    step: float = 0.0
    """The last step that it reported."""
    reports: tuple[tuple[float, tuple[float, ...]], ...] = ()
    """All that it reported of the objectives, by step."""
    logged: tuple[str, ...] = ()
    """Names of all metrics that it logged, for an error that lists them."""
    cause: str = ""
    """A traceback."""
    failure_class: str = ""

    @classmethod
    def of_error(cls, error: BaseException) -> TrialOutcome:
        """Return the outcome of an attempt that an exception ended before it could report."""
        cause = "".join(traceback.format_exception(error))
        return cls("failed", cause=cause, failure_class=class_of(error))


@dataclass
class Objectives:
    """Notes the reports of the objectives among all that a run logs."""

    names: tuple[str, ...]
    reports: list[tuple[float, tuple[float, ...]]] = field(default_factory=list[tuple[float, tuple[float, ...]]])
    logged: set[str] = field(default_factory=set[str])
    _partial: dict[str, float] = field(default_factory=dict[str, float])
    _step: float = 0.0

    def note(self, group: str, values: Mapping[str, float], step: float) -> tuple[float, ...] | None:
        """Note metrics that were logged; returns all objectives once those of a step are complete."""
        prefix = f"{group}/" if group else ""
        self.logged.update(f"{prefix}{name}" for name in values)
        found = {full: float(values[full[len(prefix) :]]) for full in self.names if _is_of(full, prefix, values)}
        if not found:
            return None
        if step != self._step:
            self._partial, self._step = {}, step
        self._partial |= found
        if len(self._partial) < len(self.names):
            return None
        report = tuple(self._partial[name] for name in self.names)
        self.reports.append((step, report))
        return report

    @property
    def step(self) -> float:
        """The last step with a report; 0 before the first."""
        return self.reports[-1][0] if self.reports else 0.0


def _is_of(full: str, prefix: str, values: Mapping[str, float]) -> bool:
    return full.startswith(prefix) and full[len(prefix) :] in values


def work_on(
    train: Callable[..., Any], task: TrialTask, sink: RecordSink, requests: Callable[[], Request]
) -> TrialOutcome:
    """Run the function of a search for one attempt.

    Args:
        train: the user's function.
        task: the attempt.
        sink: where its records go.
        requests: what is asked of the attempt now.
    """
    objectives = Objectives(task.metrics)
    run = Run(task, sink, objectives, requests)
    sink.put(task.run, AttemptBegan(task.attempt, platform.node(), os.getpid(), time.time(), run.restored_step))
    try:
        with running_as(run):
            _finish(train(run, **task.hyperparameters), run, objectives)
        outcome = TrialOutcome("done")
    except RunPaused:
        outcome = TrialOutcome("paused")
    except RunStopped:
        outcome = TrialOutcome("stopped")
    except Exception as error:
        outcome = TrialOutcome.of_error(error)
    return outcome
