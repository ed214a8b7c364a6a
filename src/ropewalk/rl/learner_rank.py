"""`LearnerRank`: one of several learners of an asynchronous program.

    actors of groups 0, 2, ...  ──▶  replay and learner of rank 0  ──▶ weights, status, checkpoint, the end
                                           │ mean of gradients
    actors of groups 1, 3, ...  ──▶  replay and learner of rank 1

A rank without a batch waits for its actors, and the others wait for it. When a rank dies, all of them start again: each
with its own replay, and with the weights of the rank whose checkpoint is the newest.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import ropewalk as rw
from ropewalk.calls.client import Client
from ropewalk.errors import ExchangeAborted
from ropewalk.exchange.groups.inbox import Inbox, Packet
from ropewalk.exchange.groups.link_group import LinkGroup
from ropewalk.rl.assembly import Assembly
from ropewalk.rl.asynchronous import AsyncLearner, Drawn
from ropewalk.rl.blocks import EpisodeEnd
from ropewalk.rl.counters import Counters
from ropewalk.rl.learners.data_parallel import LearnerGroup, RankReport
from ropewalk.rl.learners.portable_state import portable_state

_FOR_EVER_S = 1e8
"""Seconds for which a rank waits for the others: they may have no batch, and a dead one ends this rank as well."""
_PATIENCE_S = 0.5
"""Seconds after a request to stop for which a rank waits for the others, so that all end after the same update."""


class LearnerRank(AsyncLearner):
    """A learner that averages its gradients with its replicas. Rank 0 is the one to ask for weights and progress.

    Args:
        assembly: makes the parts of the whole experiment.
        peers: the client of this node itself.
        hold: see `AsyncLearner`.
    """

    def __init__(self, assembly: Assembly, peers: Client, *, hold: bool) -> None:
        node = rw.current_node()
        self._peers = peers
        self._inbox = Inbox()
        self._own = Counters()
        """What reached the replay of this rank."""
        self._scores: list[float] = []
        """Of episodes that the others have not been told of."""
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
        super().__init__(share, hold=hold or node.replica > 0, rank=node.replica, num_ranks=node.replicas)
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
            "learner": portable_state(self._learner),
            "updates": self._counters.updates,
            "recent": list(self._counters.recent),
            "digests": list(self._digests),
            "version": self._restored_version,
        }

    def run(self) -> None:
        """Learn with the other ranks until the steps are done."""
        rw.on_stop(self._give_up)
        try:
            self._begin_alike()
            super().run()
        except ExchangeAborted:
            if not rw.stopping():
                raise
            # Another rank is gone, and this one may be in the middle of an update: nothing is saved.
        finally:
            self._loop_is_over.set()

    def state_dict(self) -> dict[str, Any]:
        """See `AsyncLearner`."""
        with self._replay.lock:
            return {**super().state_dict(), "own": self._own.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See `AsyncLearner`."""
        super().load_state_dict(state)
        self._own.load_state_dict(state["own"])

    def draw(self) -> Drawn | None:
        """See `AsyncLearner`; returns None for all ranks if one of them has to stop."""
        drawn = super().draw()
        while drawn is not None and not len(self._learner.usable(drawn.batch)):
            drawn = super().draw()  # all of it was too old, and an update would have no gradient
        reports = self._tell(stopping=drawn is None)
        if drawn is None or any(report.stopping for report in reports):
            return None
        return Drawn(drawn.batch, self.progress)  # the progress that all of them know

    def settle(self) -> None:
        """See `LearnerNode`; the program ends when all ranks are saved."""
        self._tell(stopping=False)

    def count(self, steps: int, episodes: tuple[EpisodeEnd, ...]) -> None:
        """See `AsyncLearner`; the counters of the experiment follow when the ranks tell each other."""
        self._own.add(steps, episodes)
        self._scores.extend(episode.score for episode in episodes)

    def _begin_alike(self) -> None:
        """Take over what the rank with the newest checkpoint has learned."""
        updates = [report.updates for report in self._tell(stopping=False)]
        if newest := max(updates):
            source = updates.index(newest)
            if source != rw.current_node().replica:
                learned = self._peers[source].learned()
                self._learner.load_state_dict(learned["learner"])
                self._counters.load_state_dict({"updates": learned["updates"], "recent": learned["recent"]})
                self._digests = list(learned["digests"])
                self._restored_version = learned["version"]
            self._publish()
        self._tell(stopping=False)  # the source has not gone on before all have its state

    def _tell(self, *, stopping: bool) -> list[RankReport]:
        with self._counting:
            own, scores = self._own, tuple(self._scores)
            self._scores = []
            report = RankReport(own.steps, own.episodes, self._counters.updates, stopping, scores)
        reports = self._ranks.tell(report)
        self._counters.steps = sum(each.steps for each in reports)
        self._counters.episodes = sum(each.episodes for each in reports)
        for each in reports:
            self._counters.recent.extend(each.scores)
        return reports

    def _give_up(self) -> None:
        """End the waits for other ranks, which may be gone, soon after this one was asked to stop."""
        self._loop_is_over.wait(_PATIENCE_S)
        self._links.abort()


__all__ = ["LearnerRank"]
