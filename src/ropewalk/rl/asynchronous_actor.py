"""The actors of an asynchronous program: they collect blocks and deliver them, and carry on whatever they lose.

With inference servers an actor holds no network, and has two groups of environments: one of them is stepped while the
other one waits for its actions, so that neither the server nor the actor waits for the other.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import threading
import time
from collections import deque
from collections.abc import Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol

import ropewalk as rw
from ropewalk.errors import NotFinite, StreamLost
from ropewalk.rl.actors.collector import Collector, calls_under_way
from ropewalk.rl.assembly import Assembly
from ropewalk.rl.asynchronous import AsyncLearner, Delivery
from ropewalk.rl.blocks import Block
from ropewalk.rl.environments.spec import EnvironmentSpec
from ropewalk.rl.inference.remote_policy import RemotePolicy
from ropewalk.rl.inference.server import InferenceServer
from ropewalk.rl.policies.policy import Policy
from ropewalk.rl.telling_slow_calls import slow_calls_told
from ropewalk.rl.torch_threads import one_torch_thread
from ropewalk.rl.variables import Variables

logger = logging.getLogger(__name__)

_PAUSE_S = 0.5
"""Seconds between questions whether a learner that has ended still has: it may die, and go on from before its end."""
_IN_FLIGHT = 2
"""Deliveries that an actor does not wait for: it collects the next block meanwhile."""
GROUPS_OF_REMOTE_ACTOR = 2
"""Groups of environments of an actor that asks an inference server for actions."""


def async_actor(learners: Sequence[AsyncLearner], assembly: Assembly, inference: InferenceServer | None = None) -> None:
    """Collect blocks for learners until the program stops.

    Args:
        learners: by rank; each gets the blocks of a share of the groups, and the first one gives the weights.
        assembly: makes the parts.
        inference: chooses the actions; None: a policy here does.
    """
    replica, spec = rw.current_node().replica, assembly.spec()
    with one_torch_thread():
        if inference is None:
            acting = _OwnPolicy(learners[0], assembly, spec, replica)
            with _OwnGroups().watched_for(learners[0], replica) as own:
                _act(_learner_of(replica, learners), assembly, acting, spec, replica, own)
            return
        groups = [replica * GROUPS_OF_REMOTE_ACTOR + index for index in range(GROUPS_OF_REMOTE_ACTOR)]
        own = _OwnGroups()

        def act(group: int) -> None:
            try:
                _act(_learner_of(group, learners), assembly, _CentralPolicy(inference, group), spec, group, own)
            finally:
                own.over.set()  # an actor with half of its environments would not be noticed

        with own.watched_for(learners[0], replica), ThreadPoolExecutor(len(groups)) as threads:
            for each in [threads.submit(act, group) for group in groups]:
                each.result()


def _learner_of(group: int, learners: Sequence[AsyncLearner]) -> AsyncLearner:
    return learners[group % len(learners)]


@dataclass(frozen=True)
class _OwnGroups:
    """The groups of environments of this actor.

    Attributes:
        over: set when one of them has ended, so that the others end.
        collectors: of the current lives, by group.
    """

    over: threading.Event = field(default_factory=threading.Event)
    collectors: dict[int, Collector] = field(default_factory=dict[int, Collector])

    @contextlib.contextmanager
    def watched_for(self, learner: AsyncLearner, actor: int) -> Generator[_OwnGroups]:
        """Tell a learner of calls of environments that have not returned, while the block runs."""
        with slow_calls_told(learner, actor, lambda: calls_under_way(self.collectors)):
            yield self


class _Acting(Protocol):
    """Where the actions of a group come from."""

    def begin(self, life: int) -> Policy:
        """Return the policy of a new life."""
        ...

    def collect(self, collector: Collector, num_steps: int) -> Block:
        """Collect a block with the newest weights."""
        ...


class _OwnPolicy:
    """A policy in this process, with the learner's newest weights at the beginning of each block."""

    def __init__(self, learner: AsyncLearner, assembly: Assembly, spec: EnvironmentSpec, group: int) -> None:
        self._learner = learner
        self._policy = assembly.policy(spec, group)
        self._variables: Variables | None = None
        self._loaded: Collector | None = None

    def begin(self, life: int) -> Policy:
        del life
        return self._policy

    def collect(self, collector: Collector, num_steps: int) -> Block:
        newest = self._learner.newest_variables(self._variables.version if self._variables else -1)
        if newest is not None:
            self._variables = newest
        if self._variables is not None and (newest is not None or self._loaded is not collector):
            collector.load(self._variables)
            self._loaded = collector
        return collector.collect(num_steps)


class _CentralPolicy:
    """The policy of an inference server, whose weights may change within a block: the oldest ones count."""

    def __init__(self, inference: InferenceServer, group: int) -> None:
        self._inference, self._group = inference, group
        self._policy: RemotePolicy | None = None

    def begin(self, life: int) -> Policy:
        self._policy = RemotePolicy(self._inference, self._group, f"{self._group}#{life}")
        return self._policy

    def collect(self, collector: Collector, num_steps: int) -> Block:
        assert self._policy is not None
        block = collector.collect(num_steps)
        return dataclasses.replace(block, version=self._policy.take_version())


def _act(
    learner: AsyncLearner,
    assembly: Assembly,
    acting: _Acting,
    spec: EnvironmentSpec,
    group: int,
    own: _OwnGroups,
) -> None:
    """Collect blocks of one group, in one life after the other, until the program stops or a group has ended."""
    while not (rw.stopping() or own.over.is_set()):
        try:
            _live(learner, assembly, acting, spec, group, own)
        except StreamLost:
            continue  # replay has lost blocks of this life: with new environments, and a new number
        except NotFinite as error:
            logger.warning("%s", error)
            if not learner.refuse(error):
                raise
        else:
            while learner.has_ended() and not own.over.is_set() and not rw.wait_for_stop(_PAUSE_S):
                pass


def _live(
    learner: AsyncLearner,
    assembly: Assembly,
    acting: _Acting,
    spec: EnvironmentSpec,
    group: int,
    own: _OwnGroups,
) -> None:
    """Collect blocks of one life, until the program stops, a group has ended, or the learner wants no more."""
    life = learner.enter()
    agent = assembly.experiment.agent
    collector, adder = assembly.collector(acting.begin(life), group, life=life), agent.make_adder(spec)
    in_flight: deque[Future[bool]] = deque()
    acknowledged = 0
    own.collectors[group] = collector
    with contextlib.closing(collector):
        while not (rw.stopping() or own.over.is_set()):
            block = acting.collect(collector, agent.unroll)
            began = time.perf_counter()
            while len(in_flight) >= _IN_FLIGHT:
                if not in_flight.popleft().result():
                    return
                acknowledged += 1
            seconds = {**block.seconds, "wait": time.perf_counter() - began}
            try:
                insertion = adder.add(block)
            except NotFinite:
                for each in in_flight:  # the next life ends the stream, which they are of
                    each.result()
                raise
            delivery = Delivery(insertion, acknowledged, block.episodes, seconds)
            in_flight.append(learner.deliver.future(delivery))  # type: ignore[attr-defined]


__all__ = ["GROUPS_OF_REMOTE_ACTOR", "async_actor"]
