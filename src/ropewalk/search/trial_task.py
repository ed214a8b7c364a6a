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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast, runtime_checkable

from ropewalk.errors import SearchInvalid
from ropewalk.processes import bootstrap
from ropewalk.processes.page import REQUEST
from ropewalk.search.objective_notes import ObjectiveNotes
from ropewalk.search.optuna_names import missing_attribute
from ropewalk.tracking.checkpoints import CheckpointFolder, CheckpointPolicy, Restored
from ropewalk.tracking.current import set_current_run
from ropewalk.tracking.failure_classes import class_of_exception
from ropewalk.tracking.interruptions import PAUSE, STOP
from ropewalk.tracking.kept_output import keeping_output
from ropewalk.tracking.pipe_sink import sink_here
from ropewalk.tracking.records import AttemptBegan, AttemptEnded, EventHappened, RecordSink
from ropewalk.tracking.run import Run, RunIdentity, RunPaused, RunStopped
from ropewalk.tracking.run_clock import RunClock
from ropewalk.transport.one_traceback import one_traceback

if TYPE_CHECKING:  # samplers need numpy, for which a trial that does not need it would wait
    from ropewalk.search.suggesting import Suggesting, Suggestions

SUGGESTED = "suggested"
"""Kind of the event that a hyperparameter was asked for."""
_MOST_CAUSE = 20_000
"""Characters of a traceback that travel: its end."""


@runtime_checkable
class Launchable(Protocol):
    """A `Program`, as an interface: its modules take a tenth of a second to import, for which no other trial waits."""

    def launch(self) -> Any:
        """Start it; the context manager that is returned has a method `wait`."""


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
        return _ASKED[self]

    @classmethod
    def of_words(cls, asked: str) -> Request:
        """Return the request that a run understands in this way."""
        return cls(_ASKED.index(asked))


_ASKED = ("", PAUSE, STOP)


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
        reported_step: the last step whose report the search has; 0: none.
        suggesting: what chooses hyperparameters that the function asks for; None: they are all in the space.
        excluded_hosts: hosts on which it is not begun.
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
    reported_step: float = 0.0
    suggesting: Suggesting | None = None
    excluded_hosts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TrialOutcome:
    """How an attempt ended.

    Attributes:
        outcome: how the attempt ended: it returned, paused, stopped or failed.
        step: the last step of its loop; 0: none.
        reports: all that it reported of the objectives, by step.
        logged: names of the metrics that it logged, for an error that lists them.
        cause: a traceback.
        failure_class: name of the kind of failure, the same for attempts that fail in the same way.
        suggested: values that the function has asked for, and their distributions as data, by name.
        host: where it ran; empty in the launcher.
    """

    outcome: Literal["done", "paused", "stopped", "failed"]
    step: float = 0.0
    reports: tuple[tuple[float, tuple[float, ...]], ...] = ()
    logged: tuple[str, ...] = ()
    cause: str = ""
    failure_class: str = ""
    suggested: tuple[Mapping[str, Any], Mapping[str, Any]] = ({}, {})
    host: str = ""


class TrialRun(Run):
    """The run of a trial: what the function of a search gets as its first argument.

    Args:
        task: the attempt.
        sink: takes the records.
        requests: what is asked of the attempt now.
        identity: what the run is; None: as the task says.
        ended: called once, with state and cause, when the run ends; None: the search sees to that.
    """

    def __init__(
        self,
        task: TrialTask,
        sink: RecordSink,
        requests: Callable[[], Request],
        *,
        identity: RunIdentity | None = None,
        ended: Callable[[str, str], None] | None = None,
    ) -> None:
        super().__init__(
            identity or RunIdentity(task.run, task.project, task.name, task.folder, task.attempt, task.seed),
            task.hyperparameters,
            sink,
            checkpoints=task.checkpoints,
            asked=lambda: requests().asked,
            pause_at=task.budget if task.budget != task.end_at else None,
            ended=ended,
        )
        self._task, self._notes = task, sink
        self._checkpoints.report = self._last_report
        self._suggestions: Suggestions | None = None
        if task.suggesting is not None:
            self._suggestions = task.suggesting.suggestions(task.trial)
        self.trial: int = task.trial
        """Number of the trial in its search, from 0."""

    if not TYPE_CHECKING:  # for a type checker it has only what it has

        def __getattr__(self, name: str) -> Any:
            raise missing_attribute(name)

    def steps(self, total: int | None = None, *, start: int | None = None) -> Iterator[int]:
        """Count the steps of a loop, as `Run.steps`; ends at the scheduler's last step, if it has one."""
        done, budget, end_at = self._restored_step, self._task.budget, self._task.end_at
        if start is None and budget is not None and budget != end_at and done >= budget:
            # The launcher ended after the checkpoint of the budget's step was written, and before it knew of it.
            raise RunPaused(f"paused at step {done:g}", done, done)
        ends = [int(each) for each in (total, end_at) if each is not None]
        return super().steps(min(ends, default=None), start=start)

    def resumed_from(self, step: float) -> None:
        """Do nothing: an attempt of a trial begins with the newest checkpoint of its run, whose step is known."""

    def restore(self, step: float | None = None) -> Restored | None:
        """Return the newest checkpoint that is whole, as `Run.restore`."""
        found = super().restore(step)
        if found is not None:
            self._repeat_report(found)
        return found

    @property
    def last_step(self) -> float:
        """The last complete step, here or before the restored checkpoint; 0: none."""
        return max(self.step, self._restored_step)

    def _last_report(self) -> tuple[float, dict[str, float]] | None:
        reports = self._notes.reports if isinstance(self._notes, ObjectiveNotes) else ()
        return (reports[-1][0], dict(zip(self._task.metrics, reports[-1][1], strict=True))) if reports else None

    def _repeat_report(self, found: Restored) -> None:
        """Log again what was reported before a checkpoint, if its launcher was killed before that was stored."""
        saved = next((one for one in CheckpointFolder(found.path.parent).saved() if one.step == found.step), None)
        if saved is None:
            return
        step, values = saved.report or (found.step, {})
        if saved.report is None and saved.score is not None and len(self._task.metrics) == 1:  # of an earlier version
            values = {self._task.metrics[0]: saved.score}
        if step > self._task.reported_step:
            for metric in self._task.metrics:
                if metric in values:
                    group, _, name = metric.rpartition("/")
                    self.log({name: values[metric]}, step=step, group=group)

    def suggest_float(
        self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False
    ) -> float:
        """Return a hyperparameter: a number between two bounds, both inclusive. As Optuna's.

        Only in a search without a space, whose trials ask for what they need.

        Args:
            name: dotted name.
            low: lower bound.
            high: upper bound.
            step: distance between values, counted from `low`; None: any number.
            log: whether the logarithm is uniformly distributed.

        Raises:
            SearchInvalid: the search has a space, the arguments are wrong, or differ from those of an earlier call.
        """
        return self._suggest(name, lambda of: of.suggest_float(name, low, high, step=step, log=log))

    def suggest_int(self, name: str, low: int, high: int, *, step: int = 1, log: bool = False) -> int:
        """Return a hyperparameter: an integer; arguments and errors are those of `suggest_float`."""
        return self._suggest(name, lambda of: of.suggest_int(name, low, high, step=step, log=log))

    def suggest_categorical(self, name: str, choices: Sequence[Any]) -> Any:
        """Return a hyperparameter: one of several values; errors are those of `suggest_float`.

        Args:
            name: dotted name.
            choices: numbers, texts, booleans or None.
        """
        return self._suggest(name, lambda of: of.suggest_categorical(name, choices))

    def _suggest(self, name: str, ask: Callable[[Suggestions], Any]) -> Any:
        suggestions = self._suggestions
        if suggestions is None:
            raise SearchInvalid(
                f"this search has a space, so its trials get their hyperparameters as arguments; put {name!r} into the "
                "space, or leave the space out to have all of them suggested",
                parameter=name,
            )
        is_new = name not in suggestions.distributions
        value = ask(suggestions)
        if is_new:
            self.config.update({name: value})
            data = {"values": {name: value}, "distributions": suggestions.described([name])}
            self._put(EventHappened(SUGGESTED, f"{name} = {value}", time.time(), data))
        return value

    def suggested(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return all values that the function has asked for, and their distributions as data, by name."""
        suggestions = self._suggestions
        if suggestions is None:
            return {}, {}
        names = list(suggestions.distributions)
        return {name: suggestions.values[name] for name in names}, suggestions.described(names)


def work_on(
    train: Callable[..., Any],
    task: TrialTask,
    sink: RecordSink,
    requests: Callable[[], Request],
    reported: Callable[[float, tuple[float, ...]], object] = lambda step, values: None,
    make_run: Callable[[TrialTask, RecordSink, Callable[[], Request]], TrialRun] = TrialRun,
) -> TrialOutcome:
    """Run the function of a search for one attempt.

    Args:
        train: the user's function.
        task: the attempt.
        sink: takes its records.
        requests: what is asked of the attempt now.
        reported: called with each report of the objectives.
        make_run: makes what the function gets as its first argument.
    """
    notes = ObjectiveNotes(sink, task.metrics, reported)
    run, clock = make_run(task, notes, requests), RunClock()
    sink.put(task.run, AttemptBegan(task.attempt, platform.node(), os.getpid(), clock(), newest_step(task.folder)))
    ended, cause, failure_class = "done", "", ""
    set_current_run(run)
    try:
        take_value(train(run, **task.hyperparameters), run, notes)
    except RunPaused:
        ended = "paused"
    except RunStopped:
        ended = "stopped"
    except Exception as error:
        ended, failure_class = "failed", class_of_exception(error)
        cause = one_traceback(error, __name__)[-_MOST_CAUSE:]
    finally:
        set_current_run(None)
    sink.put(task.run, AttemptEnded(task.attempt, ended, clock(), cause, failure_class, notes.step))
    return TrialOutcome(
        ended, run.last_step, tuple(notes.reports), tuple(notes.logged), cause, failure_class, run.suggested()
    )


def work_in_worker(train: Callable[..., Any], task: TrialTask) -> TrialOutcome:
    """Run the function of a search for one attempt in a process that an agent has started."""
    sink, words = pipe_here(task.trial)
    with keeping_output(task.folder, task.attempt):
        outcome = work_on(train, task, sink, lambda: Request.in_word(words[REQUEST], task.token))
    return replace(outcome, host=bootstrap.current.host if bootstrap.current else "")


def pipe_here(trial: int) -> tuple[RecordSink, Sequence[int]]:
    """Return where a process that an agent has started puts its records, and the words of its task page.

    Raises:
        RuntimeError: no agent has started this one.
    """
    sink, context = sink_here(), bootstrap.current
    if sink is None or context is None:
        raise RuntimeError(f"trial {trial} runs in a process that no agent has started (pid {os.getpid()})")
    return sink, context.page.words


def newest_step(folder: Path) -> float:
    """Return the step of the newest checkpoint of a run; 0 if it has none.

    Args:
        folder: folder of the run.
    """
    return max((saved.step for saved in CheckpointFolder(folder / "checkpoints").saved()), default=0.0)


def take_value(value: Any, run: TrialRun, notes: ObjectiveNotes) -> None:
    """Take what the function of a search has returned: metrics, or a program to run.

    Args:
        value: the value that the function returned.
        run: its run.
        notes: what has noted the metrics of the run.

    Raises:
        TypeError: it is neither.
    """
    step = max(1.0, run.step, notes.step)
    if value is None:
        return
    if isinstance(value, Launchable):
        with value.launch() as running:
            running.wait()
    elif isinstance(value, Mapping):
        run.log(cast("Mapping[str, Any]", value), step=step)
    elif notes.step != step or not notes.reports:
        run.log({notes.names[0]: value}, step=step)
