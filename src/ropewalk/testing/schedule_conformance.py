"""The conformance suite of schedules.

    class TestMine(ScheduleConformance):            # pytest runs its methods; pytest is not needed to import this
        def make_schedule(self) -> Schedule:
            return Mine()

Each method tries plans of one to four groups of devices, with one replica, two, and unequal numbers of replicas, with
skip connections, tied parameters and recomputation. A schedule may refuse a plan by `ScheduleInvalid`, but not all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate

from ropewalk.errors import ScheduleInvalid
from ropewalk.pipeline.actions import Action, ActionKind
from ropewalk.pipeline.grid import draw_grid, parse_actions, parse_grid, show_actions
from ropewalk.pipeline.plans import Plan, PlanWorker, Stage, assemble
from ropewalk.pipeline.profiles import Operator, Profile
from ropewalk.pipeline.resuming import can_cut, last_step, round_of
from ropewalk.pipeline.schedules import Schedule
from ropewalk.pipeline.transfers import UNITS
from ropewalk.pipeline.verifier import verify
from ropewalk.testing.conformance_suite import ConformanceSuite

Lists = dict[PlanWorker, list[Action]]
"""The actions of each worker of a plan, in their order."""


class ScheduleConformance(ConformanceSuite):
    """The suite: subclass it, override `make_schedule`, and run it by pytest or with the tests of `all_tests()`."""

    micro_batches: tuple[int, ...] = (1, 3, 4, 8, 12)
    """The numbers of micro-batches of the plans."""
    replicas: tuple[tuple[int, ...], ...] = ((1,), (1, 1), (1, 1, 1, 1), (2, 2, 2), (1, 2, 3), (3, 1))
    """The replicas of each group of devices, for each plan."""

    def make_schedule(self) -> Schedule:
        """Make a schedule as your users do."""
        raise NotImplementedError("say how your schedule is made: override make_schedule()")

    # --- tests --------------------------------------------------------------------------------------------------------

    def test_its_lists_keep_every_law(self) -> None:
        """`verify` finds no error in the actions of any plan that the schedule accepts."""
        for schedule, plan in self._plans():
            verify(plan, schedule.actions(plan), schedule)

    def test_it_refuses_in_the_same_way_everywhere(self) -> None:
        """A plan that `check` refuses is also refused by `actions` and `stream`, with a reason."""
        for replicas in self.replicas:
            for micro_batches in self.micro_batches:
                schedule = self.make_schedule()
                plan = sample_plan(schedule, replicas, micro_batches)
                answers = [_refusal(ask, plan) for ask in (schedule.check, schedule.actions, schedule.stream)]
                assert len(set(answers)) == 1, f"check, actions and stream say different things of {plan}: {answers}"
                assert answers[0] != "", "a refusal must say why"

    def test_its_bounds_are_reached(self) -> None:
        """`in_flight_at`, `held_at` and `held_by` are reached exactly; others are not less, and updates as large."""
        for schedule, plan in self._plans():
            lists = _long_run(schedule, plan)
            in_flight, held, together = peaks(plan, lists)
            between = most_between_halves(plan, lists)
            for stage in plan.stages:
                after, replicas = plan.workers_after(stage.id), stage.replicas
                sizes = schedule.round_size(plan, stage.id), schedule.update_size(replicas, plan.micro_batches)
                assert sizes[0] == sizes[1], f"stage {stage.id}: round_size {sizes[0]}, but update_size {sizes[1]}"
                bound, held_bound = schedule.in_flight_at(plan, stage.id), schedule.held_at(plan, stage.id)
                assert in_flight[stage.id] == bound, _said(schedule, plan, stage.id, in_flight[stage.id], bound)
                assert held[stage.id] == held_bound, _said(schedule, plan, stage.id, held[stage.id], held_bound)
                assert bound <= schedule.in_flight(after, replicas, plan.micro_batches)
                assert held_bound <= schedule.held(after, replicas, plan.micro_batches, len(plan.stages))
                bound = schedule.between_halves(after, replicas, plan.micro_batches, len(plan.stages))
                assert between[stage.id] <= bound, _said(schedule, plan, stage.id, between[stage.id], bound)
            for group, stages in enumerate(plan.groups):
                bound = schedule.held_by(plan, group)
                assert together[group] == bound, _said(schedule, plan, stages[0], together[group], bound)

    def test_portions_of_admission_make_no_difference(self) -> None:
        """A stream gives the same actions for any portions of admitted micro-batches, and again after a drain."""
        for schedule, plan in self._plans():
            whole = schedule.actions(plan)
            portions = [plan.micro_batches] if schedule.flushes else [1] * plan.micro_batches
            stream = schedule.stream(plan)
            lists = joined([*(stream.admit(num) for num in portions), stream.drain()])
            verify(plan, lists, schedule)
            assert lists == whole, f"{schedule.name}: other lists in portions, {plan}"
            again = joined([stream.admit(plan.micro_batches), stream.drain()])
            assert _counted_anew(schedule, plan, again) == whole, f"{schedule.name} goes on differently for {plan}"

    def test_an_endless_order_repeats_itself(self) -> None:
        """Without a flush, a long run in equal portions, mostly from a cache, equals the run in one portion."""
        for schedule, plan in self._plans():
            if schedule.flushes or plan.micro_batches > 4:
                continue
            stream = schedule.stream(plan)
            lists = joined([*(stream.admit(plan.micro_batches) for _ in range(20)), stream.drain()])
            stream = schedule.stream(plan)
            whole = joined([stream.admit(20 * plan.micro_batches), stream.drain()])
            assert lists == whole, f"{schedule.name} does not repeat itself, {plan}"

    def test_it_goes_on_from_a_cut(self) -> None:
        """A run from a cut repeats the forwards that were in flight there, and then does the rest of the run."""
        for schedule, plan in self._plans():
            num = plan.micro_batches if schedule.flushes else 2 * round_of(plan, schedule)
            stream = schedule.stream(plan)
            before = [stream.admit(num)]
            cut = stream.position
            assert can_cut(plan, schedule, cut)
            whole = joined([*before, stream.admit(plan.micro_batches), stream.drain()])
            stream = schedule.stream(plan, start=cut)
            resumed = joined([stream.admit(plan.micro_batches), stream.drain()])
            for worker, row in whole.items():
                computing = without_transfers(row)
                place = computing.index(last_step(plan, schedule, cut, worker)) + 1
                in_flight = [] if schedule.flushes else _beyond(cut.next_micro_batch, computing[:place])
                assert all(action.kind is ActionKind.FORWARD for action in in_flight), (
                    f"{schedule.name} goes backward for a later round before one has ended: {in_flight}, {plan}"
                )
                assert without_transfers(resumed[worker]) == in_flight + computing[place:], (
                    f"{schedule.name} goes on differently from {cut} at worker {worker}, {plan}"
                )

    def test_its_lists_and_grids_can_be_read_back(self) -> None:
        """The printed text is complete: lists have versions, grids the order of computing."""
        for schedule, plan in self._plans():
            lists = schedule.actions(plan)
            assert parse_actions(show_actions(lists)) == lists
            computing = {
                worker: [replace(action, version=None) for action in row if action.kind in UNITS]
                for worker, row in lists.items()
            }
            assert parse_grid(draw_grid(plan, lists)) == computing

    def test_it_keeps_no_state(self) -> None:
        """The same schedule gives the same lists again, after any other calls."""
        schedule = self.make_schedule()
        plans = [plan for _, plan in self._plans()]
        first = [schedule.actions(plan) for plan in plans]
        assert [self.make_schedule().actions(plan) for plan in reversed(plans)] == first[::-1]

    # --- plans --------------------------------------------------------------------------------------------------------

    def _plans(self) -> Iterator[tuple[Schedule, Plan]]:
        num_taken = 0
        for replicas in self.replicas:
            for micro_batches in self.micro_batches:
                schedule = self.make_schedule()
                plan = sample_plan(schedule, replicas, micro_batches)
                if _refusal(schedule.check, plan) is None:
                    num_taken += 1
                    yield schedule, plan
        assert num_taken, "the schedule refuses every plan of this suite; give it others by `replicas`, `micro_batches`"


def sample_plan(schedule: Schedule, replicas: Sequence[int], micro_batches: int, *, is_plain: bool = False) -> Plan:
    """Make a plan for a schedule on groups of devices.

    Args:
        schedule: the schedule, which says where stages run.
        replicas: the number of devices of each group.
        micro_batches: the number of micro-batches of a step.
        is_plain: whether the plan is only a chain of stages. Otherwise the first stage's value also goes to all later
            stages, one value has no gradient, the second stage recomputes, and the first and last stages share a
            parameter, if they have equally many replicas.

    Returns:
        The plan.
    """
    return sample(schedule, replicas, micro_batches, is_plain=is_plain)[1]


def sample(
    schedule: Schedule, replicas: Sequence[int], micro_batches: int, *, is_plain: bool = False
) -> tuple[Profile, Plan]:
    """Return `sample_plan` with its profile: forwards take 1 s on each group, backwards 2 s, their halves 1 s each."""
    num_groups, chunks = len(replicas), schedule.stages_per_worker
    num_stages = num_groups * chunks
    first_devices = list(accumulate(replicas, initial=0))
    placement = [schedule.group_of(stage, num_groups) for stage in range(num_stages)]
    has_extras = num_stages > 2 and not is_plain
    is_tied = has_extras and replicas[placement[0]] == replicas[placement[-1]]
    operators = [
        Operator(
            f"op{stage}",
            forward_s=1 / chunks,
            backward_s=2 / chunks,
            input_gradient_s=1 / chunks,
            weight_gradient_s=1 / chunks,
            output_bytes=8,
            parameters={"embedding": 8} if is_tied and stage in (0, num_stages - 1) else {},
        )
        for stage in range(num_stages)
    ]
    edges = {(f"op{stage}", f"op{stage + 1}") for stage in range(num_stages - 1)}
    if has_extras:
        operators.append(Operator("mask", output_bytes=1, gradient_bytes=0))
        edges.update((operators[0].id, operators[stage].id) for stage in range(1, num_stages))
        edges.add(("mask", operators[num_stages - 1].id))
    profile = Profile(tuple(operators), tuple(sorted(edges)))
    stages = [
        Stage(
            stage,
            (f"op{stage}", "mask") if has_extras and stage == 1 else (f"op{stage}",),
            tuple(range(first_devices[group], first_devices[group + 1])),
            recompute=stage == 1 and not is_plain,
        )
        for stage, group in enumerate(placement)
    ]
    return profile, assemble(profile, stages, schedule=schedule.name, micro_batches=micro_batches)


def joined(parts: Sequence[Lists]) -> Lists:
    """Join the lists of each worker, one after the other."""
    return {worker: [action for part in parts for action in part[worker]] for worker in parts[0]}


def without_transfers(row: Sequence[Action]) -> list[Action]:
    """Return a list without sends and receives."""
    return [action for action in row if action.kind not in (ActionKind.SEND, ActionKind.RECEIVE)]


def peaks(plan: Plan, lists: Lists) -> tuple[list[int], list[int], list[int]]:
    """Return the most micro-batches between F and B or I, between F and B or W, by stage, and the latter by group."""
    in_flight, held, together = [0] * len(plan.stages), [0] * len(plan.stages), [0] * len(plan.groups)
    for worker, row in lists.items():
        started, open_now, open_until_w = Counter[int](), Counter[int](), Counter[int]()
        for action in row:
            started[action.stage] += action.kind is ActionKind.FORWARD
            open_now[action.stage] += action.kind is ActionKind.FORWARD
            open_now[action.stage] -= action.kind in (ActionKind.BACKWARD, ActionKind.INPUT_GRADIENT)
            open_until_w[action.stage] += action.kind is ActionKind.FORWARD
            open_until_w[action.stage] -= action.kind in (ActionKind.BACKWARD, ActionKind.WEIGHT_GRADIENT)
            in_flight[action.stage] = max(in_flight[action.stage], open_now[action.stage])
            held[action.stage] = max(held[action.stage], open_until_w[action.stage])
            together[worker.group] = max(together[worker.group], open_until_w.total())
    return in_flight, held, together


def most_between_halves(plan: Plan, lists: Lists) -> list[int]:
    """Return the most micro-batches between I and W at one replica, by stage."""
    most = [0] * len(plan.stages)
    for row in lists.values():
        now = Counter[int]()
        for action in row:
            now[action.stage] += action.kind is ActionKind.INPUT_GRADIENT
            now[action.stage] -= action.kind is ActionKind.WEIGHT_GRADIENT
            most[action.stage] = max(most[action.stage], now[action.stage])
    return most


def _beyond(first: int, actions: Sequence[Action]) -> list[Action]:
    """Return the actions of this micro-batch and of later ones."""
    return [action for action in actions if action.micro_batch is not None and action.micro_batch >= first]


def _long_run(schedule: Schedule, plan: Plan) -> Lists:
    """Return one step; without a flush, enough pieces to fill every stage."""
    if schedule.flushes:
        return schedule.actions(plan)
    stream = schedule.stream(plan)
    fill = max(schedule.in_flight_at(plan, stage.id) * stage.replicas for stage in plan.stages)
    return joined([stream.admit(fill + plan.micro_batches), stream.drain()])


def _counted_anew(schedule: Schedule, plan: Plan, lists: Lists) -> Lists:
    """Renumber the lists of a second run, with micro-batches, versions and replicas as in a first one."""
    start = 0 if schedule.flushes else plan.micro_batches
    found: Lists = {}
    for worker, row in lists.items():
        num_replicas = plan.stages[plan.groups[worker.group][0]].replicas
        renamed = PlanWorker(worker.group, (worker.replica - start) % num_replicas)
        found[renamed] = [
            replace(
                action,
                replica=renamed.replica,
                micro_batch=None if action.micro_batch is None else action.micro_batch - start,
                version=None
                if action.version is None
                else action.version - -(-plan.micro_batches // schedule.round_size(plan, action.stage)),
            )
            for action in row
        ]
    return {worker: found[worker] for worker in plan.workers}


def _refusal(ask: object, plan: Plan) -> str | None:
    assert callable(ask)
    try:
        ask(plan)
    except ScheduleInvalid as error:
        return str(error)
    return None


def _said(schedule: Schedule, plan: Plan, stage: int, number: int, bound: int) -> str:
    replicas = [stage.replicas for stage in plan.stages]
    return (
        f"{schedule.name} keeps {number} micro-batches at stage {stage} of {replicas} with {plan.micro_batches} a "
        f"step; it says that it keeps {bound}"
    )
