"""Each schedule against the formulas of its paper: idle time, versions, ranges, and the first orders by hand."""

from __future__ import annotations

import inspect
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk.errors import ScheduleInvalid
from ropewalk.pipeline.actions import ActionKind
from ropewalk.pipeline.grid import draw_grid
from ropewalk.pipeline.plans import Plan, PlanWorker, Tie
from ropewalk.pipeline.schedules import SCHEDULES, ActionStream, Schedule, make_schedule
from ropewalk.pipeline.verifier import verify
from ropewalk.testing.schedule_conformance import Lists, joined, sample_plan

_EQUAL = (1.0, 1.0, 1.0)
#: Seconds of a forward, an input gradient and a weight gradient at all stages of a worker together.
_TIMES = (_EQUAL, (1.0, 1.25, 0.75), (1.0, 2.0, 0.5), (0.8, 0.9, 0.7))


def _plain(schedule: Schedule, num_groups: int, micro_batches: int, replicas: int = 1) -> Plan:
    return sample_plan(schedule, (replicas,) * num_groups, micro_batches, is_plain=True)


def _bubble(schedule: Schedule, plan: Plan, times: tuple[float, float, float]) -> float:
    """Idle time by a loop of its own: each action begins when its worker is free and what it needs was sent."""
    forward_s, input_s, weight_s = (seconds / schedule.stages_per_worker for seconds in times)
    seconds = {
        ActionKind.FORWARD: forward_s,
        ActionKind.BACKWARD: input_s + weight_s,
        ActionKind.INPUT_GRADIENT: input_s,
        ActionKind.WEIGHT_GRADIENT: weight_s,
    }
    lists = schedule.actions(plan)
    left = {worker: iter(row) for worker, row in lists.items()}
    now = {worker: next(row) for worker, row in left.items()}
    free_at, first, last = dict.fromkeys(lists, 0.0), dict[PlanWorker, float](), dict[PlanWorker, float]()
    sent: dict[tuple[int | None, int | None, int | None], float] = {}
    while now:
        for worker, action in list(now.items()):
            if action.kind is ActionKind.RECEIVE:
                message = (action.peer, action.stage, action.micro_batch)
                if message not in sent:
                    continue
                free_at[worker] = max(free_at[worker], sent[message])
            elif action.kind in seconds:
                first.setdefault(worker, free_at[worker])
                free_at[worker] += seconds[action.kind]
                last[worker] = free_at[worker]
            elif action.kind is ActionKind.SEND:
                sent[action.stage, action.peer, action.micro_batch] = free_at[worker]
            following = next(left[worker], None)
            if following is None:
                del now[worker]
            else:
                now[worker] = following
    num = plan.micro_batches // plan.stages[0].replicas
    return max(last[worker] - first[worker] for worker in lists) - num * sum(times)


@pytest.mark.parametrize("times", _TIMES)
@pytest.mark.parametrize("num_groups", [1, 2, 3, 5])
def test_idle_times_are_those_of_the_formulas(num_groups: int, times: tuple[float, float, float]) -> None:
    forward_s, input_s, weight_s = times
    whole, p = sum(times), num_groups
    for name, options, micro_batches, formula in (
        ("gpipe", {}, (1, p, 2 * p + 1), (p - 1) * whole),
        ("one_f_one_b", {}, (1, p, 2 * p + 1), (p - 1) * whole),
        ("interleaved", {"chunks": 2}, (p, 3 * p), (p - 1) * whole / 2),
        ("interleaved", {"chunks": 3}, (2 * p,), (p - 1) * whole / 3),
        ("zb_h1", {}, (p, 2 * p + 1), (p - 1) * (forward_s + input_s - weight_s)),
        ("zb_h2", {}, (2 * p - 1, 3 * p), (p - 1) * (forward_s + input_s - 2 * weight_s)),
        ("zb_v", {}, (2 * p, 3 * p + 1), 0.0 if times == _EQUAL or p == 1 else None),
    ):
        schedule = make_schedule(name, **options)
        for num in micro_batches:
            found = _bubble(schedule, _plain(schedule, num_groups, num), times)
            if formula is not None:
                assert found == pytest.approx(formula, abs=1e-9), f"{schedule} with {num} micro-batches"


@pytest.mark.parametrize("name", ["gpipe", "one_f_one_b", "interleaved", "zb_h1", "zb_h2", "zb_v"])
def test_equal_replicas_are_as_many_pipelines_side_by_side(name: str) -> None:
    schedule = make_schedule(name)
    one, three = _plain(schedule, 2, 6), _plain(schedule, 2, 18, replicas=3)
    assert _bubble(schedule, one, _EQUAL) == pytest.approx(_bubble(schedule, three, _EQUAL), abs=1e-9)


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_figure_in_each_docstring_is_what_is_drawn(name: str) -> None:
    schedule = make_schedule(name)
    figure = re.findall(r"^ *(worker \d \| [^\n]*)$", inspect.getmodule(schedule).__doc__ or "", re.MULTILINE)
    assert figure, "the docstring of its module draws no schedule, as lines that begin with 'worker 0 | '"
    is_cut = figure[0].endswith(" ...")
    micro_batches = 6 if not schedule.flushes else 4 + (name == "zb_h2")
    plan = _plain(schedule, len(figure), micro_batches)
    drawn = draw_grid(plan, schedule.actions(plan)).splitlines()
    assert [line[: len(row) - 4] if is_cut else line for line, row in zip(drawn, figure, strict=True)] == [
        row.removesuffix(" ...") for row in figure
    ]


# --- versions ---------------------------------------------------------------------------------------------------------


def test_pipedream_uses_the_versions_of_weight_stashing() -> None:
    schedule = make_schedule("pipedream")
    plan = _plain(schedule, 3, 5)
    versions = {
        worker.group: [a.version for a in row if a.kind is ActionKind.FORWARD]
        for worker, row in schedule.actions(plan).items()
    }
    assert versions == {0: [0, 0, 0, 1, 2], 1: [0, 0, 1, 2, 3], 2: [0, 1, 2, 3, 4]}


def test_replicas_of_pipedream_update_once_a_round_and_count_their_own_pieces() -> None:
    schedule = make_schedule("pipedream")
    plan = sample_plan(schedule, (2, 1), 6, is_plain=True)
    lists = schedule.actions(plan)
    # W_0 = ceil(1 / 2) = 1: piece b = 2j + k uses max(0, j - 1). W_1 = 0: the version is the piece.
    codes = {
        worker: [str(a) for a in row if a.kind not in (ActionKind.SEND, ActionKind.RECEIVE)]
        for worker, row in lists.items()
    }
    assert codes[PlanWorker(0, 0)] == [
        *["F0:0v0", "F0:2v0", "B0:0v0", "A0v1/replicas", "U0v1"],
        *["F0:4v1", "B0:2v0", "A0v2/replicas", "U0v2", "B0:4v1", "A0v3/replicas", "U0v3"],
    ]
    assert [code for code in codes[PlanWorker(1, 0)] if code[0] == "F"] == [f"F1:{b}v{b}" for b in range(6)]
    assert [code for code in codes[PlanWorker(1, 0)] if code[0] == "U"] == [f"U1v{u}" for u in range(1, 7)]


def test_vertical_sync_uses_the_version_of_the_first_stage_everywhere() -> None:
    schedule = make_schedule("pipedream", vertical_sync=True)
    plan = _plain(schedule, 3, 7)
    lists = schedule.actions(plan)
    for row in lists.values():
        assert [a.version for a in row if a.kind is ActionKind.FORWARD] == [0, 0, 0, 1, 2, 3, 4]
    assert [schedule.extra_versions(after, 1, 3) for after in (2, 1, 0)] == [2, 2, 2]
    assert [schedule.lag(plan, stage) for stage in range(3)] == [0, 1, 2]


def test_a_forward_never_asks_for_an_older_version_than_the_lag_says() -> None:
    for name, options in (("pipedream", {}), ("pipedream", {"vertical_sync": True}), ("pipedream_2bw", {})):
        schedule = make_schedule(name, **options)
        plan = _plain(schedule, 4, 4)
        stream = schedule.stream(plan)
        lists = joined([*(stream.admit(4) for _ in range(5)), stream.drain()])
        for worker, row in lists.items():
            newest, lags = 0, list[int]()
            for action in row:
                newest += action.kind is ActionKind.STEP
                if action.kind is ActionKind.FORWARD:
                    lags.append(newest - (action.version or 0))
            assert max(lags) == schedule.lag(plan, worker.group)


def test_two_versions_do_for_2bw_and_each_mini_batch_uses_that_before_the_last() -> None:
    schedule = make_schedule("pipedream_2bw")
    plan = _plain(schedule, 3, 3)
    stream = schedule.stream(plan)
    lists = joined([*(stream.admit(3) for _ in range(4)), stream.drain()])
    verify(plan, lists, num_micro_batches=12)
    for row in lists.values():
        assert [a.version for a in row if a.kind is ActionKind.FORWARD] == [0, 0, 0, 0, 0, 0, 1, 1, 1, 2, 2, 2]
        assert [a.version for a in row if a.kind is ActionKind.STEP] == [1, 2, 3, 4]


# --- streams ----------------------------------------------------------------------------------------------------------


def _codes(lists: Lists, group: int) -> list[str]:
    return [str(a) for a in lists[PlanWorker(group, 0)] if a.kind not in (ActionKind.SEND, ActionKind.RECEIVE)]


def test_a_stream_gives_what_comes_before_the_next_piece_then_all_it_can_and_a_drain_the_rest() -> None:
    schedule = make_schedule("pipedream")
    stream = schedule.stream(_plain(schedule, 3, 1))
    first = stream.admit(3)
    assert _codes(first, 0) == ["F0:0v0", "F0:1v0", "F0:2v0", "B0:0v0", "U0v1"]
    assert _codes(first, 2) == ["F2:0v0", "B2:0v0", "U2v1", "F2:1v1", "B2:1v1", "U2v2", "F2:2v2", "B2:2v2"]
    assert _codes(stream.admit(0), 2) == ["U2v3"]
    rest = stream.drain()
    assert _codes(rest, 0) == ["B0:1v0", "U0v2", "B0:2v0", "U0v3"]
    assert _codes(rest, 2) == []


def test_every_forward_of_an_admitted_piece_is_certain_if_more_are_not_waited_for() -> None:
    schedule = make_schedule("pipedream")
    plan = sample_plan(schedule, (2, 4, 1), 5)
    stream = schedule.stream(plan)
    forwards: dict[int, list[int]] = {0: [], 1: [], 2: []}
    for num in range(1, 20):
        for row in joined([stream.admit(1), stream.admit(0)]).values():
            for action in row:
                if action.kind is ActionKind.FORWARD:
                    forwards[action.stage].append(action.micro_batch or 0)
        assert all(sorted(found) == list(range(num)) for found in forwards.values())


def test_after_a_drain_numbers_go_on_and_formulas_begin_anew() -> None:
    schedule = make_schedule("pipedream")
    stream = schedule.stream(_plain(schedule, 2, 1))
    joined([stream.admit(3), stream.drain()])
    again = joined([stream.admit(3), stream.drain()])
    assert _codes(again, 0) == ["F0:3v3", "F0:4v3", "B0:3v3", "U0v4", "F0:5v4", "B0:4v3", "U0v5", "B0:5v4", "U0v6"]


def test_a_partial_round_updates_all_replicas_also_those_without_a_piece() -> None:
    schedule = make_schedule("pipedream")
    plan = sample_plan(schedule, (1, 3), 4)
    stream = schedule.stream(plan)
    lists = joined([stream.admit(4), stream.drain()])
    for replica in range(3):
        steps = [a.version for a in lists[PlanWorker(1, replica)] if a.kind is ActionKind.STEP]
        assert steps == [1, 2], "pieces 0 1 2 and, alone in its round, 3"
    lists = joined([stream.admit(2), stream.drain()])
    computing = {w: [a.micro_batch for a in row if a.kind is ActionKind.FORWARD] for w, row in lists.items()}
    assert computing == {PlanWorker(0, 0): [4, 5], PlanWorker(1, 0): [], PlanWorker(1, 1): [4], PlanWorker(1, 2): [5]}


def without_receives(lists: Lists) -> Lists:
    """Return the lists without receives, whose place depends on when their pieces were admitted."""
    return {
        worker: [action for action in row if action.kind is not ActionKind.RECEIVE] for worker, row in lists.items()
    }


def _check_portions(name: str, replicas: tuple[int, ...], portions: list[int], micro_batches: int = 12) -> None:
    schedule = make_schedule(name)
    plan = sample_plan(schedule, replicas, micro_batches)

    def run(stream: ActionStream, numbers: list[int]) -> Lists:
        return joined([*(stream.admit(num) for num in numbers), stream.drain()])

    total = sum(portions)
    whole = run(schedule.stream(plan), [total])
    parts = run(schedule.stream(plan), portions)
    assert without_receives(parts) == without_receives(whole)
    if total:
        verify(plan, whole, num_micro_batches=total)
        verify(plan, parts, num_micro_batches=total)


_STREAMED = st.sampled_from(["pipedream", "pipedream_2bw"])
_REPLICAS = st.lists(st.integers(1, 3), min_size=1, max_size=3).map(tuple)
_PORTIONS = st.lists(st.integers(0, 5), min_size=1, max_size=6)


@settings(max_examples=25, deadline=None)
@given(_STREAMED, _REPLICAS, _PORTIONS)
def test_admission_in_any_portions_computes_the_same_and_cannot_deadlock(
    name: str, replicas: tuple[int, ...], portions: list[int]
) -> None:
    _check_portions(name, replicas, portions)


@pytest.mark.soak
@settings(max_examples=5000, deadline=None)
@given(_STREAMED, st.lists(st.integers(1, 4), min_size=1, max_size=5).map(tuple), _PORTIONS)
def test_thousands_of_portions_compute_the_same_and_cannot_deadlock(
    name: str, replicas: tuple[int, ...], portions: list[int]
) -> None:
    _check_portions(name, replicas, portions, micro_batches=24)


def test_each_admission_of_a_step_counts_versions_up() -> None:
    schedule = make_schedule("one_f_one_b")
    stream = schedule.stream(_plain(schedule, 2, 2))
    assert _codes(stream.admit(2), 1) == ["F1:0v0", "B1:0v0", "F1:1v0", "B1:1v0", "U1v1"]
    assert _codes(stream.admit(2), 1) == ["F1:0v1", "B1:0v1", "F1:1v1", "B1:1v1", "U1v2"]
    assert all(not row for row in stream.drain().values())
    with pytest.raises(ScheduleInvalid, match=r"3 micro-batches were admitted, .* have 2; admit as many"):
        stream.admit(3)
    with pytest.raises(ScheduleInvalid, match="-1 micro-batches were admitted"):
        make_schedule("pipedream").stream(_plain(make_schedule("pipedream"), 2, 2)).admit(-1)


# --- ranges -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "replicas", "micro_batches", "said"),
    [
        ("interleaved", (1, 1, 1), 7, "groups of devices, 3, .* has 7 micro-batches; use a multiple of 3"),
        ("interleaved", (2, 2), 6, "of 2 replica.* has 6 micro-batches; use a multiple of 4"),
        ("zb_h2", (1, 1, 1), 4, r"2p - 1 = 5 .* has 4; use micro_batches >= 5"),
        ("zb_h2", (2, 2), 5, r"2p - 1 = 3 .* has 5; use micro_batches >= 6"),
        ("zb_v", (1, 1), 3, r"2p = 4 .* has 3; use micro_batches >= 4"),
        ("pipedream_2bw", (1, 1, 1), 2, r"at least 3 .* has 2; use micro_batches >= 3"),
        ("pipedream_2bw", (2, 1), 3, r"at least 2 .* 2 replica.* stage 0.* has 3; use micro_batches >= 4"),
        ("zb_h1", (1, 2), 4, r"equally many replicas of every stage, and this plan has \[1, 2\]"),
        ("interleaved", (1, 2), 4, "interleaved needs equally many replicas"),
    ],
)
def test_what_is_out_of_range_is_refused_with_the_rule_and_the_values(
    name: str, replicas: tuple[int, ...], micro_batches: int, said: str
) -> None:
    schedule = make_schedule(name)
    with pytest.raises(ScheduleInvalid, match=said):
        schedule.actions(sample_plan(schedule, replicas, micro_batches))


def test_options_out_of_range_are_refused() -> None:
    schedule = make_schedule("pipedream", vertical_sync=True)
    with pytest.raises(ScheduleInvalid, match=r"vertical sync needs equally many replicas .* not \[1, 2\]"):
        schedule.check(sample_plan(schedule, (1, 2), 4))
    with pytest.raises(ScheduleInvalid, match="at least 2 chunks on each worker, not 1; for 1, use one_f_one_b"):
        make_schedule("interleaved", chunks=1)
    for name in ("pipedream", "pipedream_2bw", "zb_h2", "zb_v"):
        with pytest.raises(ScheduleInvalid, match=f"{name} lets workers step at different times.* leave norm out"):
            make_schedule(name, norm=True)


def test_a_plan_with_other_stages_on_its_workers_is_refused() -> None:
    chain = _plain(make_schedule("gpipe"), 4, 8)
    with pytest.raises(ScheduleInvalid, match=r"interleaved runs 2 .* has 4 stages on 4 groups; it needs 8"):
        make_schedule("interleaved").check(chain)
    there_and_back = _plain(make_schedule("zb_v"), 2, 8)
    with pytest.raises(ScheduleInvalid, match=r"on groups \(0, 1, 0, 1\), and this plan on \(0, 1, 1, 0\)"):
        make_schedule("interleaved").check(there_and_back)


def test_ties_of_stages_that_update_at_different_times_are_refused() -> None:
    schedule = make_schedule("pipedream")
    plan = sample_plan(schedule, (1, 2), 4)
    tied = Plan(plan.stages, plan.edges, (Tie("embedding", (0, 1)),), "pipedream", 4)
    with pytest.raises(ScheduleInvalid, match=r"stages \(0, 1\), .* share 'embedding', have \[1, 2\]"):
        schedule.check(tied)


# --- memory -----------------------------------------------------------------------------------------------------------


def test_bounds_are_the_formulas() -> None:
    p, m = 4, 9
    for name, in_flight, held in (
        ("gpipe", [9, 9, 9, 9], [9, 9, 9, 9]),
        ("one_f_one_b", [4, 3, 2, 1], [4, 3, 2, 1]),
        ("pipedream", [4, 3, 2, 1], [4, 3, 2, 1]),
        ("pipedream_2bw", [4, 3, 2, 1], [4, 3, 2, 1]),
        ("zb_h1", [4, 3, 2, 1], [4, 4, 4, 4]),
        ("zb_h2", [7, 5, 3, 1], [7, 7, 7, 7]),
    ):
        schedule = make_schedule(name)
        plan = _plain(schedule, p, m)
        assert [schedule.in_flight_at(plan, stage) for stage in range(p)] == in_flight, name
        assert [schedule.held_at(plan, stage) for stage in range(p)] == held, name
    zb_v, interleaved = make_schedule("zb_v"), make_schedule("interleaved")
    assert {zb_v.held_by(_plain(zb_v, p, m), group) for group in range(p)} == {2 * p}, "2p halves"
    plan = _plain(interleaved, p, 3 * p)
    assert [interleaved.held_by(plan, group) for group in range(p)] == [11, 9, 7, 5]
    extra = [make_schedule("pipedream").extra_versions(after, 2, 9) for after in (6, 5, 4, 3, 2, 1, 0)]
    assert extra == [3, 3, 2, 2, 1, 1, 0]


def test_workers_of_pipedream_never_idle_between_fill_and_drain() -> None:
    schedule = make_schedule("pipedream")
    plan = _plain(schedule, 4, 12)
    rows = draw_grid(plan, schedule.actions(plan)).splitlines()
    for stage, row in enumerate(rows):
        cells = row.split("|")[1].split()
        first_backward, last_forward = cells.index("B0"), cells.index("F11")
        assert ".." not in cells[first_backward:last_forward], f"stage {stage}"
