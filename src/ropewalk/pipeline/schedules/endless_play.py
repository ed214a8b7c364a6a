"""Simulates endless orders as far as micro-batches are admitted, and replays the lists once they repeat.

    admit(4)  F0 F1 F2 B0 F3 B1         simulated; the state after it is new
    admit(4)  F4 B2 F5 B3 F6 B4 F7 B5   simulated; new
    admit(4)  F8 B6 ...                 simulated; the state equals the one before it, 4 micro-batches later
    admit(4)                            the same lists again with numbers 4 higher: nothing is simulated

Micro-batches and rounds are counted from 0 here, and workers are numbered as if the pipeline
was empty at 0; the callers translate both to those of the whole run. Lists are replayed
because each worker needs the lists of all workers, which decide where a Receive must come
early, and simulating 8 stages takes 0.15 ms for each micro-batch.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import lcm

from ropewalk.pipeline.actions import Action, ActionKind
from ropewalk.pipeline.plans import Plan, PlanWorker
from ropewalk.pipeline.transfers import Play

Orders = Mapping[PlanWorker, Iterator[Action]]
"""For each worker its computing actions, reductions and steps."""

Lists = dict[PlanWorker, list[Action]]

_NUM_REMEMBERED = 256
"""Most admissions that are stored while no state has repeated; with replicas, a cycle may have many admissions."""


class EndlessPlay:
    """Simulates workers on their endless orders.

    Args:
        plan: the plan that the orders belong to.
        orders: the endless orders of all workers, without transfers.
        round_sizes: for each stage, the number of pieces of one update.
    """

    def __init__(self, plan: Plan, orders: Orders, round_sizes: Sequence[int]) -> None:
        self._plan = plan
        self._orders = orders
        self._round_sizes = round_sizes
        self._last: dict[tuple[PlanWorker, ActionKind], Action] = {}
        """How far each worker is in its order: the last action of each kind."""
        self._is_draining = False
        self.num_admitted = 0
        self._play = Play(plan, {worker: partial(self._turn, worker) for worker in plan.workers})

    def admit(self, num: int) -> Lists:
        """Return the actions before the first micro-batch that is not admitted, in simulated time.

        Args:
            num: number of micro-batches to admit; 0: return all actions that the admitted ones allow.
        """
        self.num_admitted += num
        go_on = self._play.go_on if num else self._play.go_around
        return by_worker(self._plan, go_on(self._is_beyond))

    def drain(self) -> Lists:
        """Return the remaining lists; no further call is allowed afterwards."""
        self._is_draining = True
        self._play.leave_out(self._is_beyond)
        rest = by_worker(self._plan, self._play.go_on(self._is_beyond))
        self._play.check_done()
        return rest

    def state(self) -> Hashable:
        """Return the state that determines what follows, relative to the number of admitted micro-batches."""
        num = self.num_admitted
        last = frozenset((key, self._counted(action, num)) for key, action in self._last.items())
        return last, self._play.state(num)

    def _counted(self, action: Action, num: int) -> Hashable:
        if action.micro_batch is not None:
            return action.kind, action.stage, action.micro_batch - num
        assert action.version is not None
        return action.kind, action.stage, action.group, action.version * self._round_sizes[action.stage] - num

    def _turn(self, worker: PlanWorker) -> Action | None:
        """The next action of a worker. A drain omits what was not admitted, and ends with the step of the rest."""
        action = next(self._orders[worker])
        while self._is_draining and self._is_beyond(action):
            if action.kind is ActionKind.STEP:
                return None
            action = next(self._orders[worker])
        self._last[worker, action.kind] = action
        return action

    def _is_beyond(self, action: Action) -> bool:
        """Whether an action is for pieces that were not admitted; an update is if no piece of its round was."""
        if action.micro_batch is not None:
            return action.micro_batch >= self.num_admitted
        assert action.version is not None
        return (action.version - 1) * self._round_sizes[action.stage] >= self.num_admitted


@dataclass(frozen=True, slots=True)
class _Admission:
    """An admission: its micro-batches, the resulting lists, and the total number admitted by then."""

    num: int
    lists: Lists
    num_admitted: int


class RepeatedPlay:
    """An `EndlessPlay` that stores its lists, and returns them again once they repeat."""

    def __init__(self, plan: Plan, orders: Orders, round_sizes: Sequence[int]) -> None:
        self._play = EndlessPlay(plan, orders, round_sizes)
        self._period = lcm(*round_sizes, *(stage.replicas for stage in plan.stages))
        """The number of micro-batches after which all replicas and all rounds repeat."""
        self._seen: list[_Admission] = []
        """Admissions since the simulation began or a cycle was left, and the states after them."""
        self._places: dict[Hashable, int] = {}
        self._circle: list[_Admission] = []
        """Admissions that lead from a state back to it; the number that was replayed, and the next one."""
        self._at = 0
        self._ahead = 0
        """How many micro-batches the run is ahead of the simulation."""

    def admit(self, num: int) -> tuple[Lists, int]:
        """Return the lists of `EndlessPlay.admit`, and the number to add to their micro-batches."""
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
        """Return the remaining lists, and the number to add; no further call is allowed afterwards."""
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
        """Simulate what was replayed since the simulation was last in the state where the cycle closes."""
        circle, at = self._circle, self._at
        self._circle, self._at = [], 0
        for one in circle[:at]:
            self._play.admit(one.num)


def by_worker(plan: Plan, played: Iterator[tuple[PlanWorker, Action]]) -> Lists:
    """Return the lists of all workers, from their actions in the order of simulation."""
    found: Lists = {worker: [] for worker in plan.workers}
    for worker, action in played:
        found[worker].append(action)
    return found
