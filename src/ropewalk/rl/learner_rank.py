"""`LearnerRank`: one of several learners of an asynchronous program.

    actors of groups 0, 2, ...  ──▶  replay and learner of rank 0  ──▶ weights, status, checkpoint, the end
                                           │ mean of gradients
    actors of groups 1, 3, ...  ──▶  replay and learner of rank 1

A rank without a batch waits for its actors, and the others wait for it. When a rank dies, all of them start again: each
with its own replay, and with the weights of the rank whose checkpoint is the newest.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import ropewalk as rw
from ropewalk.calls.client import Client
from ropewalk.errors import ExchangeAborted
from ropewalk.exchange.groups.inbox import Inbox, Packet
from ropewalk.exchange.groups.link_group import LinkGroup
from ropewalk.rl.assembly import Assembly
from ropewalk.rl.asynchronous import AsyncLearner, Drawn
from ropewalk.rl.deliveries import ActorFacts
from ropewalk.rl.learners.data_parallel import LearnerGroup, RankReport
from ropewalk.rl.replay.batch import Batch

_FOR_EVER_S = 1e8
"""Seconds for which a rank waits for the others: they may have no batch, and a dead one ends this rank as well."""
_PATIENCE_S = 2.0
"""Seconds after a request to stop for which a rank waits for the others, so that all end after the same update. An
update that takes longer is cut off, and nothing is saved. The rest of the 4 s after Ctrl-C is for saving."""
_FACTS_S = 1.0
"""Seconds between the times at which rank 0 is told of the actors of the others."""


class LearnerRank(AsyncLearner):
    """A learner that averages its gradients with its replicas. Rank 0 is the one to ask for weights and progress.

    Args:
        assembly: makes the parts of the whole experiment.
        peers: the client of this node itself.
        hold: see `AsyncLearner`.
    """

    def __init__(self, assembly: Assembly, peers: Client, *, hold: bool) -> None:
        node = rw.current_node()
        self._peers, self._rank = peers, node.replica
        self._inbox = Inbox()
        self._told_episodes = 0
        """Episodes of this rank of which the others know."""
        self._counters_at_start: dict[str, Any] = {}
        """The counters before the first reports of this life, which each rank adds itself."""
        self._facts: dict[int, tuple[Mapping[int, ActorFacts], int]] = {}
        """By rank, what the others say of their actors."""
        self._facts_told_at = 0.0
        self._loop_is_over = threading.Event()
        sends = [peers[rank].receive for rank in range(node.replicas)]
        names = [f"{node.name}.{rank}" for rank in range(node.replicas)]
        self._links = LinkGroup(
            node.replica,
            names,
            node.generation,
            # A future, as a call that waits would wait for a rank that is being started again.
            [lambda packet, receive=receive: receive.future(packet) for receive in sends],
            self._inbox,
            timeout_s=_FOR_EVER_S,
        )
        self._ranks = LearnerGroup(self._links)
        share = assembly.share(node.replica, node.replicas)
        super().__init__(share, hold=hold, rank=node.replica, num_ranks=node.replicas)
        self._ranks.join(self._learner)

    @rw.method
    def receive(self, packet: Packet) -> None:
        """Take a packet of another rank."""
        self._inbox.deliver(packet)

    @rw.concurrent(64)
    @rw.idempotent
    def learned(self) -> dict[str, Any]:
        """Return what all ranks have in common, for ranks that go on from it; before the first update of this life."""
        return {
            **self._updates.state_dict(),
            "counters": self._counters_at_start,
            "version": self._restored_version,
        }

    @rw.concurrent(64)
    @rw.idempotent
    def hear(self, rank: int, actors: Mapping[int, ActorFacts], lost_blocks: int) -> None:
        """Note what another rank says of its actors."""
        self._facts[rank] = actors, lost_blocks

    def delivered(self) -> tuple[Mapping[int, ActorFacts], int]:
        """See `LearnerNode`; rank 0 knows, a second later, of those of all ranks."""
        own, lost_blocks = super().delivered()
        others = list(self._facts.values())
        actors = {group: facts for of, _ in others for group, facts in of.items()}
        return {**actors, **own}, lost_blocks + sum(lost for _, lost in others)

    @rw.concurrent(64)
    @rw.idempotent
    def report_problem(self, problem: str) -> None:
        """See `LearnerNode`; rank 0 is told too."""
        super().report_problem(problem)
        if self._rank:
            self._peers[0].report_problem.future(problem)

    def fail(self, error: Exception) -> None:
        """See `LearnerNode`; rank 0, which the script asks, is told too."""
        super().fail(error)
        if self._rank:
            self._peers[0].fail.future(error)

    def run(self) -> None:
        """See `LearnerNode`."""
        rw.on_stop(self._give_up)
        try:
            super().run()
        except ExchangeAborted:
            if not rw.stopping():
                raise
            # Another rank is gone, and this one may be in the middle of an update: nothing is saved.
        finally:
            self._loop_is_over.set()

    def train(self) -> None:
        """See `LearnerNode`."""
        self._begin_alike()
        super().train()

    def draw(self) -> Drawn | None:
        """See `AsyncLearner`; returns None for all ranks if one of them has to stop."""
        batch = self._usable()
        reports = self._tell(stopping=batch is None)
        if batch is None or any(report.stopping for report in reports):
            return None
        return Drawn(batch, self.progress)  # the progress that all of them know

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See `LearnerNode`."""
        super().load_state_dict(state)
        self._told_episodes = self._arrived.episodes  # the counters have the scores of these already

    def _usable(self) -> Batch | None:
        """Wait for a batch, and return what an update learns from, of which it would count nothing as dropped again."""
        while (drawn := super().draw()) is not None:
            if len(batch := self._learner.usable(drawn.batch)):  # otherwise an update would have no gradient
                return batch
        return None

    def settle(self) -> bool:
        """See `LearnerNode`; rank 0 ends the program, when all ranks are saved."""
        if self._rank:
            self._peers[0].hear(self._rank, *super().delivered())
        self._tell(stopping=False)
        return self._rank == 0

    def _begin_alike(self) -> None:
        """Take over what the rank with the newest checkpoint has learned, and number versions as all others do."""
        self._counters_at_start = self._counters.state_dict()
        reports = self._tell(stopping=False)
        # One rank may have a checkpoint and another one none. Actors get the weights of rank 0: a rank of a later epoch
        # would refuse all that they collect, and wait for ever. An earlier epoch would let versions go back.
        self._epoch = max(report.epoch for report in reports)
        updates = [report.updates for report in reports]
        if newest := max(updates):
            source = updates.index(newest)
            if source != self._rank:
                learned = self._peers[source].learned()
                self._updates.load_state_dict(learned)
                self._add_up(reports)
                self._restored_version = learned["version"]
        self._publish()
        self._tell(stopping=False)  # the source has not gone on before all have its state

    def _tell(self, *, stopping: bool) -> list[RankReport]:
        with self._counting:
            own = self._arrived
            scores = list(own.recent)[max(0, len(own.recent) - own.episodes + self._told_episodes) :]
            self._told_episodes = own.episodes
            report = RankReport(
                own.steps,
                own.episodes,
                own.stale_steps,
                self._counters.updates,
                self._epoch,
                stopping,
                tuple(scores),
            )
        reports = self._ranks.tell(report)
        self._add_up(reports)
        self._tell_facts()
        return reports

    def _add_up(self, reports: Sequence[RankReport]) -> None:
        with self._counting:
            self._counters.steps = sum(each.steps for each in reports)
            self._counters.episodes = sum(each.episodes for each in reports)
            self._counters.stale_steps = sum(each.stale_steps for each in reports)
            for each in reports:
                self._counters.recent.extend(each.scores)

    def _tell_facts(self) -> None:
        if self._rank and time.monotonic() - self._facts_told_at > _FACTS_S:
            self._facts_told_at = time.monotonic()
            self._peers[0].hear.future(self._rank, *super().delivered())

    def _give_up(self) -> None:
        """End the waits for other ranks, which may be gone, soon after this one was asked to stop."""
        self._loop_is_over.wait(_PATIENCE_S)
        self._links.abort()


__all__ = ["LearnerRank"]
