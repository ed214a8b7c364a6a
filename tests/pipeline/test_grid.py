"""Grids and lists are read back as they were printed; what is none says so."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk.errors import ScheduleInvalid
from ropewalk.pipeline.actions import Action, ActionKind
from ropewalk.pipeline.grid import draw_grid, parse_actions, parse_grid, show_actions
from ropewalk.pipeline.plans import PlanWorker
from ropewalk.pipeline.schedules import SCHEDULES, make_schedule
from ropewalk.testing.schedule_conformance import sample_plan


def test_columns_can_be_given_and_kinds_that_are_not_named_are_not_drawn() -> None:
    schedule = make_schedule("one_f_one_b")
    plan = sample_plan(schedule, (1, 1), 2, is_plain=True)
    lists = schedule.actions(plan)
    assert draw_grid(plan, lists, units={ActionKind.FORWARD: 2, ActionKind.BACKWARD: 1}).splitlines() == [
        "worker 0 | F0 F0 F1 F1 .. B0 .. .. B1",
        "worker 1 | .. .. F0 F0 B0 F1 F1 B1 ..",
    ]
    assert draw_grid(plan, lists, units={ActionKind.FORWARD: 1}) == "worker 0 | F0 F1 ..\nworker 1 | .. F0 F1"


def test_a_schedule_prints_as_a_grid() -> None:
    rows = str(make_schedule("zb_h2")).splitlines()
    assert rows[3] == "worker 3 | .. .. .. F0 I0 F1 I1 F2 I2 F3 I3 F4 I4 F5 I5 F6 I6 W0 F7 I7 W1 W2 W3 W4 W5 W6 W7"
    assert all(make_schedule(name).grid(sample_plan(make_schedule(name), (1, 1), 4)) for name in SCHEDULES)


def test_replicas_and_stages_are_named_where_there_are_several() -> None:
    replicated = make_schedule("gpipe")
    plan = sample_plan(replicated, (1, 2), 2, is_plain=True)
    assert draw_grid(plan, replicated.actions(plan)).splitlines() == [
        "worker 0.0 | F0 F1 .. .. .. B1 B1 B0 B0",
        "worker 1.0 | .. F0 B0 B0 .. .. .. .. ..",
        "worker 1.1 | .. .. F1 B1 B1 .. .. .. ..",
    ]


def test_lists_that_could_never_run_are_drawn_all_the_same() -> None:
    worker, other = PlanWorker(0, 0), PlanWorker(1, 0)
    lists = parse_actions("worker 0 | R0:0<1/x F0:0v0 S0:0>1/x\nworker 1 | R1:0<0/x F1:0v0 S1:0>0/x")
    plan = sample_plan(make_schedule("gpipe"), (1, 1), 1)
    assert draw_grid(plan, lists) == "worker 0 | F0 ..\nworker 1 | .. F0"
    assert parse_grid(draw_grid(plan, lists))[other] == [Action(ActionKind.FORWARD, 1, 0, 0)]
    assert draw_grid(plan, {worker: []}) == "worker 0 |"


def test_only_the_columns_around_a_mark_are_drawn() -> None:
    schedule = make_schedule("gpipe")
    plan = sample_plan(schedule, (1, 1), 60, is_plain=True)
    lists = schedule.actions(plan)
    at = [str(action) for action in lists[PlanWorker(1, 0)]].index("F1:40v0")
    first, second, mark = draw_grid(plan, lists, marked=(PlanWorker(1, 0), at)).splitlines()
    assert first.startswith("worker 0 | F29 F30 ")
    assert second[mark.index("^") :].startswith("F40 ")
    assert len(first.split()) < 30 and mark.endswith("^ F1:40v0 of worker 1")


_NAMES = st.text(st.characters(codec="ascii", categories=["L", "N", "P"]), min_size=1, max_size=12)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.builds(
            Action,
            kind=st.sampled_from([ActionKind.SEND, ActionKind.RECEIVE]),
            stage=st.integers(0, 20),
            replica=st.just(3),
            micro_batch=st.integers(0, 200),
            edge=_NAMES,
            peer=st.integers(0, 20),
        ),
        max_size=8,
    )
)
def test_names_of_tensors_survive_print_and_parse(row: list[Action]) -> None:
    lists = {PlanWorker(2, 3): row}
    assert parse_actions(show_actions(lists)) == lists


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("worker 0 | F0 G1", "'G1' is not a cell of a grid"),
        ("worker 0 | F0 F", "'F' is not a cell"),
        ("stage 0 | F0", "'stage 0 | F0' is not a row of a worker"),
        ("worker x | F0", "is not a row of a worker"),
    ],
)
def test_what_is_no_grid_says_so(text: str, said: str) -> None:
    with pytest.raises(ScheduleInvalid, match=said.replace("|", r"\|")):
        parse_grid(text)


def test_what_is_no_list_says_so() -> None:
    with pytest.raises(ScheduleInvalid, match="'F0' is not an action; they look like F0:3v2"):
        parse_actions("worker 0 | F0 B0")
