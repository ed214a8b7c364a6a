"""The suite for schedules over all that are listed, and over one that a third party could write."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import pytest

from ropewalk.errors import ScheduleInvalid
from ropewalk.pipeline.actions import ActionKind
from ropewalk.pipeline.plans import Plan, PlanWorker
from ropewalk.pipeline.schedules import SCHEDULES, Schedule, Task, make_schedule, register_schedule
from ropewalk.pipeline.schedules.pipedream import PipeDream
from ropewalk.testing.schedule_conformance import ScheduleConformance


@pytest.mark.parametrize("name", SCHEDULES)
class TestListed(ScheduleConformance):
    @pytest.fixture(autouse=True)
    def _chosen(self, name: str) -> None:
        self.name = name

    def make_schedule(self) -> Schedule:
        return make_schedule(self.name)


class TestInterleavedOfThree(ScheduleConformance):
    replicas = ((1,), (1, 1), (2, 2, 2))

    def make_schedule(self) -> Schedule:
        return make_schedule("interleaved", chunks=3)


class TestVerticalSync(ScheduleConformance):
    def make_schedule(self) -> Schedule:
        return make_schedule("pipedream", vertical_sync=True)


class TestNorm(ScheduleConformance):
    replicas = ((1, 1), (1, 2, 3))

    def make_schedule(self) -> Schedule:
        return make_schedule("one_f_one_b", norm=True)


class OneAtATime(Schedule):
    """A third party's: the next micro-batch begins when the one before is through."""

    name = "one_at_a_time"

    def order(self, plan: Plan, worker: PlanWorker) -> Iterator[Task]:
        (stage,) = plan.groups[worker.group]
        for b in range(worker.replica, plan.micro_batches, plan.stages[stage].replicas):
            yield Task(ActionKind.FORWARD, stage, b)
            yield Task(ActionKind.BACKWARD, stage, b)

    def in_flight(self, workers_after: int, replicas: int, micro_batches: int) -> int:
        return 1


class TestThirdParty(ScheduleConformance):
    def make_schedule(self) -> Schedule:
        return OneAtATime()


class Boastful(OneAtATime):
    def in_flight(self, workers_after: int, replicas: int, micro_batches: int) -> int:
        return 2


class Hasty(OneAtATime):
    def order(self, plan: Plan, worker: PlanWorker) -> Iterator[Task]:
        there = {ActionKind.FORWARD: ActionKind.BACKWARD}
        return (Task(there.get(kind, ActionKind.FORWARD), stage, b)
                for kind, stage, b in super().order(plan, worker))  # fmt: skip


class Wavering(PipeDream):
    """Once the first worker takes a backward before the forward that should come first."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.at = at

    def order(self, plan: Plan, worker: PlanWorker) -> Iterator[Task]:
        tasks = super().order(plan, worker)
        if worker.group == 0:
            yield from islice(tasks, self.at)
            yield from reversed(list(islice(tasks, 2)))
        yield from tasks


class OfWavering(ScheduleConformance):
    replicas = ((1, 1),)
    micro_batches = (4,)

    def __init__(self, at: int) -> None:
        self.at = at

    def make_schedule(self) -> Schedule:
        return Wavering(self.at)


def test_the_suite_finds_an_endless_order_that_does_not_repeat_itself() -> None:
    with pytest.raises(AssertionError, match="pipedream does not repeat itself"):
        OfWavering(at=31).test_an_endless_order_repeats_itself()


def test_the_suite_finds_an_order_that_cannot_begin_between_two_rounds() -> None:
    with pytest.raises(AssertionError, match=r"pipedream goes on differently from Cut\(.* at worker 0\.0"):
        OfWavering(at=3).test_it_goes_on_from_a_cut()


def test_the_suite_finds_a_bound_that_is_not_reached() -> None:
    class OfBoastful(ScheduleConformance):
        def make_schedule(self) -> Schedule:
            return Boastful()

    with pytest.raises(AssertionError, match=r"keeps 1 micro-batches at stage 0 .* it says that it keeps 2"):
        OfBoastful().test_its_bounds_are_reached()


def test_the_suite_finds_a_backward_before_its_forward() -> None:
    class OfHasty(ScheduleConformance):
        def make_schedule(self) -> Schedule:
            return Hasty()

    with pytest.raises(ScheduleInvalid, match=r"wait for each other for ever: worker 0.0 at B0:0v0"):
        OfHasty().test_its_lists_keep_every_law()


def test_a_registered_schedule_is_made_by_its_name_until_then_the_near_name_is_suggested(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(SCHEDULES, "one_at_a_time", raising=False)
    with pytest.raises(ScheduleInvalid, match=r"there is no schedule 'one_f_oneb'; did you mean 'one_f_one_b'\?"):
        make_schedule("one_f_oneb")
    with pytest.raises(ScheduleInvalid, match=f"there are {', '.join(SCHEDULES)}; .* register_schedule"):
        make_schedule("xyz")
    register_schedule("one_at_a_time", OneAtATime)
    try:
        assert isinstance(make_schedule("one_at_a_time"), OneAtATime)
        register_schedule("one_at_a_time", OneAtATime)
        with pytest.raises(ScheduleInvalid, match="is the name of"):
            register_schedule("one_at_a_time", Boastful)
    finally:
        del SCHEDULES["one_at_a_time"]
    own = OneAtATime(norm=True)
    assert make_schedule(own) is own
    with pytest.raises(ScheduleInvalid, match="configured already; it takes no norm"):
        make_schedule(own, norm=True)
    with pytest.raises(ScheduleInvalid, match=r"no option 'chunk'; did you mean 'chunks'\? It has chunks"):
        make_schedule("interleaved", chunk=2)
