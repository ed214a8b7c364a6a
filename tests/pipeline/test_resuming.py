"""From a cut on, each worker does what it would have done, and before that only forwards what it had in flight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk.pipeline.actions import Action, ActionKind
from ropewalk.pipeline.plans import Plan, PlanWorker
from ropewalk.pipeline.resuming import can_cut, last_step, newest, round_of
from ropewalk.pipeline.schedules import SCHEDULES, Schedule, make_schedule
from ropewalk.pipeline.schedules.endless_play import EndlessPlay
from ropewalk.pipeline.schedules.streams import ActionStream, Cut
from ropewalk.pipeline.transfers import UNITS
from ropewalk.pipeline.verifier import verify
from ropewalk.testing.schedule_conformance import sample_plan, without_transfers

Lists = dict[PlanWorker, list[Action]]

#: Schedules without a flush, with their options.
ENDLESS: list[tuple[str, dict[str, Any]]] = [
    ("pipedream", {}),
    ("pipedream", {"vertical_sync": True}),
    ("pipedream_2bw", {}),
]

DRAIN = "drain"


def admitted(stream: ActionStream, portions: Sequence[int | str]) -> Lists:
    """What all do for these admissions and drains."""
    found: Lists = {}
    for portion in portions:
        lists = stream.drain() if isinstance(portion, str) else stream.admit(portion)
        for worker, row in lists.items():
            found.setdefault(worker, []).extend(row)
    return found


def check_resumes(schedule: Schedule, plan: Plan, before: Sequence[int | str], after: Sequence[int | str]) -> None:
    """Compare the run of all these admissions with one that is cut between `before` and `after`."""
    stream = schedule.stream(plan)
    admitted(stream, before)
    cut = stream.position
    assert can_cut(plan, schedule, cut)
    whole = admitted(schedule.stream(plan), [*before, *after])
    resumed = admitted(schedule.stream(plan, start=cut), after)
    for worker, row in whole.items():
        place = without_transfers(row).index(last_step(plan, schedule, cut, worker)) + 1
        left, right = without_transfers(row)[:place], without_transfers(row)[place:]
        first = cut.next_micro_batch
        again = [
            a for a in left if a.kind is ActionKind.FORWARD and (a.micro_batch or 0) >= first and not schedule.flushes
        ]
        backwards = [a for a in left if a.kind is not ActionKind.FORWARD and a.micro_batch is not None]
        assert schedule.flushes or all((a.micro_batch or 0) < first for a in backwards), "nothing is half done"
        assert without_transfers(resumed[worker]) == again + right, f"{schedule.name} {worker} {before} {after}"
        assert newest(plan, schedule, cut, row[-1].stage) == max((a.version or 0 for a in left), default=0)
        only = admitted(schedule.stream(plan, start=cut, only=worker), after)
        assert only[worker] == resumed[worker]
        assert all(other == worker or not row for other, row in only.items())


@pytest.mark.parametrize(
    ("name", "options", "replicas"),
    [
        (name, options, replicas)
        for name, options in ENDLESS
        for replicas in [(1,), (2,), (1, 1, 1, 1), (2, 2, 2), (3, 2, 1), (1, 2), (1, 3, 2)]
        if len(set(replicas)) == 1 or not options  # vertical sync needs equal ones
    ],
)
@pytest.mark.parametrize("drains", [False, True])
def test_a_run_without_a_flush_goes_on_from_a_cut(
    name: str, options: dict[str, Any], replicas: tuple[int, ...], drains: bool
) -> None:
    schedule = make_schedule(name, **options)
    plan = sample_plan(schedule, replicas, 12)
    size = round_of(plan, schedule)
    before = [5, DRAIN, 2 * size] if drains else [2 * size]
    check_resumes(schedule, plan, before, [size, 1, 7, DRAIN, 3, DRAIN])
    check_resumes(schedule, plan, before, [1, DRAIN, 2])


@pytest.mark.parametrize("name", [name for name, kind in SCHEDULES.items() if kind.flushes])
@pytest.mark.parametrize("replicas", [(1, 1), (2, 2)])
def test_a_run_with_flushes_goes_on_from_every_step(name: str, replicas: tuple[int, ...]) -> None:
    schedule = make_schedule(name)
    plan = sample_plan(schedule, replicas, 8)
    check_resumes(schedule, plan, [8, 8], [8, 8])


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_lists_from_memory_are_those_that_are_played(data: st.DataObject) -> None:
    """Whatever is admitted in whatever portions, and drained between: equal to a stream that remembers nothing."""
    name, options = data.draw(st.sampled_from(ENDLESS))
    schedule = make_schedule(name, **options)
    num = data.draw(st.integers(1, 3))
    replicas = data.draw(st.just((2,) * num) if options else st.lists(st.integers(1, 3), min_size=1, max_size=3))
    plan = sample_plan(schedule, tuple(replicas), 12)
    often = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=2))
    rest: list[int | str] = data.draw(st.lists(st.one_of(st.integers(0, 4), st.just(DRAIN)), max_size=3))
    portions = [*often * 20, *rest, *often * 12, *rest]
    sizes = [schedule.round_size(plan, stage.id) for stage in plan.stages]
    stream = schedule.stream(plan)
    before, versions = 0, [0] * len(plan.stages)
    play = EndlessPlay(plan, schedule._orders(plan), sizes)
    for portion in portions:
        if isinstance(portion, str):
            found, expected = stream.drain(), play.drain()
        else:
            found, expected = stream.admit(portion), play.admit(portion)
        assert found == _counted_on(plan, expected, before, versions)
        if isinstance(portion, str):
            before += play.num_admitted
            versions = [v - -play.num_admitted // size for v, size in zip(versions, sizes, strict=True)]
            play = EndlessPlay(plan, schedule._orders(plan), sizes)
    assert stream.position == Cut(before, play.num_admitted, tuple(versions))


def _counted_on(plan: Plan, lists: Lists, before: int, versions: Sequence[int]) -> Lists:
    found: Lists = {}
    for worker, row in lists.items():
        replica = (worker.replica + before) % plan.stages[worker.group].replicas
        found[PlanWorker(worker.group, replica)] = [
            replace(
                action,
                replica=replica,
                micro_batch=None if action.micro_batch is None else action.micro_batch + before,
                version=None if action.version is None else action.version + versions[action.stage],
            )
            for action in row
        ]
    return found


def test_a_long_run_is_soon_given_from_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = make_schedule("pipedream")
    stream = schedule.stream(sample_plan(schedule, (2, 3, 1), 4))
    played: list[int] = []
    admit = EndlessPlay.admit
    monkeypatch.setattr(EndlessPlay, "admit", lambda self, num: (played.append(num), admit(self, num))[1])
    lists = [stream.admit(4) for _ in range(100)]
    assert len(played) < 30, "the play repeats itself, so most is remembered"
    computing = [a for row in lists for a in row[PlanWorker(2, 0)] if a.kind in UNITS]
    assert [a.micro_batch for a in computing] == [b for b in range(400) for _ in range(2)]
    assert [a.version for a in computing] == [b for b in range(400) for _ in range(2)]


def test_lists_that_were_given_may_be_changed() -> None:
    schedule = make_schedule("pipedream")
    stream, other = (schedule.stream(sample_plan(schedule, (1, 1), 2)) for _ in range(2))
    for _ in range(10):
        lists = stream.admit(2)
        assert lists == other.admit(2)
        for row in lists.values():
            row.clear()


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_what_is_done_from_a_cut_on_cannot_deadlock(data: st.DataObject) -> None:
    name, options = data.draw(st.sampled_from(ENDLESS))
    schedule = make_schedule(name, **options)
    num = data.draw(st.integers(1, 4))
    replicas = (2,) * num if options else tuple(data.draw(st.integers(1, 3)) for _ in range(num))
    plan = sample_plan(schedule, replicas, 12)
    cut = Cut(0, data.draw(st.integers(1, 4)) * round_of(plan, schedule), (0,) * num)
    portions = data.draw(st.lists(st.integers(0, 9), min_size=1, max_size=4))
    lists = admitted(schedule.stream(plan, start=cut), [*portions, DRAIN])
    first = cut.next_micro_batch
    counted_anew = {
        worker: [a if a.micro_batch is None else replace(a, micro_batch=a.micro_batch - first) for a in row]
        for worker, row in lists.items()
    }
    # Weights that already have versions make other numbers; the order and the transfers are the verifier's matter.
    renamed: Lists = {}
    for worker, row in counted_anew.items():
        replica = (worker.replica - first) % replicas[worker.group]
        renamed[PlanWorker(worker.group, replica)] = [_without_age(plan, schedule, a, cut, replica) for a in row]
    verify(plan, {worker: renamed[worker] for worker in plan.workers}, schedule, num_micro_batches=sum(portions))


def _without_age(plan: Plan, schedule: Schedule, action: Action, cut: Cut, replica: int) -> Action:
    version = action.version
    if version is not None and action.micro_batch is not None:
        version = schedule.version(plan, action.stage, action.micro_batch)
    elif version is not None:
        version -= newest(plan, schedule, cut, action.stage)
    return replace(action, version=version, replica=replica)


def test_cuts_come_where_rounds_of_all_stages_end() -> None:
    schedule = make_schedule("pipedream")
    plan = sample_plan(schedule, (3, 2, 1), 4)
    assert round_of(plan, schedule) == 6
    assert [num for num in range(1, 25) if can_cut(plan, schedule, Cut(7, num, (0, 0, 0)))] == [6, 12, 18, 24]
    cut = Cut(7, 12, (10, 20, 30))
    assert [newest(plan, schedule, cut, stage) for stage in range(3)] == [14, 26, 42]
    assert str(last_step(plan, schedule, cut, PlanWorker(1, 1))) == "U1v26"
    flushing = make_schedule("interleaved")
    plan = sample_plan(flushing, (1, 1), 4)
    assert can_cut(plan, flushing, Cut(0, 0, (5,) * 4))
    assert str(last_step(plan, flushing, Cut(0, 0, (5,) * 4), PlanWorker(1, 0))) == "U3v5"
