"""Which actor collects which block in lock-step. Pure: calls in, tasks out, time as an argument.

In round r every group of environments collects one block, with the weights after round r - 1 - lag. A block follows
from its task alone, so any actor may collect it, any number of times: a lost one is given out again, and the first
that comes back counts.

    lag 0                                lag 1
    round   weights   may begin when     round   weights   may begin when
    0       0         at once            0       0         at once
    1       1         round 0 learned    1       0         its group's block 0 is there
    2       2         round 1 learned    2       1         that, and round 0 learned
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

_AGAIN_S = 2.0
_TIMES_AS_LONG = 3.0
"""A block that has not come back after two seconds, and three times as long as any other of late has taken, is late: an
idle actor collects it too."""


@dataclass(frozen=True, slots=True)
class RoundTask:
    """A block to collect.

    Attributes:
        group: the group of environments.
        number: number of the block within its group, which is the round.
        version: version of the weights to act with.
    """

    group: int
    number: int
    version: int


@dataclass(slots=True)
class _Given:
    actors: set[str] = field(default_factory=set[str])
    since: float = 0.0


class RoundBook:
    """Keeps which blocks of the current rounds are collected, by which actors.

    Args:
        groups: number of groups.
        lag: 0: actors wait until the last round is learned; 1: they collect a round while the last one is learned.
        learned: rounds that were learned already.
    """

    def __init__(self, groups: int, lag: int = 0, *, learned: int = 0) -> None:
        self.groups, self.lag, self.learned = groups, lag, learned
        self._delivered = [learned] * groups
        """For each group, the number of its next block."""
        self._given: dict[RoundTask, _Given] = {}
        self._slowest_s = 0.0
        """What the slowest block took; half of it is forgotten in each round."""

    @property
    def round_is_complete(self) -> bool:
        """Whether every group has delivered its block of the round that is learned next."""
        return min(self._delivered) > self.learned

    @property
    def missing(self) -> list[int]:
        """Groups whose block of the round that is learned next has not come."""
        return [group for group, number in enumerate(self._delivered) if number <= self.learned]

    def given(self) -> dict[int, list[str]]:
        """Return the actors that collect the next block of each group, by group."""
        found: dict[int, list[str]] = {}
        for task, given in self._given.items():
            found.setdefault(task.group, []).extend(sorted(given.actors))
        return found

    def ask(self, actor: str, holds: Collection[tuple[int, int]], now: float) -> RoundTask | None:
        """Return a block for an actor to collect, or None if there is none now.

        Args:
            actor: its run id; tasks of an earlier life of the same actor are open again.
            holds: (group, number of the next block) of the environments that the actor has, which need no rebuilding.
            now: time in seconds.
        """
        self._forget_earlier_lives(actor)
        tasks = [
            RoundTask(group, number, max(0, number - self.lag))
            for group, number in enumerate(self._delivered)
            if number - self.lag <= self.learned
        ]
        tasks.sort(key=lambda task: (task.number, (task.group, task.number) not in holds, task.group))
        open_tasks = [task for task in tasks if task not in self._given]
        late = [task for task in tasks if task not in open_tasks and self._is_late(task, actor, now)]
        for task in (open_tasks or late)[:1]:
            given = self._given.setdefault(task, _Given())
            given.actors.add(actor)
            given.since = now
            return task
        return None

    def deliver(self, group: int, number: int, now: float = 0.0) -> bool:
        """Note that a block has come; return False if it is not the next one of its group, and so is dropped."""
        if number != self._delivered[group]:
            return False
        for task, given in self._given.items():
            if (task.group, task.number) == (group, number):
                self._slowest_s = max(self._slowest_s, now - given.since)
        self._delivered[group] += 1
        self._given = {
            task: given for task, given in self._given.items() if (task.group, task.number) != (group, number)
        }
        return True

    def learn(self) -> None:
        """Note that the round was learned.

        Raises:
            RuntimeError: the round is not complete.
        """
        if not self.round_is_complete:
            raise RuntimeError(f"round {self.learned} was learned without the blocks of the groups {self.missing}")
        self.learned += 1
        self._slowest_s /= 2

    def forget(self, actor: str) -> None:
        """Give out again what an actor has that will not deliver."""
        for task, given in list(self._given.items()):
            given.actors.discard(actor)
            if not given.actors:
                del self._given[task]

    def _forget_earlier_lives(self, actor: str) -> None:
        name, _, life = actor.partition("#")
        others = {other for given in self._given.values() for other in given.actors}
        for other in others:
            if other.partition("#")[0] == name and other.partition("#")[2] != life:
                self.forget(other)

    def _is_late(self, task: RoundTask, actor: str, now: float) -> bool:
        given = self._given[task]
        return actor not in given.actors and now - given.since > max(_AGAIN_S, _TIMES_AS_LONG * self._slowest_s)


__all__ = ["RoundBook", "RoundTask"]
