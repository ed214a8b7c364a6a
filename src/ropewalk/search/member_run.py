"""Members of a population as trials of a search: one interval of a member, in the process that trains it.

    PBTMember(state, steps, interval) ─▶ MemberRun ─▶ train(run, **hyperparameters)
                                          restore()     ◀─ the member's state, or that of the member it has copied
                                          steps()       ◀─ the steps of the interval
                                          checkpoint()  ─▶ the member's state after it

A state is encoded as in a checkpoint, so that a function gets the same from `restore` as in any other search.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ropewalk.errors import SearchInvalid
from ropewalk.last_line import last_line
from ropewalk.population.algorithms.pbt_member import PBTMember
from ropewalk.population.outcome import Outcome
from ropewalk.population.trial import Trial
from ropewalk.search.results import run_of_trial
from ropewalk.search.space import nested
from ropewalk.search.trial_task import Request, TrialOutcome, TrialRun, TrialTask, pipe_here, work_on
from ropewalk.tracking.checkpoints import CheckpointPolicy, Restored
from ropewalk.tracking.records import RecordSink
from ropewalk.tracking.state_tree import TensorBytes, TreeEncoder, decode_tree

NOTHING_TO_COMPARE = "no metric: "
"""Prefix of the failure of an interval that has logged no metric, or has set no state: no other will do better."""


@dataclass(frozen=True, slots=True)
class MemberState:
    """The state of a member: a tree whose tensors are kept apart, as in a checkpoint."""

    tree: Any
    tensors: Mapping[str, tuple[str, tuple[int, ...], bytes]]
    """Type, shape and content by name."""

    @classmethod
    def of(cls, state: Any) -> MemberState:
        """Encode a state.

        Raises:
            TypeError: it holds something that a checkpoint cannot hold; names its place.
        """
        encoder = TreeEncoder()
        tree = encoder.encode(state, "")
        return cls(tree, {name: (one.dtype, one.shape, bytes(one.content)) for name, one in encoder.tensors.items()})

    def decoded(self) -> Any:
        """Return a copy of the state that belongs to the caller."""

        def read(name: str) -> TensorBytes:
            dtype, shape, content = self.tensors[name]
            return TensorBytes(dtype, shape, bytearray(content))

        return decode_tree(self.tree, read)


class MemberRun(TrialRun):
    """The run of a member, for one interval.

    Args:
        member: the member, which gets its new state.
        total: the step after which members are done.
        task: the interval as an attempt of a trial; it ends at `task.end_at`.
        sink: takes the records.
    """

    def __init__(self, member: PBTMember, total: int, task: TrialTask, sink: RecordSink) -> None:
        super().__init__(task, sink, lambda: Request.NOTHING)
        self._member, self._last_of_all = member, total
        self._end = member.steps + member.interval
        self.has_state = False
        """Whether the state after the interval was set."""

    def restore(self, step: float | None = None) -> Restored | None:
        """Return the state after the last interval: that of the member, or of the one that it has copied.

        Raises:
            LookupError: another step is wanted; members keep the newest state.
        """
        member = self._member
        if step is not None and step != member.steps:
            raise LookupError(f"a member of a population keeps only its newest state, of step {member.steps}")
        if member.state is None:
            return None
        self._restored_step = float(member.steps)
        return Restored(member.state.decoded(), member.steps, self.folder)

    def steps(self, total: int | None = None, *, start: int | None = None) -> Iterator[int]:
        """Count the steps of this interval, as `Run.steps` those of a run; the loop ends with the interval.

        Raises:
            SearchInvalid: it would end before the members do.
        """
        if total is not None and total < self._last_of_all:
            raise SearchInvalid(
                f"run.steps({total}) ends before the members of the population do: they train for {self._last_of_all} "
                f"steps; give PopulationTraining(steps={total}), or call run.steps() without a number"
            )
        return super().steps(total, start=start)

    def checkpoint(self, state: Any, *, step: float | None = None, score: float | None = None) -> bool:
        """Set the state after the interval; earlier calls do nothing. After the last interval, also write it to a file.

        Raises:
            TypeError: the state holds something that a checkpoint cannot hold.
            ValueError: there is no step, because `steps` is not used and none was given.
        """
        at = self._step if step is None else step
        if at is not None and at < self._end:
            return False
        if callable(state) and not hasattr(state, "state_dict"):
            state = state()
        if at is not None and at >= self._last_of_all:
            super().checkpoint(state, step=at, score=score)
        self._member.state, self.has_state = MemberState.of(state), True
        return True


@dataclass(frozen=True)
class TrainMember:
    """Trains members with the function of a search: the fitness function of `ropewalk.population.evaluate`.

    Attributes:
        train: the function.
        search: id of the search's run.
        metric: the metric that decides, with its group.
        sign: 1 if it is maximised, -1 if it is minimised.
        name: name of the search.
        project: project of its runs.
        folder: folder in which each run has its own.
        total: the step after which members are done.
        checkpoints: which files are kept of the last state.
    """

    train: Callable[..., Any]
    search: str
    metric: str
    sign: int
    name: str
    project: str
    folder: Path
    total: int
    checkpoints: CheckpointPolicy

    def __call__(self, member: PBTMember, trial: Trial) -> Outcome:
        """Train a member for an interval, in a process that an agent has started."""
        return self.work(member, trial, pipe_here(member.number)[0])

    def work(self, member: PBTMember, trial: Trial, sink: RecordSink) -> Outcome:
        """Train a member for an interval.

        Args:
            member: the member.
            trial: has the seed of the interval.
            sink: takes the records of the member's run.
        """
        runs: list[MemberRun] = []

        def begin(task: TrialTask, sink: RecordSink, _: Callable[[], Request]) -> MemberRun:
            runs.append(MemberRun(member, self.total, task, sink))
            return runs[0]

        task = replace(self.task(member.number, member.hyperparameters, trial.seed), attempt=member.intervals + 1)
        task = replace(task, end_at=member.steps + member.interval)
        ended = work_on(self.train, task, sink, lambda: Request.NOTHING, make_run=begin)
        if why := self._why_not(ended, member, has_state=runs[0].has_state):
            return Outcome(float("nan"), failure=why)
        return Outcome(self.sign * ended.reports[-1][1][0])

    def task(self, number: int, hyperparameters: Mapping[str, Any], seed: int) -> TrialTask:
        """Return a member's first interval as an attempt of a trial.

        Args:
            number: number of the member.
            hyperparameters: the hyperparameters, by dotted name.
            seed: seed of the interval.
        """
        run = run_of_trial(self.search, number)
        return TrialTask(
            trial=number,
            run=run,
            attempt=1,
            token=1,
            hyperparameters=nested(hyperparameters),
            metrics=(self.metric,),
            budget=None,
            end_at=None,
            name=f"{self.name}-{number}",
            project=self.project,
            folder=self.folder / run,
            seed=seed,
            checkpoints=self.checkpoints,
        )

    def _why_not(self, ended: TrialOutcome, member: PBTMember, *, has_state: bool) -> str:
        """Return why an interval counts as failed; empty if it does not."""
        where = f"member {member.number} ended its interval at step {ended.step:g}"
        if ended.outcome != "done":
            return last_line(ended.cause) or f"{where}, and was {ended.outcome}"
        if not ended.reports:
            logged = ", ".join(map(repr, ended.logged)) or "nothing"
            return (
                f"{NOTHING_TO_COMPARE}{where} without a value of {self.metric!r}: it logged {logged}. Log it in each "
                "step with run.log, or return it from the function"
            )
        if not has_state:
            return (
                f"{NOTHING_TO_COMPARE}{where} without run.checkpoint at step {member.steps + member.interval}, so that "
                "nothing could go on from what was trained; call run.checkpoint(state) in each step"
            )
        return ""


__all__ = ["NOTHING_TO_COMPARE", "MemberRun", "MemberState", "TrainMember"]
