"""Cuts that the user gives."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

import pytest

from ropewalk.errors import NoPlanFits, PlanInvalid
from ropewalk.pipeline.partitioners.exact import Exact
from ropewalk.pipeline.partitioners.fixed import Fixed
from ropewalk.pipeline.partitioners.partitioner import PlanRequest
from ropewalk.pipeline.profiles import Operator, Profile
from ropewalk.pipeline.schedules import make_schedule
from ropewalk.pipeline.topology import Level, Topology

#: input.x -> a -> b -> mark -> c -> d, and input.mask -> d
OPERATORS = (
    Operator("input.x", is_input=True),
    Operator("input.mask", is_input=True),
    Operator("a", forward_s=1.0),
    Operator("b", forward_s=1.0, parameters={"b.weight": 1000}),
    Operator("mark", description="cut_here"),
    Operator("c", forward_s=1.0),
    Operator("d", forward_s=1.0),
)
EDGES = (("input.x", "a"), ("a", "b"), ("b", "mark"), ("mark", "c"), ("c", "d"), ("input.mask", "d"))


def request_for(cuts: tuple[str, ...] | Mapping[str, int], operators: tuple[Operator, ...] = OPERATORS) -> PlanRequest:
    return PlanRequest(
        Profile(operators, EDGES), Topology((Level(4),)), make_schedule("one_f_one_b"), 4, fixed_cuts=cuts
    )


def stages(request: PlanRequest) -> list[str]:
    return [" ".join(stage.operators) for stage in Fixed().partition(request).stages]


def test_stages_end_with_the_operators_given_and_inputs_enter_where_they_are_read() -> None:
    assert stages(request_for(("a", "c"))) == ["input.x a", "b mark c", "input.mask d"]


def test_a_cut_may_name_a_module() -> None:
    # The guide says cuts=["encoder.3"], and operators are called "encoder.3.linear:0": no such cut was accepted.
    names = {
        "a": "encoder.0.linear:0",
        "b": "encoder.0.add:0",
        "mark": "encoder.1:0",
        "c": "encoder.10:0",
        "d": "head:0",
    }
    operators = tuple(replace(one, id=names.get(one.id, one.id), description="") for one in OPERATORS)
    edges = tuple((names.get(source, source), names.get(target, target)) for source, target in EDGES)
    request = replace(request_for(("encoder.0", "encoder.1")), profile=Profile(operators, edges))
    assert stages(request) == [
        "input.x encoder.0.linear:0 encoder.0.add:0",
        "encoder.1:0",
        "input.mask encoder.10:0 head:0",
    ]


def test_stages_end_at_the_marks_of_the_model() -> None:
    assert stages(request_for(())) == ["input.x a b mark", "input.mask c d"]


def test_marks_with_nothing_to_compute_between_them_are_one_cut() -> None:
    more = (*OPERATORS[:5], Operator("again", description="cut_here"), *OPERATORS[5:])
    assert len(stages(request_for((), more))) == 2


def test_each_operator_may_be_given_its_stage() -> None:
    assert stages(request_for({"a": 0, "b": 0, "mark": 1, "c": 1, "d": 1})) == ["input.x a b", "input.mask mark c d"]


def test_without_cuts_and_marks_there_is_one_stage() -> None:
    plain = tuple(operator for operator in OPERATORS if operator.id != "mark")
    edges = (("a", "b"), ("b", "c"), ("c", "d"), ("input.x", "a"), ("input.mask", "d"))
    request = PlanRequest(Profile(plain, edges), Topology((Level(4),)), make_schedule("one_f_one_b"), 4)
    assert len(Fixed().partition(request).stages) == 1


def test_replicas_are_chosen_as_exact_does() -> None:
    exact = Exact().partition(request_for(()))
    ends = tuple(stage.operators[-1] for stage in exact.stages[:-1])
    assert Fixed().partition(request_for(ends or {op.id: 0 for op in OPERATORS})).objective_s == exact.objective_s


@pytest.mark.parametrize(
    ("cuts", "words"),
    [
        (("mork",), "'mork', which is not an operator of the profile, nor a module; did you mean 'mark'?"),
        (("encoder",), "'encoder', which is not an operator of the profile, nor a module; its operators are input.x, "),
        ({"a": 0, "b": 0, "c": 1, "d": 1}, "1 operators have no stage, the first is 'mark'"),
        ({"a": 0, "b": 0, "mark": 0, "c": 2, "d": 2}, "numbered 0, 1, ... without a gap, not [0, 2]"),
        ({"a": 1, "b": 0, "mark": 1, "c": 1, "d": 1}, "a stage may only read from earlier ones"),
        ({"input.x": 0, "a": 1, "b": 1, "mark": 1, "c": 1, "d": 1}, "stage 0 of 2 has nothing to compute"),
    ],
)
def test_cuts_that_make_no_stages_are_refused(cuts: tuple[str, ...] | Mapping[str, int], words: str) -> None:
    with pytest.raises(PlanInvalid, match=re.escape(words)):
        Fixed().partition(request_for(cuts))


def test_another_number_of_stages_is_refused() -> None:
    request = PlanRequest(
        Profile(OPERATORS, EDGES), Topology((Level(4),)), make_schedule("gpipe"), 4, num_stages=3, fixed_cuts=("a",)
    )
    with pytest.raises(PlanInvalid, match="make 2 stages, and num_stages is 3"):
        Fixed().partition(request)


def test_more_stages_than_devices_are_refused() -> None:
    profile = Profile(OPERATORS, EDGES)
    request = PlanRequest(profile, Topology((Level(1),)), make_schedule("gpipe"), 4, fixed_cuts=("a",))
    with pytest.raises(NoPlanFits, match=r"1 device.*num_stages <= 1"):
        Fixed().partition(request)
