"""Endless orders, played as far as micro-batches are admitted, and from memory once that repeats itself.

    admit(4)  F0 F1 F2 B0 F3 B1         played; the state behind it is new
    admit(4)  F4 B2 F5 B3 F6 B4 F7 B5   played; new
    admit(4)  F8 B6 ...                 played; the state is that before it, but for 4 micro-batches
    admit(4)                            the same lists again, 4 further on: nothing is played

Micro-batches are counted from 0 here, and so are rounds; workers are called as if the
pipeline was empty at 0. Whoever uses this counts and calls them as the whole run does.
Why from memory: each worker needs the lists of all, because they decide where a Receive
must come early, and to play 8 stages takes 0.15 ms for each micro-batch.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import lcm

from ropewalk.pipeline.actions import Action, ActionKind
from ropewalk.pipeline.plans import Plan, PlanWorker
from ropewalk.pipeline.transfers import Play

#: For each worker what it computes, with its reductions and steps.
Orders = Mapping[PlanWorker, Iterator[Action]]

Lists = dict[PlanWorker, list[Action]]

#: Admissions that are remembered while no two led to one state; where replicas take turns, many make a circle.
_NUM_REMEMBERED = 256


class EndlessPlay:
    """Workers on their endless orders.

    Args:
        plan: what runs.
        orders: the endless orders of all workers, without transfers.
        round_sizes: for each stage, how many pieces make one update.
    """

    def __init__(self, plan: Plan, orders: Orders, round_sizes: Sequence[int]) -> None:
        self._plan = plan
        self._orders = orders
        self._round_sizes = round_sizes
        #: How far each worker is in its order: the last of each kind.
        self._last: dict[tuple[PlanWorker, ActionKind], Action] = {}
        self._is_draining = False
        self.num_admitted = 0
        self._play = Play(plan, {worker: partial(self._turn, worker) for worker in plan.workers})

    def admit(self, num: int) -> Lists:
        """What comes before the first micro-batch after these, by the clock of the play; 0: all that these allow."""
        self.num_admitted += num
        go_on = self._play.go_on if num else self._play.go_around
        return by_worker(self._plan, go_on(self._is_beyond))

    def drain(self) -> Lists:
        """What remains; afterwards this play is over."""
        self._is_draining = True
        self._play.leave_out(self._is_beyond)
        rest = by_worker(self._plan, self._play.go_on(self._is_beyond))
        self._play.check_done()
        return rest

    def state(self) -> Hashable:
        """What decides how it goes on, counted from what was admitted."""
        num = self.num_admitted
        last = frozenset((key, self._counted(action, num)) for key, action in self._last.items())
        return last, self._play.state(num)

    def _counted(self, action: Action, num: int) -> Hashable:
        if action.micro_batch is not None:
            return action.kind, action.stage, action.micro_batch - num
        assert action.version is not None
        return action.kind, action.stage, action.group, action.version * self._round_sizes[action.stage] - num

    def _turn(self, worker: PlanWorker) -> Action | None:
        """What a worker does next. A drain leaves out what was not admitted, and ends with the step of what was."""
        action = next(self._orders[worker])
        while self._is_draining and self._is_beyond(action):
            if action.kind is ActionKind.STEP:
                return None
            action = next(self._orders[worker])
        self._last[worker, action.kind] = action
        return action

    def _is_beyond(self, action: Action) -> bool:
        """Whether it is for pieces that were not admitted; an update is, if its round has none that were."""
        if action.micro_batch is not None:
            return action.micro_batch >= self.num_admitted
        assert action.version is not None
        return (action.version - 1) * self._round_sizes[action.stage] >= self.num_admitted


@dataclass(frozen=True, slots=True)
class _Admission:
    """What was admitted, what came of it, and how many were admitted then."""

    num: int
    lists: Lists
    num_admitted: int


class RepeatedPlay:
    """The same as `EndlessPlay`, with lists that repeat themselves given from memory."""

    def __init__(self, plan: Plan, orders: Orders, round_sizes: Sequence[int]) -> None:
        self._play = EndlessPlay(plan, orders, round_sizes)
        #: After as many micro-batches all replicas and all rounds are where they were.
        self._period = lcm(*round_sizes, *(stage.replicas for stage in plan.stages))
        #: Admissions since the play began or a circle was left, and the states behind them.
        self._seen: list[_Admission] = []
        self._places: dict[Hashable, int] = {}
        #: Admissions that lead from a state back to it; how many of them were repeated, the next of them.
        self._circle: list[_Admission] = []
        self._at = 0
        #: How much further the run is than the play.
        self._ahead = 0

    def admit(self, num: int) -> tuple[Lists, int]:
        """As that of `EndlessPlay`, and what to add to the numbers of micro-batches in it."""
        if self._circle:
            one = self._circle[self._at]
            if one.num == num:
                ahead = self._ahead + self._length
                self._at += 1
                if self._at == len(self._circle):
                    self._at, self._ahead = 0, ahead
                return one.lists, ahead
            self._leave_circle()
        lists = self._play.admit(num)
        self._remember(_Admission(num, lists, self._play.num_admitted))
        return lists, self._ahead

    def drain(self) -> tuple[Lists, int]:
        """What remains, and what to add; afterwards this play is over."""
        self._leave_circle()
        return self._play.drain(), self._ahead

    @property
    def _length(self) -> int:
        return sum(one.num for one in self._circle)

    def _remember(self, admission: _Admission) -> None:
        if len(self._seen) == _NUM_REMEMBERED:
            self._seen, self._places = [], {}
        state = self._play.state()
        self._seen.append(admission)
        place = self._places.setdefault(state, len(self._seen) - 1)
        before = self._seen[place]
        length = admission.num_admitted - before.num_admitted
        if length and length % self._period == 0:
            self._circle, self._at = self._seen[place + 1 :], 0
            self._seen, self._places = [], {}

    def _leave_circle(self) -> None:
        """Let the play do what was given from memory since it was last in the state where the circle closes."""
        circle, at = self._circle, self._at
        self._circle, self._at = [], 0
        for one in circle[:at]:
            self._play.admit(one.num)


def by_worker(plan: Plan, played: Iterator[tuple[PlanWorker, Action]]) -> Lists:
    """The lists of all workers, from what they did in turn."""
    found: Lists = {worker: [] for worker in plan.workers}
    for worker, action in played:
        found[worker].append(action)
    return found
