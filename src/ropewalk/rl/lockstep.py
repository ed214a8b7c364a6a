"""Lock-step as a program: a learner that hands out blocks to collect, and actors that collect them.

    actor                                   learner
    exchange(who I am, what I hold, -)  ──▶ RoundBook.ask: block 7 of group 2, with the weights of version 7
      variables(7)                      ──▶ weights, shared by all actors of a host
      collect
    exchange(.., .., block)             ──▶ RoundBook.deliver; all blocks of round 7 are there: learn, in their order

An actor keeps the environments that it has. If it is given a group that it does not have, because another actor died,
it is told the seeds and actions that bring new environments to the same state. So blocks, and with them all weights,
have the same bits for any number of actors and deaths; see `RoundBook` and `RoundLearner`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

import ropewalk as rw
from ropewalk.rl.actors.collector import Collector, CollectorHistory, calls_under_way
from ropewalk.rl.assembly import Assembly
from ropewalk.rl.blocks import Block
from ropewalk.rl.checkpoints import check_rounds
from ropewalk.rl.counters import Counters
from ropewalk.rl.environments.histories import advanced, told_if_long
from ropewalk.rl.environments.spec import Array
from ropewalk.rl.learner_node import LearnerLook, LearnerNode, LearnerView
from ropewalk.rl.rounds import RoundBook, RoundTask
from ropewalk.rl.telling_slow_calls import slow_calls_told
from ropewalk.rl.torch_threads import one_torch_thread
from ropewalk.rl.variables import Variables
from ropewalk.rl.view import replay_settings

_ASK_AGAIN_S = 1.0
"""Seconds after which an actor that was given nothing asks again, and so hears of blocks that are late."""


@dataclass(frozen=True)
class BlockOfRound:
    """A collected block on its way to the learner.

    Attributes:
        group: number of the group of environments.
        number: number of the block, which is the round.
        block: what was collected.
        state: recurrent state of the policy after it.
        scores: scores of the episodes that had not ended after it.
        waited_s: seconds that the actor waited for this task.
    """

    group: int
    number: int
    block: Block
    state: Mapping[str, Array]
    scores: NDArray[np.float64]
    waited_s: float


@dataclass(frozen=True)
class RoundAssignment:
    """A block to collect, and where its group stands, for an actor that does not have its environments.

    Attributes:
        task: which block, with which weights.
        history: None if the actor has the environments.
    """

    task: RoundTask
    history: CollectorHistory | None


class LockstepLearner(LearnerNode):
    """The service that learns in lock-step.

    Args:
        assembly: makes the parts.
        hold: stay after the end until the program is stopped, so that the script can ask for the outcome.
    """

    def __init__(self, assembly: Assembly, *, hold: bool) -> None:
        super().__init__(assembly, hold=hold)
        spec = assembly.spec()
        self._rounds = assembly.round_learner(spec)
        start = [assembly.beginning(assembly.policy(spec, group)) for group in range(assembly.groups)]
        self._changed = threading.Condition()
        self._begin(start, [self._rounds.variables()])
        self.restore()

    @property
    def counters(self) -> Counters:
        """See `LearnerNode`."""
        return self._rounds.counters

    @property
    def view(self) -> LearnerView:
        """See `LearnerNode`."""
        with self._changed:
            newest = self._published[max(self._published)].value
        updates = self._rounds.updates
        return LearnerView(self._rounds.counters, updates.metrics, tuple(updates.digests), newest)

    @rw.concurrent(4096)
    @rw.idempotent
    def exchange(
        self, actor: str, holds: Collection[tuple[int, int]], collected: BlockOfRound | None
    ) -> RoundAssignment | None:
        """Take a block, and give the next one to collect.

        Args:
            actor: its run id, such as "3#0".
            holds: (group, number of the next block) of the environments that it has.
            collected: the block that it was given before.

        Returns:
            None if there was nothing to collect for a second: ask again.
        """
        with self._changed:
            if collected is not None:
                self._take(collected)
            task = rw.wait_for(self._changed, lambda: self._next_task(actor, holds), timeout_s=_ASK_AGAIN_S)
            if task is None:
                return None
            held = (task.group, task.number) in holds
            return RoundAssignment(task, None if held else self._histories[task.group, task.number])

    @rw.concurrent(4096)
    @rw.idempotent
    def variables(self, version: int) -> Variables | None:
        """Return the weights of a version; None if they are not there any more: the task is not wanted either."""
        with self._changed:
            return cast("Variables | None", self._published.get(version))  # the caller gets the value

    @rw.concurrent(64)
    @rw.idempotent
    def look(self) -> LearnerLook:
        """See `LearnerNode`; the counts may be of the middle of a round."""
        return LearnerLook(replay_settings(self._rounds.tables.tables), self._rounds.tables.info())

    def waits_for(self) -> str:
        """See `LearnerNode`."""
        with self._changed:
            given = self._book.given()
            missing = self._book.missing
        return " and ".join(
            f"group {group} of environments ({', '.join(f'actor {one}' for one in given.get(group, ())) or 'no actor'})"
            for group in missing[:3]
        )

    def train(self) -> None:
        """See `LearnerNode`."""
        while not self.is_done and not rw.stopping():
            blocks = self._wait_for_round()
            if blocks is None:
                return
            began = time.perf_counter()
            self._rounds.learn(blocks)
            self.times.learner["update"] += time.perf_counter() - began
            self._publish()
            self.saved_here()

    def state_dict(self) -> dict[str, Any]:
        """Return everything that later rounds depend on: the end of the last learned round."""
        with self._changed:
            learned = self._rounds.counters.rounds
            return {
                "rounds": self._rounds.state_dict(),
                "histories": [self._histories[group, learned] for group in range(self.assembly.groups)],
                "published": [frozen.value for frozen in self._published.values()],
                **super().state_dict(),
            }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on after the last learned round of this state; blocks of later rounds are collected anew."""
        assembly = self.assembly
        published = check_rounds(state, assembly.groups, assembly.lag, assembly.experiment.checkpoint)
        super().load_state_dict(state)
        with self._changed:
            self._rounds.load_state_dict(state["rounds"])
            self._begin(state["histories"], published)

    def _begin(self, histories: Sequence[CollectorHistory], published: Collection[Variables]) -> None:
        learned = self._rounds.counters.rounds
        self._book = RoundBook(self.assembly.groups, self.assembly.lag, learned=learned)
        self._histories = {(group, learned): history for group, history in enumerate(histories)}
        self._blocks: dict[tuple[int, int], Block] = {}
        self._published = {variables.version: rw.Frozen(variables) for variables in published}

    def _next_task(self, actor: str, holds: Collection[tuple[int, int]]) -> RoundTask | None:
        return None if self.is_done else self._book.ask(actor, holds, time.monotonic())

    def _take(self, collected: BlockOfRound) -> None:
        group, number = collected.group, collected.number
        if not self._book.deliver(group, number, time.monotonic()):
            return
        self._blocks[group, number] = collected.block
        environment = advanced(self._histories[group, number].environment, collected.block)
        if words := told_if_long(environment, group):
            self.report_problem(words)
        self._histories[group, number + 1] = CollectorHistory(
            environment, number + 1, collected.state, collected.scores
        )
        self.times.add_actor({**collected.block.seconds, "wait": collected.waited_s})
        self._changed.notify_all()

    def _wait_for_round(self) -> list[Block] | None:
        began = self.waits_since = time.perf_counter()
        with self._changed:
            while not self._book.round_is_complete:
                if rw.stopping() or self.is_done:
                    return None
                self._changed.wait(_ASK_AGAIN_S)
            self.waits_since = None
            self.times.learner["wait"] += time.perf_counter() - began
            number = self._book.learned
            return [self._blocks.pop((group, number)) for group in range(self.assembly.groups)]

    def _publish(self) -> None:
        variables = self._rounds.variables()
        with self._changed:
            self._book.learn()
            oldest = self._book.learned - self.assembly.lag
            self._published[variables.version] = rw.Frozen(variables)
            self._published = {version: each for version, each in self._published.items() if version >= oldest}
            self._histories = {key: each for key, each in self._histories.items() if key[1] >= self._book.learned}
            self._changed.notify_all()


def lockstep_actor(learner: LockstepLearner, assembly: Assembly) -> None:
    """Collect blocks for a learner until the program stops."""
    node = rw.current_node()
    actor = _LockstepActor(learner, assembly, f"{node.replica}#{node.generation}")
    with slow_calls_told(learner, f"actor {node.replica}", lambda: calls_under_way(actor.collectors)):
        actor.run()


class _LockstepActor:
    def __init__(self, learner: LockstepLearner, assembly: Assembly, run_id: str) -> None:
        self._learner, self._assembly, self._run_id = learner, assembly, run_id
        self._spec = assembly.spec()
        self.collectors: dict[int, Collector] = {}
        self._numbers: dict[int, int] = {}
        self._variables: Variables | None = None

    def run(self) -> None:
        collected: BlockOfRound | None = None
        try:
            with one_torch_thread():
                while not rw.stopping():
                    began = time.perf_counter()
                    assignment = self._learner.exchange(self._run_id, list(self._numbers.items()), collected)
                    collected = assignment and self._collect(assignment, time.perf_counter() - began)
        finally:
            for collector in self.collectors.values():
                collector.close()

    def _collect(self, assignment: RoundAssignment, waited_s: float) -> BlockOfRound | None:
        task = assignment.task
        variables = self._weights(task.version)
        if variables is None:
            return None
        if assignment.history is not None:
            self._rebuild(task.group, assignment.history)
        collector = self.collectors[task.group]
        collector.load(variables)
        block = collector.collect(self._assembly.experiment.agent.unroll)
        self._numbers[task.group] = task.number + 1
        state, scores = collector.carried()
        return BlockOfRound(task.group, task.number, block, state, scores, waited_s)

    def _weights(self, version: int) -> Variables | None:
        if self._variables is None or self._variables.version != version:
            self._variables = self._learner.variables(version)
        return self._variables

    def _rebuild(self, group: int, history: CollectorHistory) -> None:
        if group in self.collectors:
            self.collectors.pop(group).close()
        policy = self._assembly.policy(self._spec, group)
        self.collectors[group] = self._assembly.collector(policy, group, history=history)


__all__ = ["BlockOfRound", "LockstepLearner", "RoundAssignment", "lockstep_actor"]
