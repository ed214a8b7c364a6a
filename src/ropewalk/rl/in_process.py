"""Runs an experiment in one process, in lock-step: for debuggers, and as the truth that programs are compared with."""

from __future__ import annotations

import contextlib
import logging
import time
from typing import Any

from ropewalk.rl.actors.collector import Collector, calls_under_way
from ropewalk.rl.assembly import Assembly
from ropewalk.rl.blocks import Block
from ropewalk.rl.checkpoints import ExperimentCheckpoints, check_rounds, tell_beginning, tell_interruption
from ropewalk.rl.environments.histories import told_if_long
from ropewalk.rl.evaluation_record import EvaluationRecord
from ropewalk.rl.interruptions import Interruptions
from ropewalk.rl.logs.logger import Logger
from ropewalk.rl.logs.where_time_goes import TimeShares
from ropewalk.rl.progress import ProgressLog
from ropewalk.rl.result import EvaluationScores, ExperimentResult, TrainingOutcome
from ropewalk.rl.round_learner import RoundLearner
from ropewalk.rl.running import RunningExperiment
from ropewalk.rl.seeds import derived_seed
from ropewalk.rl.slow_calls import CallWatch
from ropewalk.rl.standstill import TrainingStandstill, watched
from ropewalk.rl.torch_threads import one_torch_thread
from ropewalk.rl.view import replay_settings

logger = logging.getLogger(__name__)

_EVALUATION = -1
"""Key of the calls of an evaluation, beside the numbers of groups."""


def run_in_process(assembly: Assembly, log: Logger, run: str = "") -> ExperimentResult:
    """Train to the end in this process.

    Args:
        assembly: makes the parts.
        log: where progress goes.
        run: id of its run in the store; "" if it is not tracked.

    Raises:
        RunStopped: it was asked to stop, from another terminal or the page.
        ValueError: the agent cannot be used with this environment.
    """
    deferred = assembly.experiment.checkpoint is not None
    with (
        one_torch_thread(),
        contextlib.closing(_InProcessRun(assembly, log, run)) as training,
        Interruptions(deferred=deferred) as interruptions,
        training.shown.shown(),
        watched(training.look),
    ):
        training.train(interruptions)
        return training.result()


class _InProcessRun:
    def __init__(self, assembly: Assembly, log: Logger, run: str) -> None:
        self._assembly, self._experiment = assembly, assembly.experiment
        self._log = ProgressLog(log, self._experiment.steps)
        self.shown = RunningExperiment(assembly, self._log, run=run)
        spec = assembly.spec(tells=True)
        self._rounds: RoundLearner = assembly.round_learner(spec)
        self._policies = [assembly.policy(spec, group) for group in range(assembly.groups)]
        self._evaluated, self._evaluator = assembly.policy(spec, 0), assembly.evaluator()
        self._histories = [assembly.beginning(policy) for policy in self._policies]
        """Where the collectors begin."""
        evaluation = self._experiment.evaluation
        self._evaluations = EvaluationRecord(evaluation.stop_at if evaluation else None)
        self._checkpoints = ExperimentCheckpoints(
            self._experiment.checkpoint, self._experiment.checkpoint_s, self._experiment.in_words(with_steps=False)
        )
        state = self._checkpoints.load()
        if state is not None:
            with self._checkpoints.fitting():
                self._load(state)
        else:
            self._published = [self._rounds.variables()] * (assembly.lag + 1)
        self._times = TimeShares()
        self._standstill = TrainingStandstill()
        self._calls = CallWatch()
        self._verdict = ""
        """Where the time goes, in words."""
        self._error: BaseException | None = None
        """By which a logger ends the run, in a line that was told while an environment hung."""
        self._told: set[str] = set()
        """Warnings that were given."""
        self._collectors: list[Collector] = []
        for group, policy in enumerate(self._policies):
            history, keeps = self._histories[group], self._experiment.checkpoint is not None
            self._collectors.append(assembly.collector(policy, group, history=history, keeps_history=keeps))

    def train(self, interruptions: Interruptions) -> None:
        """Collect and learn, round after round; an interruption ends it after a round."""
        counters, experiment = self._rounds.counters, self._experiment
        while counters.steps < experiment.steps and not self._evaluations.is_good_enough:
            if interruptions.came or self.shown.is_asked_to_stop:
                break
            began = time.perf_counter()
            blocks = [self._collect(group) for group in range(self._assembly.groups)]
            collected = time.perf_counter()
            before = counters.steps
            self._rounds.learn(blocks)
            self._published = [*self._published[1:], self._rounds.variables()]
            self._note(blocks, collected - began, time.perf_counter() - collected)
            if self._evaluation_is_due(before):
                self._evaluate()
            self._verdict = self._times.of_one_process()
            self._log.progress(counters, self._rounds.updates.metrics, self._verdict)
            if self._error is not None:
                raise self._error
            if self.shown.wants_look:
                tables = self._rounds.tables
                self.shown.look(replay_settings(tables.tables), tables.info())
            self._checkpoints.save_if_due(self._state)
        if self._save() and (interruptions.came or self.shown.is_asked_to_stop):
            tell_interruption(counters.steps, experiment.steps, experiment.checkpoint)
        interruptions.check()
        self.shown.check_stop()
        self._log.progress(counters, self._rounds.updates.metrics, self._times.of_one_process(), label="end")

    def look(self) -> None:
        """Tell what hangs, which is an environment here; called by a thread of its own.

        While a call lasts, the training thread tells no progress, so that this one does.
        """
        steps = sum(each.num_calls for each in (*self._collectors, self._evaluator))
        now = time.monotonic()
        calls = calls_under_way(dict(enumerate(self._collectors)))
        slow = self._calls.look(now, {**calls, _EVALUATION: self._evaluator.call_under_way()})
        for words in self._standstill.look(now, steps, self._rounds.counters.updates, slow=slow):
            logger.warning("%s", words)
            self.shown.happened("", words)
        if slow:
            updates, bound = self._rounds.updates, self._standstill.limit(now, self._verdict, slow=slow)
            try:
                self._log.progress(updates.counters.copied(), updates.metrics, bound)
            except BaseException as error:  # not an Exception: it ends the run, as it does in the training thread
                self._error = error

    def result(self) -> ExperimentResult:
        """Return what came of it."""
        outcome = TrainingOutcome(
            self._rounds.variables(),
            self._rounds.counters,
            tuple(self._rounds.updates.digests),
            tuple(self._evaluations.evaluations),
            self._evaluations.best,
        )
        return ExperimentResult(outcome, self._log.rows, self._log.seconds, self._assembly)

    def close(self) -> None:
        """Close the environments."""
        self._checkpoints.finish()
        for collector in self._collectors:
            collector.close()

    def _save(self) -> bool:
        """Save the end; returns whether that was possible."""
        try:
            self._checkpoints.save(self._state)
        except OSError as error:  # what was learned is here
            logger.error("the last checkpoint of the experiment was not saved: %s", error)
            return False
        return True

    def _collect(self, group: int) -> Block:
        self._collectors[group].load(self._published[0])
        return self._collectors[group].collect(self._experiment.agent.unroll)

    def _note(self, blocks: list[Block], collect_s: float, learn_s: float) -> None:
        for block in blocks:
            self._times.add_actor(block.seconds)
        self._times.actors["wait"] += learn_s
        self._times.learner["wait"] += collect_s
        self._times.learner["update"] += learn_s

    def _evaluation_is_due(self, steps_before: int) -> bool:
        evaluation = self._experiment.evaluation
        if evaluation is None:
            return False
        steps = self._rounds.counters.steps
        return steps // evaluation.every_steps > steps_before // evaluation.every_steps

    def _evaluate(self) -> None:
        evaluation = self._experiment.evaluation
        assert evaluation is not None
        steps, variables = self._rounds.counters.steps, self._rounds.variables()
        seed = derived_seed(self._experiment.seed, "evaluation")
        self._evaluated.load(variables)
        scores = self._evaluator.scores(self._evaluated, evaluation.episodes, seed=seed)
        evaluated = EvaluationScores(steps, variables.version, tuple(scores.tolist()))
        if self._evaluations.add(evaluated):
            self._evaluations.keep(evaluated, variables)
        self._log.evaluation(evaluated)

    def _state(self) -> dict[str, Any]:
        histories = [collector.history() for collector in self._collectors]
        for group, history in enumerate(histories):
            if (words := told_if_long(history.environment, group)) and words not in self._told:
                self._told.add(words)
                logger.warning("%s", words)
        return {
            "rounds": self._rounds.state_dict(),
            "histories": histories,
            "published": list(self._published),
            "evaluations": self._evaluations.state_dict(),
        }

    def _load(self, state: dict[str, Any]) -> None:
        assembly, folder = self._assembly, self._experiment.checkpoint
        self._published = check_rounds(state, assembly.groups, assembly.lag, folder)
        self._rounds.load_state_dict(state["rounds"])
        self._histories = list(state["histories"])
        self._evaluations.load_state_dict(state["evaluations"])
        tell_beginning(self._rounds.counters.steps, self._experiment.steps, folder)


__all__ = ["run_in_process"]
