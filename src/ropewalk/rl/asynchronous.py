"""Asynchronous training as a program: actors collect with the newest weights they have, and a learner learns.

    actor                                     learner
    collect, add                              sample, update, publish, again and again
    deliver(insertion, episodes, have)   ──▶  waits while the limiter of replay has no room: then actors wait
                                         ◀──  weights, if there are newer ones than `have`
    deliver_together(several)            ──▶  the same for blocks of several groups, without weights: their actor asks
                                              an inference server for actions

Blocks that were delivered and not yet learned from belong to replay, which is saved and restored with the learner.
"""

from __future__ import annotations

import dataclasses
import pickle
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

import ropewalk as rw
from ropewalk.calls.lent_memory import callers_link
from ropewalk.calls.markers import brief
from ropewalk.errors import NotFinite, StreamLost
from ropewalk.rl.assembly import Assembly
from ropewalk.rl.blocks import EpisodeEnd
from ropewalk.rl.checkpoints import check_kind
from ropewalk.rl.counters import Counters
from ropewalk.rl.decision_log import DecisionLog
from ropewalk.rl.deliveries import ActorFacts, Deliveries
from ropewalk.rl.learner_node import LearnerLook, LearnerNode, LearnerView
from ropewalk.rl.learner_updates import LearnerUpdates
from ropewalk.rl.replay.batch import Batch
from ropewalk.rl.replay.insertion import Insertion
from ropewalk.rl.replay.item_columns import Allocate
from ropewalk.rl.replay.service import ReplayServer
from ropewalk.rl.replay.table import ReplayTable
from ropewalk.rl.replay.tables import ReplayTables
from ropewalk.rl.schedules import progress_after
from ropewalk.rl.variables import Variables, epoch_of, numbered
from ropewalk.rl.view import replay_settings
from ropewalk.transport.serialization import loads

_LIVES = 1 << 16
"""Lives of actors that a learner numbers; the next one, after its death, numbers others."""
_PUBLISH_S = 0.01
"""Seconds between publications of weights at least; those in between would be copied for no actor."""
_MOST_PACKED_BYTES = 64 << 10
"""Size of the rows of a delivery that is sent as a pickle, at most."""


@dataclass(frozen=True)
class Delivery:
    """What an actor sends of a block.

    Attributes:
        insertion: the rows and items for replay.
        acknowledged: the actor has the answers to its insertions before this one.
        episodes: the episodes that ended in it.
        seconds: where the actor's time went.
    """

    insertion: Insertion
    acknowledged: int
    episodes: tuple[EpisodeEnd, ...]
    seconds: Mapping[str, float]


DeliveriesType = TypeVar("DeliveriesType", Delivery, Sequence[Delivery])


def packed(deliveries: DeliveriesType) -> DeliveriesType | bytes:
    """Return what travels in place of one or several deliveries: a pickle, unless the copies of that would cost more.

    Nothing in them refers to code of the program, for which the pickler of calls looks into each object.
    """
    several = [deliveries] if isinstance(deliveries, Delivery) else deliveries
    size_bytes = sum(array.nbytes for delivery in several for array in delivery.insertion.rows.values())
    return pickle.dumps(deliveries, 5) if size_bytes <= _MOST_PACKED_BYTES * len(several) else deliveries


class _WatchedTables(ReplayTables):
    """Tables that count and log what is done with them, within the operation that does it.

    Args:
        tables: their settings.
        is_stale: says of each insertion whether it is too old, so that only its rows are inserted and none of its
            items: later items may name these rows.
        counts: called with each insertion that is done, and whether it was too old; returns whether it counts.
        log: where decisions are noted.
    """

    def __init__(
        self,
        tables: Sequence[ReplayTable],
        is_stale: Callable[[Insertion], bool],
        counts: Callable[[Insertion, bool], bool],
        log: DecisionLog | None,
    ) -> None:
        super().__init__(tables)
        self._is_stale, self._counts, self._log = is_stale, counts, log

    def insert(self, insertion: Insertion) -> bool:
        stale = self._is_stale(insertion)
        done = super().insert(dataclasses.replace(insertion, items={}) if stale else insertion)
        if done and self._counts(insertion, stale) and self._log:
            self._log.insert(insertion, stale=stale)
        return done

    def sample(self, table: str, batch_size: int, allocate: Allocate = np.empty) -> Batch:
        if self._log:
            self._log.sample(batch_size)
        return super().sample(table, batch_size, allocate)

    def update_priorities(self, table: str, keys: ArrayLike, priorities: ArrayLike) -> int:
        if self._log:
            self._log.update_priorities()
        return super().update_priorities(table, keys, priorities)


@dataclass(frozen=True)
class Drawn:
    """What an update learns from.

    Attributes:
        batch: what was sampled.
        progress: share of the experiment's steps that are done, 0 to 1.
    """

    batch: Batch
    progress: float


class AsyncLearner(LearnerNode):
    """The service that holds replay and learns from it.

    Args:
        assembly: makes the parts.
        hold: stay after the end until the program is stopped, so that the script can ask for the outcome.
        rank: see `LearnerNode`.
        num_ranks: number of learners of the experiment.
    """

    def __init__(self, assembly: Assembly, *, hold: bool, rank: int = 0, num_ranks: int = 1) -> None:
        super().__init__(assembly, hold=hold, rank=rank)
        self._num_ranks = num_ranks
        spec = assembly.spec()
        experiment = assembly.experiment
        self._generation = self._epoch = rw.current_node().generation
        self._updates = LearnerUpdates(assembly.learner(spec), self._write_priorities, experiment.digest_every)
        self._learner, self._counters = self._updates.learner, self._updates.counters
        record = experiment.record
        self._log = DecisionLog(record, experiment.in_words(), assembly.groups) if record else None
        self._finished = False
        self._arrived = self._counters if num_ranks == 1 else Counters()
        """What came into the replay of this learner."""
        self._counting = threading.Lock()
        self._deliveries = Deliveries(experiment.max_lag)
        tables = _WatchedTables(assembly.tables(spec).tables, self._is_stale, self._count, self._log)
        self._replay = ReplayServer(tables)
        self._episodes: dict[int, tuple[EpisodeEnd, ...]] = {}
        """Of blocks on their way into replay, by the identity of the insertion: a block may be under way twice."""
        self._lives, self._first_life = 0, self._epoch * _LIVES
        self._restored_version = -1
        self._published_at = 0.0
        self._publish()
        self.restore()

    @property
    def counters(self) -> Counters:
        """See `LearnerNode`."""
        return self._counters

    @property
    def view(self) -> LearnerView:
        """See `LearnerNode`."""
        return LearnerView(self._counters, self._updates.metrics, tuple(self._updates.digests), self._newest)

    @rw.concurrent(64)
    @rw.idempotent
    def enter(self) -> int:
        """Return the number of a new life, for an actor that begins or whose stream was broken."""
        with self._counting:
            self._lives += 1
            return self._first_life + self._lives - 1

    @rw.concurrent(4096)
    @brief
    @rw.idempotent
    def deliver(self, delivery: Delivery | bytes, have: int | None = None) -> bool | Variables:
        """Take a block into replay, as soon as there is room; one that is there already is not taken again.

        Args:
            delivery: the block, perhaps `packed`.
            have: version of the caller's weights; None: it needs none.

        Returns:
            The newest weights, if they are newer than `have`; otherwise whether more blocks are wanted: False after the
            end of the experiment, when nothing is taken any more.

        Raises:
            StreamLost: blocks before it were lost with an earlier life of this learner; begin a new stream.
        """
        is_wanted = self._take(cast("Delivery", loads(delivery)) if isinstance(delivery, bytes) else delivery)
        # Another learner, from which the caller's weights are, may have published since this one has.
        return self._frozen_newest() if is_wanted and have is not None and self._newest.version > have else is_wanted

    @rw.concurrent(4096)
    @brief
    @rw.idempotent
    def deliver_together(self, deliveries: Sequence[Delivery] | bytes) -> list[bool | StreamLost]:
        """Take blocks of several streams, one after the other, as `deliver` does with each.

        Args:
            deliveries: the blocks, perhaps `packed`.

        Returns:
            For each, whether more blocks are wanted, or what `deliver` would raise: the others are taken all the same.
        """
        if isinstance(deliveries, bytes):
            deliveries = cast("Sequence[Delivery]", loads(deliveries))
        outcomes: list[bool | StreamLost] = []
        for delivery in deliveries:
            try:
                outcomes.append(self._take(delivery))
            except StreamLost as lost:
                outcomes.append(lost.with_traceback(None))
        return outcomes

    def _take(self, delivery: Delivery) -> bool:
        """Take a block as soon as there is room; returns whether more blocks are wanted.

        Raises:
            StreamLost: see `deliver`.
        """
        insertion = delivery.insertion
        if self._finished:
            return False
        with self._counting:
            self._episodes[id(insertion)] = delivery.episodes
        try:
            self._check_version(insertion)
            self._replay.insert_many([insertion], delivery.acknowledged)
        except StreamLost as lost:
            with self._replay.lock:
                self._deliveries.lose(insertion.run_id, insertion.sequence + 1 - lost.expected)
            raise
        finally:
            with self._counting:
                del self._episodes[id(insertion)]
                self.times.add_actor(delivery.seconds)
        return not self._finished

    @rw.concurrent(64)
    @rw.idempotent
    def is_on_this_host(self) -> bool:
        """Return whether the caller is on the host of this learner."""
        link = callers_link()
        return link is None or link.stream.carries_fds

    @rw.concurrent(64)
    @rw.idempotent
    def has_ended(self) -> bool:
        """Return whether nothing is taken any more; False again if it died since, and goes on from before its end."""
        return self._finished

    @rw.concurrent(64)
    @rw.idempotent
    def refuse(self, error: NotFinite) -> bool:
        """Note that an actor found values in a block that are not finite.

        Returns:
            Whether it should begin a new life; False: too many of the last blocks of its group had such values.
        """
        with self._replay.lock:
            is_first = not self._deliveries.has_refused(error.run_id)
            goes_on = self._deliveries.refuse(error.run_id)
        if is_first:  # progress counts the others
            self.report_problem(str(error))
        if not goes_on:
            self.fail(error)
        return goes_on

    def train(self) -> None:
        """See `LearnerNode`."""
        rw.on_stop(self._replay.end_sampling)
        while not self.is_done:
            began = self.waits_since = time.perf_counter()
            drawn = self.draw()
            self.waits_since = None
            if drawn is None:
                break
            sampled = time.perf_counter()
            self._update(drawn)
            self.times.learner["wait"] += sampled - began
            self.times.learner["update"] += time.perf_counter() - sampled
            with self._replay.lock:  # no insertion comes between the two parts of the state
                self.saved_here()
        self._publish()
        with self._replay.lock:
            self._finished = True
            if self._log:
                self._log.close()

    def delivered(self) -> tuple[Mapping[int, ActorFacts], int]:
        """See `LearnerNode`."""
        with self._replay.lock:
            return self._deliveries.actors, self._deliveries.lost_blocks

    @rw.concurrent(64)
    @rw.idempotent
    def look(self) -> LearnerLook:
        """See `LearnerNode`."""
        with self._replay.lock:
            settings, deliveries = replay_settings(self._replay.tables()), self._deliveries
            return LearnerLook(settings, self._replay.info(), deliveries.actors, deliveries.lags)

    def draw(self) -> Drawn | None:
        """Wait for what the next update learns from; None if there will be no more, as the program stops."""
        num_items = self.assembly.batch_size
        if rw.stopping():
            return None
        self._learner.version = self._newest.version  # by which `usable` finds what is too old
        try:
            with self._replay.lock:  # so that the steps are those of the moment of the draw
                batch = self._replay.sample(self.assembly.experiment.agent.table, num_items, at_least=num_items)
                return Drawn(batch, self.progress)
        except rw.CallCancelled:
            return None

    @property
    def progress(self) -> float:
        """Share of the experiment's steps that are done, 0 to 1."""
        return progress_after(self._counters.steps, self.assembly.experiment.steps)

    def state_dict(self) -> dict[str, Any]:
        """Return everything that later updates depend on."""
        with self._replay.lock:
            return {
                **self._updates.state_dict(),
                "replay": self._replay.state_dict().value,
                "first_life": self._first_life,
                "version": self._newest.version,
                "logged": self._log.position() if self._log else 0,
                "arrived": self._arrived.state_dict(),
                "num_ranks": self._num_ranks,
                "lost_blocks": self._deliveries.lost_blocks,
                **super().state_dict(),
            }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state; streams of actors that are not whole in it are broken.

        Raises:
            ValueError: it is of another number of learners.
        """
        check_kind(state, "replay", self.assembly.experiment.checkpoint)
        if state["num_ranks"] != self._num_ranks:
            raise ValueError(
                f"the checkpoint is of a run with learners={state['num_ranks']}, each of which has a part of replay, "
                f"and this run has learners={self._num_ranks}; to go on from it, say learners={state['num_ranks']}"
            )
        if state["version"] < self._restored_version:
            return  # the experiment's checkpoint, from which this learner began, was written later than this one
        super().load_state_dict(state)
        self._updates.load_state_dict(state)
        self._replay.load_state_dict(state["replay"])
        self._arrived.load_state_dict(state["arrived"])
        self._deliveries.load_lost(state["lost_blocks"])
        # Those of this program and of the one before, from whose checkpoint it may go on, come earlier.
        self._epoch = epoch_of(state["version"]) + 1 + self._generation
        self._first_life = state["first_life"] + (1 + self._generation) * _LIVES
        self._restored_version = state["version"]
        if self._log:
            self._log.go_back(state["logged"])
        self._publish()

    def _update(self, drawn: Drawn) -> None:
        self._updates.update(drawn.batch, drawn.progress, self._newest.version)
        if time.perf_counter() - self._published_at >= _PUBLISH_S:
            self._publish()

    def _write_priorities(self, keys: NDArray[np.int64], priorities: NDArray[np.float64]) -> None:
        self._replay.update_priorities(self.assembly.experiment.agent.table, keys, priorities)

    def _check_version(self, insertion: Insertion) -> None:
        """Refuse what was collected with weights that were lost with an earlier life of this learner."""
        if self._restored_version < insertion.version < numbered(self._epoch, 0):
            raise StreamLost(
                f"block {insertion.sequence} of {insertion.run_id} was collected with weights {insertion.version}, "
                "which were lost when the learner died; begin a new stream with the newest weights",
                run_id=insertion.run_id,
                expected=insertion.sequence,
                sequence=insertion.sequence,
            )

    def _is_stale(self, insertion: Insertion) -> bool:
        return self._deliveries.is_stale(insertion, self._newest.version)

    def _count(self, insertion: Insertion, stale: bool) -> bool:
        if self._finished:
            return False
        self._deliveries.take(insertion, self._newest.version, stale=stale)
        with self._counting:
            if stale:
                self._arrived.stale_steps += insertion.steps
            else:
                self._arrived.add(insertion.steps, self._episodes[id(insertion)])
        return True

    def _publish(self) -> None:
        arrays = self._learner.variables()
        with self._replay.lock:
            version, steps = numbered(self._epoch, self._counters.updates), self._counters.steps
            self._newest = Variables(version, self.progress, arrays)
            if self._log:
                self._log.publish(version, steps)
        self._published_at = time.perf_counter()


__all__ = ["AsyncLearner", "Delivery", "packed"]
