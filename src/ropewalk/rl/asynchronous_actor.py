"""The actors of an asynchronous program: they collect blocks and deliver them, and carry on whatever they lose.

With inference servers an actor holds no network, and has several groups of environments. They step together, ask by one
call, and deliver by one call the blocks that they end at the same step:

    group 0: step ─▶ request ─┐                  ┌─▶ choice ─▶ step ... block ─┐
                              ├─ RemotePolicy ───┤                             ├─ _Outbox ─▶ learner
    group 1: step ─▶ request ─┘  .act_together   └─▶ choice ─▶ step ... block ─┘

A call costs several times what a small network costs, and nearly the same for twice the rows. While an actor steps its
environments, the server acts for the others.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Protocol, TypeAlias

import ropewalk as rw
from ropewalk.calls.begun_call import BegunCall
from ropewalk.errors import NotFinite, StreamLost
from ropewalk.rl.actors.collector import Collector, calls_under_way
from ropewalk.rl.assembly import Assembly
from ropewalk.rl.asynchronous import AsyncLearner, Delivery, packed
from ropewalk.rl.blocks import Block, EpisodeEnd
from ropewalk.rl.environments.spec import EnvironmentSpec
from ropewalk.rl.inference.remote_policy import RemotePolicy
from ropewalk.rl.inference.server import InferenceServer
from ropewalk.rl.policies.policy import ActionChoice, ActionRequest, Policy
from ropewalk.rl.replay.insertion import Insertion
from ropewalk.rl.telling_slow_calls import slow_calls_told
from ropewalk.rl.torch_threads import one_torch_thread
from ropewalk.rl.variables import Variables

_PAUSE_S = 0.5
"""Seconds between questions whether a learner that has ended still has: it may die, and go on from before its end."""
GROUPS_OF_REMOTE_ACTOR = 4
"""Groups of environments of an actor that asks an inference server for actions.

With four actors of CartPole x 8 and a network of 64 x 64, a step costs 1.30 times what it costs where actors have
policies of their own if there are two groups, and 1.17 times if there are four (benchmarks/rl.md); blocks are then 6
to 8 updates old instead of 3.
"""


def async_actor(learners: Sequence[AsyncLearner], assembly: Assembly, inference: InferenceServer | None = None) -> None:
    """Collect blocks for learners until the program stops.

    Args:
        learners: the learners, by rank; each gets the blocks of a share of the groups, and the first one gives the
            weights.
        assembly: makes the parts.
        inference: chooses the actions; None: a policy here does.
    """
    replica, spec = rw.current_node().replica, assembly.spec()
    learner = learners[replica % len(learners)]
    with one_torch_thread():
        if inference is None:
            acting: _Acting = _OwnPolicy(learners[0], assembly, spec, replica)
            groups = [replica]
        else:
            acting = _CentralPolicy(inference, learner, keeps_to=replica)
            groups = [replica * GROUPS_OF_REMOTE_ACTOR + index for index in range(GROUPS_OF_REMOTE_ACTOR)]
        collectors: dict[int, Collector] = {}
        with slow_calls_told(learners[0], f"actor {replica}", lambda: calls_under_way(collectors)):
            drive([_act(learner, assembly, acting, spec, group, collectors) for group in groups], acting.choose)


_Steps: TypeAlias = Generator[ActionRequest, tuple[ActionChoice, float], None]
"""What a group does, up to where it needs actions; see `Collector.steps`."""


def drive(groups: Sequence[_Steps], choose: Callable[[Sequence[ActionRequest]], Sequence[ActionChoice]]) -> None:
    """Let groups step in turn, and choose the actions of all of them at once, until all have ended.

    Args:
        groups: each ends or asks for actions.
        choose: returns the choice for each request.

    Raises:
        Exception: what a group or `choose` raises; the other groups are closed.
    """
    waiting: dict[_Steps, ActionRequest] = {}
    with contextlib.ExitStack() as closing:
        for group in groups:
            closing.enter_context(contextlib.closing(group))
            with contextlib.suppress(StopIteration):
                waiting[group] = next(group)
        while waiting:
            began = time.perf_counter()
            choices = choose(list(waiting.values()))
            seconds = (time.perf_counter() - began) / len(waiting)
            for group, choice in zip(list(waiting), choices, strict=True):
                try:
                    waiting[group] = group.send((choice, seconds))
                except StopIteration:
                    del waiting[group]


_Collecting: TypeAlias = Generator[ActionRequest, tuple[ActionChoice, float], Block]


class _Acting(Protocol):
    """Where the actions of an actor's groups come from, and how their blocks go away."""

    def begin(self, group: int, life: int) -> Policy:
        """Return the policy of a new life of a group."""
        ...

    def stream(self, learner: AsyncLearner) -> _DeliveryStream:
        """Return how the blocks of a new life are delivered."""
        ...

    def collect(self, collector: Collector, num_steps: int) -> _Collecting:
        """Collect a block with the newest weights; yields what an inference server is asked, as `Collector.steps`."""
        ...

    def choose(self, requests: Sequence[ActionRequest]) -> Sequence[ActionChoice]:
        """Choose the actions of all groups that `collect` asked for."""
        ...


class _DeliveryStream(Protocol):
    """The deliveries of one life of a group."""

    def deliver(self, insertion: Insertion, episodes: tuple[EpisodeEnd, ...], seconds: Mapping[str, float]) -> bool:
        """Send a block; returns False if the learner wants no more.

        Raises:
            StreamLost: blocks of this life were lost.
        """
        ...

    def settle(self) -> None:
        """Wait for what is under way.

        Raises:
            StreamLost: as `deliver`.
        """
        ...


# A policy in the actor


class _OwnPolicy:
    """A policy in this process. The answer to each block brings the learner's newest weights."""

    def __init__(self, learner: AsyncLearner, assembly: Assembly, spec: EnvironmentSpec, group: int) -> None:
        self._learner = learner
        self._policy = assembly.policy(spec, group)
        self._variables: Variables | None = None
        self._loaded: Variables | None = None

    def begin(self, group: int, life: int) -> Policy:
        del group, life
        newest = self._learner.newest_variables(self.version)
        self._variables = newest or self._variables
        self._loaded = None
        return self._policy

    def stream(self, learner: AsyncLearner) -> _DeliveryStream:
        # To another host blocks may travel for as long as they take to collect. On the learner's host others use the
        # core while an actor waits.
        return _OneByOne(learner, self, 0 if learner.is_on_this_host() else 1)

    def collect(self, collector: Collector, num_steps: int) -> _Collecting:
        if self._variables is not None and self._loaded is not self._variables:
            collector.load(self._variables)
            self._loaded = self._variables
        yield from ()
        return collector.collect(num_steps)

    def choose(self, requests: Sequence[ActionRequest]) -> Sequence[ActionChoice]:
        return [request.chosen() for request in requests]

    @property
    def version(self) -> int:
        """The version of its weights; -1 before it has any."""
        return self._variables.version if self._variables else -1

    def keep(self, variables: Variables) -> None:
        """Keep the weights that came with the answer to a block, for the next one."""
        self._variables = variables


class _OneByOne:
    """Each block is a call, whose answer brings weights.

    Args:
        learner: takes the blocks.
        policy: keeps the weights.
        ahead: the number of blocks whose answers are not there yet when the next block is collected; 0: each call waits
            for its answer.
    """

    def __init__(self, learner: AsyncLearner, policy: _OwnPolicy, ahead: int) -> None:
        self._learner, self._policy, self._ahead = learner, policy, ahead
        self._under_way: deque[BegunCall] = deque()
        self._acknowledged = 0
        self._waited_s = 0.0

    def deliver(self, insertion: Insertion, episodes: tuple[EpisodeEnd, ...], seconds: Mapping[str, float]) -> bool:
        while self._under_way and len(self._under_way) >= self._ahead:
            if not self._take(self._under_way.popleft().result):
                return False
        delivery = packed(Delivery(insertion, self._acknowledged, episodes, {**seconds, "wait": self._waited_s}))
        self._waited_s = 0.0
        have = self._policy.version
        if not self._ahead:
            return self._take(lambda: self._learner.deliver(delivery, have))
        self._under_way.append(self._learner.deliver.begin(delivery, have))  # type: ignore[attr-defined]
        return True

    def settle(self) -> None:
        while self._under_way:
            self._take(self._under_way.popleft().result)

    def _take(self, wait: Callable[[], bool | Variables]) -> bool:
        """Wait for an answer, and keep the weights in it; returns whether more blocks are wanted."""
        began = time.perf_counter()
        answer = wait()
        self._waited_s += time.perf_counter() - began
        self._acknowledged += 1
        if isinstance(answer, bool):
            return answer
        self._policy.keep(answer)
        return True


# The policy of an inference server


class _CentralPolicy:
    """The policy of an inference server, whose weights may change within a block: the oldest ones count."""

    def __init__(self, inference: InferenceServer, learner: AsyncLearner, keeps_to: int) -> None:
        self._inference, self._keeps_to = inference, keeps_to
        self._policies: dict[int, RemotePolicy] = {}
        self._outbox = _Outbox(learner)

    def begin(self, group: int, life: int) -> Policy:
        policy = RemotePolicy(self._inference, group, f"{group}#{life}", keeps_to=self._keeps_to)
        self._policies[group] = policy
        return policy

    def stream(self, learner: AsyncLearner) -> _DeliveryStream:
        del learner  # all groups of an actor have the same one
        return _Together(self._outbox)

    def collect(self, collector: Collector, num_steps: int) -> _Collecting:
        block = yield from collector.steps(num_steps)
        return dataclasses.replace(block, version=self._policies[collector.group].take_version())

    def choose(self, requests: Sequence[ActionRequest]) -> Sequence[ActionChoice]:
        self._outbox.send()  # blocks of all groups that have ended one since
        return RemotePolicy.act_together(requests)


class _Together:
    """Blocks travel with those of other groups. What became of one is known when the next one is there."""

    def __init__(self, outbox: _Outbox) -> None:
        self._outbox = outbox
        self.acknowledged: int = 0
        """The number of answers so far."""
        self.is_wanted: bool = True
        """Whether the learner wants more blocks, as far as is known."""
        self.lost: StreamLost | None = None
        """Says that blocks of this life were lost."""

    def deliver(self, insertion: Insertion, episodes: tuple[EpisodeEnd, ...], seconds: Mapping[str, float]) -> bool:
        if self.lost:
            raise self.lost
        if self.is_wanted:
            self._outbox.add(self, insertion, episodes, seconds)
        return self.is_wanted

    def settle(self) -> None:
        self._outbox.settle()
        if self.lost:
            raise self.lost


class _Outbox:
    """The blocks of an actor's groups on their way to the learner: one call for those that ended at the same step.

    The actor asks for the answer when it has the next blocks, so that none of its groups waits for it.
    """

    def __init__(self, learner: AsyncLearner) -> None:
        self._learner = learner
        self._blocks: list[tuple[_Together, Insertion, tuple[EpisodeEnd, ...], Mapping[str, float]]] = []
        self._under_way: tuple[Sequence[_Together], BegunCall] | None = None
        self._waited_s = 0.0

    def add(
        self,
        stream: _Together,
        insertion: Insertion,
        episodes: tuple[EpisodeEnd, ...],
        seconds: Mapping[str, float],
    ) -> None:
        """Let a block be sent with the next ones."""
        self._blocks.append((stream, insertion, episodes, seconds))

    def send(self) -> None:
        """Send the blocks that are here, after the answer to those before."""
        if not self._blocks:
            return
        self._take()
        blocks, self._blocks = self._blocks, []
        wait_s, self._waited_s = self._waited_s / len(blocks), 0.0
        deliveries = [
            Delivery(insertion, stream.acknowledged, episodes, {**seconds, "wait": wait_s})
            for stream, insertion, episodes, seconds in blocks
        ]
        call = self._learner.deliver_together.begin(packed(deliveries))  # type: ignore[attr-defined]
        self._under_way = [stream for stream, *_ in blocks], call

    def settle(self) -> None:
        """Send the blocks that are here, and wait for what became of them."""
        self.send()
        self._take()

    def _take(self) -> None:
        """Wait for what became of the blocks under way."""
        if self._under_way is None:
            return
        (streams, call), self._under_way = self._under_way, None
        began = time.perf_counter()
        outcomes: Sequence[bool | StreamLost] = call.result()
        self._waited_s += time.perf_counter() - began
        for stream, outcome in zip(streams, outcomes, strict=True):
            if isinstance(outcome, StreamLost):
                stream.lost = outcome
            else:
                stream.acknowledged += 1
                stream.is_wanted = outcome


def _act(
    learner: AsyncLearner,
    assembly: Assembly,
    acting: _Acting,
    spec: EnvironmentSpec,
    group: int,
    collectors: dict[int, Collector],
) -> _Steps:
    """Collect blocks of one group, in one life after the other, until the program stops.

    A group that waits lets the others of its actor wait, too: they have the same learner.
    """
    while not rw.stopping():
        try:
            yield from _live(learner, assembly, acting, spec, group, collectors)
        except StreamLost:
            continue  # replay has lost blocks of this life: with new environments, and a new number
        except NotFinite as error:
            if not learner.refuse(error):
                raise
        else:
            while learner.has_ended() and not rw.wait_for_stop(_PAUSE_S):
                pass


def _live(
    learner: AsyncLearner,
    assembly: Assembly,
    acting: _Acting,
    spec: EnvironmentSpec,
    group: int,
    collectors: dict[int, Collector],
) -> _Steps:
    """Collect blocks of one life, until the program stops, or the learner wants no more."""
    life = learner.enter()
    agent = assembly.experiment.agent
    collector, adder = assembly.collector(acting.begin(group, life), group, life=life), agent.make_adder(spec)
    stream = acting.stream(learner)
    collectors[group] = collector
    with contextlib.closing(collector):
        while not rw.stopping():
            block = yield from acting.collect(collector, agent.unroll)
            try:
                insertion = adder.add(block)
            except NotFinite:
                stream.settle()  # the next life ends the stream, which they are of
                raise
            if not stream.deliver(insertion, block.episodes, block.seconds):
                return


__all__ = ["GROUPS_OF_REMOTE_ACTOR", "async_actor", "drive"]
