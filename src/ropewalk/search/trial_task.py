"""One attempt of a trial: what is sent to a place, what happens there, and what comes back.

    TrialTask ─▶ work_on: train(run, **hyperparameters) ─▶ TrialOutcome
                            └─ records: metrics, checkpoints, ... ─▶ sink ─▶ launcher

The outcome repeats the reports of the objectives, so that the search need not wait for records that are still on their
way when a short attempt ends.
"""

from __future__ import annotations

import enum
import os
import platform
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from ropewalk.processes import bootstrap
from ropewalk.processes.page import REQUEST
from ropewalk.program.program import Program
from ropewalk.tracking.checkpoints import CheckpointFolder, CheckpointPolicy
from ropewalk.tracking.current import set_current_run
from ropewalk.tracking.failure_classes import class_of_exception
from ropewalk.tracking.interruptions import PAUSE, STOP
from ropewalk.tracking.pipe_sink import sink_here
from ropewalk.tracking.records import AttemptBegan, AttemptEnded, Metrics, Record, RecordSink
from ropewalk.tracking.run import Run, RunIdentity, RunPaused, RunStopped

_MOST_NAMES = 50
_MOST_CAUSE = 20_000
"""Characters of a traceback that travel: its end."""


class Request(enum.IntEnum):
    """What is asked of an attempt under way."""

    NOTHING, PAUSE, STOP = range(3)

    def word(self, token: int) -> int:
        """Return the request as a word of the task page, for the attempt with this token and no other."""
        return token << 8 | self.value

    @classmethod
    def in_word(cls, word: int, token: int) -> Request:
        """Return what a word of the task page asks of the attempt with this token."""
        return cls(word & 0xFF) if word >> 8 == token else cls.NOTHING

    @property
    def asked(self) -> str:
        """The request as a run understands it."""
        return ("", PAUSE, STOP)[self]


@dataclass(frozen=True, slots=True)
class TrialTask:
    """All that an attempt needs.

    Attributes:
        trial: number of the trial.
        run: id of the trial's run.
        attempt: number of the attempt, from 1 on.
        token: a number above 0 that no other attempt of the search has.
        hyperparameters: nested, as the function takes them.
        metrics: names of the objectives, each with its group: "accuracy", "validation/loss".
        budget: the step at which it pauses; None: none.
        end_at: the step at which `run.steps` ends; None: as its caller says.
        name: name of the run.
        project: project of the run.
        folder: folder of the run.
        seed: seed of the trial.
        checkpoints: which checkpoints are kept.
    """

    trial: int
    run: str
    attempt: int
    token: int
    hyperparameters: Mapping[str, Any]
    metrics: tuple[str, ...]
    budget: float | None
    end_at: float | None
    name: str
    project: str
    folder: Path
    seed: int
    checkpoints: CheckpointPolicy


@dataclass(frozen=True, slots=True)
class TrialOutcome:
    """How an attempt ended.

    Attributes:
        outcome: how.
        step: the last step that it reported; 0: none.
        reports: all that it reported of the objectives, by step.
        logged: names of the metrics that it logged, for an error that lists them.
        cause: a traceback.
        failure_class: what fails in the same way has the same one.
    """

    outcome: Literal["done", "paused", "stopped", "failed"]
    step: float = 0.0
    reports: tuple[tuple[float, tuple[float, ...]], ...] = ()
    logged: tuple[str, ...] = ()
    cause: str = ""
    failure_class: str = ""


class ObjectiveNotes:
    """A sink that notes the objectives among the metrics of a run, and passes everything on.

    Args:
        sink: takes the records.
        names: names of the objectives.
        reported: called with each complete report.
    """

    def __init__(
        self,
        sink: RecordSink,
        names: tuple[str, ...],
        reported: Callable[[float, tuple[float, ...]], object] = lambda step, values: None,
    ) -> None:
        self._sink, self.names, self._reported = sink, names, reported
        self._step, self._partial = 0.0, dict[str, float]()
        self.reports: list[tuple[float, tuple[float, ...]]] = []
        self.logged: dict[str, None] = {}

    @property
    def step(self) -> float:
        """The last step with a report; 0 before the first."""
        return self.reports[-1][0] if self.reports else 0.0

    def put(self, run: str, record: Record) -> None:
        self._sink.put(run, record)
        if isinstance(record, Metrics):
            self.note(record)

    def flush(self, timeout_s: float) -> bool:
        return self._sink.flush(timeout_s)

    def note(self, metrics: Metrics) -> None:
        """Note the objectives of a record."""
        prefix = f"{metrics.group}/" if metrics.group else ""
        if len(self.logged) < _MOST_NAMES:
            self.logged.update(dict.fromkeys(f"{prefix}{name}" for name in metrics.names))
        for name, value in zip(metrics.names, metrics.values, strict=True):
            if f"{prefix}{name}" in self.names:
                if metrics.step != self._step:
                    self._step, self._partial = metrics.step, {}
                self._partial[f"{prefix}{name}"] = value
                if len(self._partial) == len(self.names):
                    report = tuple(self._partial[each] for each in self.names)
                    self.reports.append((metrics.step, report))
                    self._reported(metrics.step, report)


class TrialRun(Run):
    """The run of a trial: what the function of a search gets as its first argument.

    Args:
        task: the attempt.
        sink: takes the records.
        requests: what is asked of the attempt now.
    """

    def __init__(self, task: TrialTask, sink: RecordSink, requests: Callable[[], Request]) -> None:
        identity = RunIdentity(task.run, task.project, task.name, task.folder, task.attempt, task.seed)
        super().__init__(
            identity,
            task.hyperparameters,
            sink,
            checkpoints=task.checkpoints,
            asked=lambda: requests().asked,
            pause_at=task.budget if task.budget != task.end_at else None,
        )
        self._end_at = task.end_at
        self.trial = task.trial
        """Number of the trial in its search, from 0."""

    def steps(self, total: int | None = None, *, start: int | None = None) -> Iterator[int]:
        """Count the steps of a loop, as `Run.steps`; ends at the scheduler's last step, if it has one."""
        ends = [int(each) for each in (total, self._end_at) if each is not None]
        return super().steps(min(ends, default=None), start=start)


def work_on(
    train: Callable[..., Any],
    task: TrialTask,
    sink: RecordSink,
    requests: Callable[[], Request],
    reported: Callable[[float, tuple[float, ...]], object] = lambda step, values: None,
) -> TrialOutcome:
    """Run the function of a search for one attempt.

    Args:
        train: the user's function.
        task: the attempt.
        sink: takes its records.
        requests: what is asked of the attempt now.
        reported: called with each report of the objectives.
    """
    notes = ObjectiveNotes(sink, task.metrics, reported)
    run = TrialRun(task, notes, requests)
    sink.put(task.run, AttemptBegan(task.attempt, platform.node(), os.getpid(), time.time(), newest_step(task.folder)))
    ended, cause, failure_class = "done", "", ""
    set_current_run(run)
    try:
        _take_value(train(run, **task.hyperparameters), run, notes)
    except RunPaused:
        ended = "paused"
    except RunStopped:
        ended = "stopped"
    except Exception as error:
        ended, failure_class = "failed", class_of_exception(error)
        cause = "".join(traceback.format_exception(error))[-_MOST_CAUSE:]
    finally:
        set_current_run(None)
    sink.put(task.run, AttemptEnded(task.attempt, ended, time.time(), cause, failure_class, notes.step))
    return TrialOutcome(ended, notes.step, tuple(notes.reports), tuple(notes.logged), cause, failure_class)


def work_in_worker(train: Callable[..., Any], task: TrialTask) -> TrialOutcome:
    """Run the function of a search for one attempt in a process that an agent has started."""
    sink, context = sink_here(), bootstrap.current
    if sink is None or context is None:
        raise RuntimeError(f"trial {task.trial} runs in a process that no agent has started (pid {os.getpid()})")
    words = context.page.words
    return work_on(train, task, sink, lambda: Request.in_word(words[REQUEST], task.token))


def newest_step(folder: Path) -> float:
    """Return the step of the newest checkpoint of a run; 0 if it has none.

    Args:
        folder: folder of the run.
    """
    return max((saved.step for saved in CheckpointFolder(folder / "checkpoints").saved()), default=0.0)


def _take_value(value: Any, run: TrialRun, notes: ObjectiveNotes) -> None:
    """Take what the function returned: metrics, or a program to run.

    Raises:
        TypeError: it is neither.
    """
    step = max(1.0, run.step, notes.step)
    if value is None:
        return
    if isinstance(value, Program):
        with value.launch() as running:
            running.wait()
    elif isinstance(value, Mapping):
        run.log(cast("Mapping[str, Any]", value), step=step)
    elif notes.step != step or not notes.reports:
        run.log({notes.names[0]: value}, step=step)
