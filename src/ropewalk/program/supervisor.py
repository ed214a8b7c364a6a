"""Decides which replicas of a program run: which are started, ended and restarted, and how the program ends.

Pure: events and times in, instructions out. It starts nothing and reads no clock; the conductor carries the
instructions out and calls `tick` at `next_due`.

A gang is the unit of restart: all replicas of all nodes of one gang with strategy "together", otherwise a single
replica. So there is one way to restart: the living members of the gang are ended; when none lives any more and the
wait is over, all start, with the next generation.

               Start               ready             ended, ok and finite
    WAITING ──────────▶ STARTING ─────────▶ READY ──────────────────────▶ COMPLETED
       ▲                   │                  │
       │◀── failed, and the rule allows it ───┤──── failed, and final ──▶ FAILED
       │                   │                  │
       │                   └─── EndReplica ───┤
       │   its gang restarts                  ▼         the program ends
       └──────────────────────────────────  ENDING ─────────────────────▶ STOPPED
                                              │          scaled away
                                              └─────────────────────────▶ REMOVED

No end in state ENDING is a failure: a process that is being killed may end in any way. COMPLETED, FAILED, STOPPED and
REMOVED go back to WAITING when their gang or the user restarts them, while the program runs. The program's own states
never go back:

    RUNNING ──▶ COMPLETED   all essential finite replicas have completed, except those that wait for the stop,
            │               or nothing is left that could run
            ├─▶ STOPPED     a stop was requested
            └─▶ FAILED      an essential replica failed for good; `failure` says which failure came first
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections import Counter
from collections.abc import Collection, Generator, Sequence
from typing import NoReturn

from ropewalk.argument_kinds import check_number
from ropewalk.near_names import instead_of
from ropewalk.program.gang import Gang, Replica, SupervisedNode
from ropewalk.program.instructions import (
    Completed,
    EndReplica,
    Failed,
    Instruction,
    NodeRule,
    ProgramOutcome,
    ReplicaState,
    ReplicaStatus,
    Sequel,
    Start,
)
from ropewalk.quantities import listed
from ropewalk.supervision.restart import GiveUp

_MOST_TOLD = 10
"""Indices of running replicas that an error names."""
_COMING = (ReplicaState.WAITING, ReplicaState.STARTING, ReplicaState.ENDING)
"""The states of a replica that is not ready yet, or not again."""
_OVER = (ReplicaState.COMPLETED, ReplicaState.FAILED, ReplicaState.STOPPED)
"""The states of a wanted replica that does not run again by itself."""


class Supervisor:
    """The supervisor of one program.

    Events of an earlier generation of a replica are ignored: its successor has been started.

    Args:
        rules: the nodes, in the order in which they are to be started.
        seed: of the random jitter of waits.

    Raises:
        ValueError: two rules have one name, a number of replicas is negative, or a gang has two restart rules.
    """

    def __init__(self, rules: Sequence[NodeRule], *, seed: int = 0) -> None:
        self._seed = seed
        self._nodes: dict[str, SupervisedNode] = {}
        self._gangs: dict[str, Gang] = {}
        self._said: list[Instruction] = []
        self._changed: dict[Replica, None] = {}
        """Replicas that may have another status since the last `take_changes`; a set that keeps its order."""
        self._due: dict[Gang, float] = {}
        """The gangs whose start is planned, each with its time."""
        # Counted at each change: with a look at all replicas at each event, thousands of them took seconds to end.
        self._num_alive = self._num_awaited = self._num_unfinished = 0
        self._incomplete: Counter[str] = Counter()
        """By node, the replicas that are awaited and have not completed."""
        self._now = 0.0
        self._begun = False
        self.outcome = ProgramOutcome.RUNNING
        self.failure: Failed | None = None
        """The failure that ended the program; None unless the outcome is FAILED."""
        self.stop_reason = ""
        self.why_it_ends = ""
        """Why the program ends, in words; empty while its outcome is RUNNING."""
        for rule in rules:
            if rule.name in self._nodes:
                raise ValueError(f"two nodes have the name {rule.name!r}; each needs one of its own")
            _check_replicas(rule.replicas)
            self._nodes[rule.name] = node = SupervisedNode(rule, rule.replicas)
            self._grow(node)

    # Events

    def begin(self, now: float) -> list[Instruction]:
        """Start everything."""
        if self._begun:
            raise RuntimeError("the supervisor has begun already; a program that ran is launched anew with another one")
        self._now, self._begun = now, True
        if self.outcome is ProgramOutcome.RUNNING:
            for gang in self._gangs.values():
                self._plan(gang, now)
        return self._settle()

    def ready(self, name: str, replica: int, generation: int, now: float) -> list[Instruction]:
        """A replica became ready; ignored after it has ended, or while it is being ended."""
        self._now = now
        member = self._find(name, replica, generation, "ready")
        if member is not None and member.state is ReplicaState.STARTING:
            self._enter(member, ReplicaState.READY, "ready")
            member.healed = True
            self._tell_gang_is_ready(member.gang)
        return self._settle()

    def waits_for_stop(self, name: str, replica: int, generation: int, now: float) -> list[Instruction]:
        """A finite replica runs until it is asked to end; its end is not waited for if there are other finite ones."""
        self._now = now
        member = self._find(name, replica, generation, "waits for the stop")
        if member is not None and member.alive:
            with self._counted_again([member]):
                member.waits_for_stop = True
        return self._settle()

    def ended(
        self, name: str, replica: int, generation: int, ok: bool, cause: str, now: float, *, for_good: bool = False
    ) -> list[Instruction]:
        """A replica has ended, or could not be started.

        Args:
            name: the node's name.
            replica: its index.
            generation: as in its `Start`.
            ok: whether it returned; if it should not return by itself, that is a failure too.
            cause: one line that says why it failed.
            now: monotonic time in seconds.
            for_good: whether it says that a restart would fail in the same way (`FailedForGood`).

        Raises:
            RuntimeError: it does not run; the message contains its history.
        """
        self._now = now
        event = "ended well" if ok else f"failed ({cause})"
        member = self._find(name, replica, generation, event)
        if member is None:
            return self._settle()
        if not member.alive:
            self._refuse(member, event, generation)
        if member.state is ReplicaState.ENDING:
            self._has_been_ended(member, event)
        elif ok and (member.node.rule.finite or member.gang.rule.policy == "always"):
            self._has_completed(member)
        else:
            words = cause if not ok else "ended although it serves until the program stops"
            self._has_failed(member, words, for_good=for_good)
        return self._settle()

    def stop(self, now: float, reason: str = "") -> list[Instruction]:
        """End everything; nothing is started any more. Ignored after the first call and after the program's end."""
        self._now = now
        if self.outcome is ProgramOutcome.RUNNING:
            self.stop_reason = reason
            self._finish(ProgramOutcome.STOPPED, f"the program stops: {reason}" if reason else "the program stops")
        return self._settle()

    def scale(self, name: str, replicas: int, now: float) -> list[Instruction]:
        """Change the number of replicas: the highest ones are ended, or new ones started.

        A gang with strategy "together" restarts as a whole, because its size is part of it.

        Raises:
            ValueError: there is no such node, or the number is negative.
            TypeError: it is no whole number.
        """
        self._now = now
        node = self._node(name)
        _check_replicas(replicas)
        if not self._begun or self.outcome is not ProgramOutcome.RUNNING:
            return []
        before = node.wanted
        with self._counted_again(node.replicas):
            node.wanted = replicas
        self._grow(node)
        changed = node.replicas[min(before, replicas) : max(before, replicas)]
        for gang in dict.fromkeys(member.gang for member in changed):
            if replicas > before or gang.alive or gang.due is not None:
                self._restart(gang, now, f"{name} is scaled from {before} to {replicas}")
        for member in changed:
            if not member.wanted and not member.alive:
                self._enter(member, ReplicaState.REMOVED, f"scaled to {replicas}")
        return self._settle()

    def restart(self, name: str, now: float, replica: int | None = None) -> list[Instruction]:
        """Restart all replicas of a node, or one, including completed and failed ones; waits are cut short.

        Healthy replicas are ended first; restart budgets are not used. With strategy "together" the whole gang
        restarts.

        Raises:
            ValueError: there is no such node or replica.
        """
        self._now = now
        node = self._node(name)
        if replica is not None:
            self.check_replica(name, replica)
        if not self._begun or self.outcome is not ProgramOutcome.RUNNING:
            return []
        chosen = node.replicas if replica is None else [node.replicas[replica]]
        for gang in dict.fromkeys(member.gang for member in chosen if member.wanted):
            self._restart(gang, now, "a restart was asked for")
        return self._settle()

    def leaves(self, name: str, replica: int, generation: int, why: str, now: float) -> list[Instruction]:
        """A replica must leave its host: it is restarted elsewhere, with its gang, without using its restart budget."""
        self._now = now
        member = self._find(name, replica, generation, f"has to leave its host ({why})")
        if (
            member
            and member.alive
            and member.state is not ReplicaState.ENDING
            and self.outcome is ProgramOutcome.RUNNING
        ):
            self._restart(member.gang, now, f"{member.label} has to leave its host: {why}")
        return self._settle()

    def tick(self, now: float) -> list[Instruction]:
        """Start the replicas whose wait is over."""
        self._now = now
        return self._settle()

    # Its state

    @property
    def next_due(self) -> float | None:
        """The time at which `tick` will have something to do; None if it depends on events only."""
        return min((due for gang, due in self._due.items() if not gang.alive), default=None)

    @property
    def done(self) -> bool:
        """Whether the program has an outcome and none of its replicas lives."""
        return self.outcome is not ProgramOutcome.RUNNING and not self._num_alive

    @property
    def replicas(self) -> list[ReplicaStatus]:
        """All replicas except those that were scaled away and have ended."""
        return [
            member.status
            for node in self._nodes.values()
            for member in node.replicas
            if member.state is not ReplicaState.REMOVED
        ]

    def replica(self, name: str, replica: int) -> ReplicaStatus | None:
        """A replica of a node; None if it was scaled away and has ended.

        Raises:
            ValueError: there is no such node.
        """
        member = self._node(name).replicas[replica]
        return None if member.state is ReplicaState.REMOVED else member.status

    def take_changes(self) -> list[ReplicaStatus]:
        """The replicas that may have changed since the last call, those included that were scaled away meanwhile."""
        changed, self._changed = self._changed, {}
        return [member.status for member in changed]

    @property
    def is_ready(self) -> bool:
        """Whether every replica is ready, or has ended and is not restarted."""
        return not any(member.state in _COMING for node in self._nodes.values() for member in node.replicas)

    @property
    def awaited(self) -> list[ReplicaStatus]:
        """The replicas that have to complete before the program does, and have not completed."""
        return [
            member.status
            for node in self._nodes.values()
            for member in node.replicas[: node.wanted]
            if member.awaited and member.state is not ReplicaState.COMPLETED
        ]

    @property
    def awaited_nodes(self) -> Collection[str]:
        """The nodes of these replicas."""
        return self._incomplete.keys()

    def check_replica(self, name: str, replica: int) -> None:
        """Check that a node has a replica with this index, whether it runs now or not.

        Raises:
            ValueError: there is no such node or replica; the error says how many there are, and which of them run.
        """
        node = self._node(name)
        if replica not in range(node.wanted):
            alive = [str(member.index) for member in node.replicas if member.alive]
            now = listed(alive, _MOST_TOLD) or "none"
            raise ValueError(f"{name} has no replica {replica!r}; it has {node.wanted}, from 0; running now: {now}")

    def sequel(self, name: str, replica: int) -> Sequel:
        """What follows the latest failure of a replica, while the program runs.

        Raises:
            ValueError: there is no such node.
        """
        gang = self._node(name).replicas[replica].gang
        limits = gang.intensity.policy
        return Sequel(
            reason=gang.given_up,
            wait_s=0.0 if gang.due is None else max(0.0, gang.due - self._now),
            num_together=len(gang.wanted),
            num_failures=gang.intensity.num_failures,
            max_restarts=limits.max_restarts,
            window=limits.span,
        )

    # Changes

    def _has_been_ended(self, member: Replica, event: str) -> None:
        if self.outcome is not ProgramOutcome.RUNNING:
            self._enter(member, ReplicaState.STOPPED, event)
        elif not member.wanted:
            self._enter(member, ReplicaState.REMOVED, event)
        elif member.gang.due is not None:
            self._enter(member, ReplicaState.WAITING, event)
        else:  # its gang has failed, and the program goes on without it
            self._enter(member, ReplicaState.STOPPED, event)

    def _has_completed(self, member: Replica) -> None:
        self._enter(member, ReplicaState.COMPLETED, "completed")
        gang = member.gang
        self._tell_gang_is_ready(gang)
        # The ranks of a gang complete one after the other: the last one decides.
        others_have_too = all(other.state is ReplicaState.COMPLETED for other in gang.wanted if other.node.rule.finite)
        if gang.rule.policy == "always" and (others_have_too or not member.node.rule.finite):
            self._restart(
                gang, self._now + gang.rule.backoff_s, f'{gang.key} has completed, and its policy is "always"'
            )

    def _has_failed(self, member: Replica, cause: str, *, for_good: bool) -> None:
        gang = member.gang
        member.num_failures += 1
        member.cause = cause
        member.healed = False
        self._enter(member, ReplicaState.FAILED, f"failed: {cause}")
        gang.failures.append(Failed(member.node.rule.name, member.index, member.generation, cause, "", ()))
        if gang.rule.policy == "never":
            answer = GiveUp('its restart rule is "never"', (cause,))
        elif for_good:
            answer = GiveUp("a restart would fail in the same way", (cause,))
        else:
            answer = gang.intensity.failed(self._now, cause)
        if isinstance(answer, GiveUp):
            self._give_up(gang, answer)
        else:
            self._restart(gang, self._now + answer.delay_s, f"{member.label} of its gang failed: {cause}")

    def _give_up(self, gang: Gang, answer: GiveUp) -> None:
        first = dataclasses.replace(gang.failures[-len(answer.deaths)], reason=answer.reason, deaths=answer.deaths)
        why = f"{first.name}/{first.replica} failed: {first.cause}"
        gang.given_up = answer.reason
        gang.renew_budget()  # a restart by the user gets the full budget again
        if self.outcome is ProgramOutcome.RUNNING and any(member.node.rule.essential for member in gang.members):
            self.failure = first
            self._said.append(first)
            self._finish(ProgramOutcome.FAILED, f"the program has failed: {why}")
        else:
            for member in gang.members:
                self._end(member, f"its gang has failed: {why}")

    def _restart(self, gang: Gang, due: float, why: str) -> None:
        self._plan(gang, due)
        gang.given_up = ""
        for member in gang.members:
            if member.alive:
                self._end(member, why)
            elif member.wanted and member.state is not ReplicaState.WAITING:
                self._enter(member, ReplicaState.WAITING, why)

    def _finish(self, outcome: ProgramOutcome, why: str) -> None:
        self.outcome, self.why_it_ends = outcome, why
        self._due.clear()
        for node in self._nodes.values():
            for member in node.replicas:
                if member.state is ReplicaState.WAITING:
                    self._enter(member, ReplicaState.STOPPED, why)
                self._end(member, why)

    def _end(self, member: Replica, why: str) -> None:
        """End a replica, unless it has ended or is being ended already."""
        if member.alive and member.state is not ReplicaState.ENDING:
            self._enter(member, ReplicaState.ENDING, why)
            self._said.append(EndReplica(member.node.rule.name, member.index, member.generation, why))

    def _settle(self) -> list[Instruction]:
        """After each event: see whether the program is complete, start due replicas, and return the instructions."""
        if self._begun and self.outcome is ProgramOutcome.RUNNING:
            if self._is_complete():
                self._said.append(Completed())
                self._finish(ProgramOutcome.COMPLETED, "the program has completed")
            else:
                for gang, due in list(self._due.items()):
                    if due <= self._now and not gang.alive:
                        self._start(gang)
        said, self._said = self._said, []
        return said

    def _start(self, gang: Gang) -> None:
        gang.due = None
        del self._due[gang]
        members = gang.wanted
        gang.generation += bool(members)
        for member in members:
            member.generation = gang.generation
            with self._counted_again([member]):
                member.waits_for_stop = False
            self._enter(member, ReplicaState.STARTING, f"generation {gang.generation} is started")
            self._said.append(Start(member.node.rule.name, member.index, gang.generation))

    def _is_complete(self) -> bool:
        if self._num_awaited:
            return not self._incomplete
        # Without an awaited replica the program runs until it is stopped, or until no (inessential) replica is left.
        return not self._num_unfinished and any(node.wanted for node in self._nodes.values())

    # Smaller steps

    def _grow(self, node: SupervisedNode) -> None:
        """Make records for wanted replicas that have none."""
        for index in range(len(node.replicas), node.wanted):
            rule = node.rule
            together = rule.restart.strategy == "together"
            key = f"gang {rule.gang or rule.name}" if together else f"{rule.name}/{index}"
            gang = self._gangs.get(key)
            if gang is None:
                gang = self._gangs[key] = Gang(key, rule.restart, self._seed)
            elif gang.rule != rule.restart:
                raise ValueError(
                    f"the nodes of {key} restart together and need one restart rule, "
                    f"but {rule.name!r} has {rule.restart} and {gang.members[0].node.rule.name!r} has {gang.rule}"
                )
            member = Replica(node, index, gang)
            gang.members.append(member)
            node.replicas.append(member)
            self._count(member, 1)
            self._changed[member] = None

    def _plan(self, gang: Gang, due: float) -> None:
        gang.due = self._due[gang] = due

    @contextlib.contextmanager
    def _counted_again(self, members: Sequence[Replica]) -> Generator[None]:
        """Within the block, something changes on which the counts of these replicas depend."""
        for member in members:
            self._count(member, -1)
        yield
        for member in members:
            self._count(member, 1)

    def _count(self, member: Replica, by: int) -> None:
        self._num_alive += by * member.alive
        if member.wanted:
            self._num_unfinished += by * (member.state not in _OVER)
            if member.awaited:
                self._num_awaited += by
                if member.state is not ReplicaState.COMPLETED:
                    self._incomplete[member.node.rule.name] += by
                    if not self._incomplete[member.node.rule.name]:
                        del self._incomplete[member.node.rule.name]

    def _tell_gang_is_ready(self, gang: Gang) -> None:
        if all(member.state in (ReplicaState.READY, ReplicaState.COMPLETED) for member in gang.wanted):
            gang.intensity.ready()

    def _enter(self, member: Replica, state: ReplicaState, why: str) -> None:
        member.history.append(f"{self._now:.3f} {member.state.value} -> {state.value}: {why}")
        with self._counted_again([member]):
            member.state = state
        self._changed[member] = None

    def _node(self, name: str) -> SupervisedNode:
        if name not in self._nodes:
            raise ValueError(f"no node has the name {name!r}{instead_of(name, self._nodes)}")
        return self._nodes[name]

    def _find(self, name: str, replica: int, generation: int, event: str) -> Replica | None:
        """The replica; None if the event is about an earlier generation of it."""
        node = self._nodes.get(name)
        if node is None or not 0 <= replica < len(node.replicas):
            raise RuntimeError(f"{name}/{replica}, generation {generation}: {event}; there never was such a replica")
        member = node.replicas[replica]
        if generation > member.generation:
            self._refuse(member, event, generation)
        return member if generation == member.generation else None

    def _refuse(self, member: Replica, event: str, generation: int) -> NoReturn:
        history = "".join(f"\n  {line}" for line in member.history) or "\n  nothing"
        raise RuntimeError(
            f"{member.label}, generation {generation}: {event}; this cannot happen while it is "
            f"{member.state.value} in generation {member.generation}. What happened to it:{history}"
        )


def _check_replicas(replicas: int) -> None:
    check_number("replicas", replicas, int, "a whole number", least=0, required=True)
