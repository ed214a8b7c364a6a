"""What `exact` asks of its searches, and what it makes of their answers: scripted ones, and graphs of a few operators.

That its plans are the best ones is shown by brute force in `test_exact.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ropewalk.errors import NoPlanFits, ProfileInvalid, ScheduleInvalid
from ropewalk.pipeline.cost import objective_s
from ropewalk.pipeline.down_sets import BitGraph, down_sets
from ropewalk.pipeline.partitioners import exact
from ropewalk.pipeline.partitioners.cost_model import CostModel, StageColumns
from ropewalk.pipeline.partitioners.exact import Exact, plan_within
from ropewalk.pipeline.partitioners.exact_search.blocks import down_closed_parts
from ropewalk.pipeline.partitioners.exact_search.contraction import in_order
from ropewalk.pipeline.partitioners.exact_search.family_search import Found
from ropewalk.pipeline.partitioners.exact_search.simple_plans import simple_plans
from ropewalk.pipeline.partitioners.partitioner import Partition, PlanRequest
from ropewalk.pipeline.plans import Plan, Stage
from ropewalk.pipeline.profiles import Operator, Profile
from ropewalk.pipeline.topology import DeviceKind, Level, Topology
from tests.pipeline.partitioners.brute_force import PretendSchedule, least_objective_s

NUM = 12


@dataclass(frozen=True)
class Picky(PretendSchedule):
    """Refuses stages of different widths, but only when it sees the plan."""

    takes: Callable[[Plan], bool] = lambda plan: len({stage.replicas for stage in plan.stages}) == 1

    def check(self, plan: Plan) -> None:
        if not self.takes(plan):
            raise ScheduleInvalid("widths differ")


def apart(num: int = NUM, devices: int = 3, schedule: Any = None, **options: Any) -> PlanRequest:
    """Operators without edges: each set of them is a cut. Gradients cost more to sum than replicas save."""
    operators = tuple(
        Operator(f"op{i}", "", 1.0 + i / 8, 2.0, output_bytes=i, parameters={f"op{i}": 10**6}) for i in range(num)
    )
    options = {"recompute": False, **options}
    return PlanRequest(
        Profile(operators, ()), Topology((Level(devices, 1e5),)), schedule or PretendSchedule(), 8, **options
    )


def line(*seconds: float, tied: Sequence[int] = (), devices: int = 2, schedule: Any = None, **options: Any) -> Any:
    """Operators one behind the other, on devices that exchange for nothing."""
    operators = tuple(
        Operator(f"op{i}", forward_s=s, parameters={"shared": 4} if i in tied else {}) for i, s in enumerate(seconds)
    )
    edges = tuple((f"op{i}", f"op{i + 1}") for i in range(len(seconds) - 1))
    return PlanRequest(
        Profile(operators, edges), Topology((Level(devices),)), schedule or PretendSchedule(flushes=False), 8, **options
    )


def found(seconds: float, cuts: tuple[int, ...] = (0b111,), replicas: Sequence[int] = (), num: int = NUM) -> Found:
    """An answer, which goes by its seconds; of this many operators, the last stage has all that are left."""
    ids, devices = [f"op{i}" for i in range(num)], iter(range(100))
    stages = tuple(
        Stage(id, tuple(ids[id:] if id + 1 == len(replicas) else ids[id : id + 1]), tuple(islice(devices, width)))
        for id, width in enumerate(replicas)
    )
    return Found(cuts, (seconds,), stages, seconds)  # type: ignore[arg-type]  # the moves are only handed on


class Script:
    """In place of the searches: gives answers in turn, and keeps what was asked."""

    def __init__(self, *answers: float | Found | None, forms: Sequence[Found] = ()) -> None:
        self.answers = list(answers)
        self.forms = list(forms)
        self.asked: list[Any] = []
        self.sets: list[list[int]] = []
        self.options: list[Any] = []

    def search(
        self,
        request: PlanRequest,
        graph: BitGraph,
        sets: list[int],
        cost_model: Any = None,
        along: Sequence[Any] = (),
        equal: bool = False,
        tie_replicas: int | None = None,
    ) -> Found | None:
        self.asked.append(f"near {along[0]:g}" if along else "all")
        self.sets.append(sets)
        self.options.append((cost_model, equal, tie_replicas))
        answer = self.answers.pop(0)
        return found(answer) if isinstance(answer, float | int) else answer

    def best_of_each_form(
        self, request: PlanRequest, graph: BitGraph, sets: list[int], *, equal: bool, num: int
    ) -> list[Found]:
        self.asked.append(f"forms {num}")
        self.sets.append(sets)
        self.options.append(equal)
        return self.forms


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Callable[[Script], Script]:
    def play(script: Script) -> Script:
        monkeypatch.setattr(exact, "search", script.search)
        monkeypatch.setattr(exact, "best_of_each_form", script.best_of_each_form)
        return script

    return play


Played = Callable[[Script], Script]


def pieces(request: PlanRequest, planner: Exact, *, equal: bool = False, tie_replicas: int | None = None) -> Any:
    graph = BitGraph.of(request.profile)
    return planner._piece_by_piece(request, graph, down_closed_parts(graph, 10**6), equal, tie_replicas)


# --- piece by piece ---------------------------------------------------------------------------------------------------


def test_the_search_goes_on_around_the_cuts_of_each_form_and_of_the_best_until_they_stay(played: Played) -> None:
    answers = (10, 8, 8, 11, None, 7.5, 7.5, 7, 7, 7 - 1e-13)
    script = played(Script(*answers, forms=[found(9), found(12)]))
    best = pieces(apart(), Exact(max_sets=40))
    assert best.objective_s == 7
    around_forms = ["near 9", "near 8", "near 12", "near 11"]
    around_best = ["near 8", "near 7.5", "all", "near 7", "all"]
    assert script.asked == ["all", "forms 6", *around_forms, *around_best]
    assert not script.answers


def test_of_plans_that_are_as_good_the_first_is_taken(played: Played) -> None:
    first, second = found(10), found(10, (0b11,))
    script = played(Script(first, second, None, None, second, forms=[found(10.5)]))
    assert pieces(apart(), Exact(max_sets=40)) is first
    assert script.asked == ["all", "forms 6", "near 10.5", "near 10", "near 10", "all"]


def test_families_have_both_ends_the_cuts_and_the_coarse_family_and_no_more_sets_than_allowed(played: Played) -> None:
    first = found(10, (0b111, 0b111111))
    script = played(Script(first, first, first, first, forms=[first]))
    request, planner = apart(), Exact(max_sets=40)
    assert pieces(request, planner) is first
    assert script.asked == ["all", "forms 6", "near 10", "near 10", "all"]
    coarse, fewer, near, again, both = script.sets
    everything = (1 << NUM) - 1
    graph = BitGraph.of(request.profile)
    assert coarse == planner._coarse(request, graph, down_closed_parts(graph, 10**6))
    assert fewer == coarse, "they are few"
    assert near == again
    assert {*coarse, *first.cuts} <= set(both)
    for sets in script.sets:
        assert sets == in_order(sets) and sets[-1] == everything
    for sets in (coarse, near, both):
        assert sets[0] == 0
    assert {*first.cuts} <= set(near)
    assert max(map(len, script.sets)) <= 40 + 3


def test_the_sets_that_may_be_searched_are_shared_out(played: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, int]] = []

    def noted(owner: Any, name: str) -> None:
        make = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *args: asked.append((name, args[-1])) or make(*args))

    noted(exact, "coarse_sets")
    noted(exact, "sets_near")
    noted(exact.NearCuts, "everywhere")
    noted(exact.NearCuts, "near")
    first = found(10, (0b111, 0b111111))
    played(Script(first, None, None))
    pieces(apart(), Exact(max_sets=80))
    coarse = [("coarse_sets", 20), ("everywhere", 40)]
    alone, beside_the_coarse = [("near", 20), ("sets_near", 20)] * 2, [("near", 10), ("sets_near", 10)] * 2
    assert asked == [*coarse, *alone, *beside_the_coarse]


def test_for_forms_only_some_of_a_large_family_are_searched(played: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact, "_RANKED_SETS", 3)
    script = played(Script(found(10, ()), forms=[]))
    pieces(apart(), Exact(max_sets=40))
    coarse, fewer = script.sets
    step = len(coarse) // 3
    assert step > 1 and fewer == in_order([*coarse[::step], coarse[-1]])


@pytest.mark.parametrize(
    ("options", "asks_for_forms"),
    [({"equal": False}, True), ({"equal": True}, True), ({"tie_replicas": 0}, False), ({"tie_replicas": 2}, False)],
)
def test_what_is_asked_of_a_search_is_asked_of_all(played: Played, options: Any, asks_for_forms: bool) -> None:
    script = played(Script(10, 10, 10))
    pieces(apart(), Exact(max_sets=40), **options)
    assert script.asked == ["all", *(["forms 6"] if asks_for_forms else []), "near 10", "all"]
    equal, tie_replicas = options.get("equal", False), options.get("tie_replicas")
    whole = (None, equal, tie_replicas)
    near = (None, False, tie_replicas)  # its widths are given
    assert script.options == [whole, *([equal] if asks_for_forms else []), near, whole]


class Thousandfold:
    """A cost model for which every stage is a thousand times as slow as it computes."""

    def bottleneck_s(self, stages: StageColumns, replicas: int, bandwidth: float) -> Any:
        return 1000.0 * stages.compute_s / replicas


THOUSANDFOLD: CostModel = Thousandfold()


def test_another_cost_model_is_given_to_every_search_and_has_no_forms(played: Played) -> None:
    script = played(Script(10, 9, 9, 9, 9, 9))
    pieces(apart(), Exact(max_sets=40, cost_model=THOUSANDFOLD))
    assert script.asked == ["all", "near 10", "near 9", "all", "near 9", "all"]
    assert script.options == [(THOUSANDFOLD, False, None)] * 6


def test_stages_that_share_devices_have_no_forms(played: Played) -> None:
    script = played(Script(10, 10, 10))
    pieces(apart(schedule=PretendSchedule(stages_per_worker=2)), Exact(max_sets=40))
    assert script.asked == ["all", "near 10", "all"]


def test_where_the_coarse_family_has_no_plan_there_is_none(played: Played) -> None:
    script = played(Script(None))
    assert pieces(apart(), Exact(max_sets=40)) is None
    assert script.asked == ["all"]


def test_a_plan_without_cuts_has_nothing_to_go_on_with(played: Played) -> None:
    script = played(Script(found(10, ()), forms=[found(11, ())]))
    assert pieces(apart(), Exact(max_sets=40)).objective_s == 10
    assert script.asked == ["all", "forms 6"]


@pytest.mark.parametrize(("operators_in_rounds", "rounds"), [(3 * NUM, 3), (4 * NUM + NUM - 1, 4), (NUM, 2)])
def test_a_search_that_gains_something_each_time_ends_after_some_rounds(
    played: Played, monkeypatch: pytest.MonkeyPatch, operators_in_rounds: int, rounds: int
) -> None:
    monkeypatch.setattr(exact, "_OPERATORS_IN_ROUNDS", operators_in_rounds)
    script = played(Script(*(0.5**number for number in range(100))))
    best = pieces(apart(), Exact(max_sets=40))
    near = [asked for asked in script.asked if asked.startswith("near")]
    assert (len(near), script.asked.count("all")) == (rounds * rounds, 1 + rounds)
    assert best.objective_s == 0.5 ** (rounds * rounds + rounds)


# --- which search is made ---------------------------------------------------------------------------------------------


def pieced(monkeypatch: pytest.MonkeyPatch, answers: Any, bound_s: float = 1.0) -> list[Any]:
    """Have answers to a search piece by piece given by its options; what is asked is noted."""
    asked: list[Any] = []

    def piece_by_piece(
        self: Exact, request: Any, graph: Any, parts: Any, equal: bool, tie_replicas: int | None = None
    ) -> Found | None:
        asked.append((self.max_sets, equal, tie_replicas))
        return answers[equal, tie_replicas]

    monkeypatch.setattr(Exact, "_piece_by_piece", piece_by_piece)
    monkeypatch.setattr(exact, "_bound_s", lambda request, graph, parts: bound_s)
    return asked


def test_a_graph_of_few_cuts_is_searched_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = pieced(monkeypatch, {})
    made = Exact(max_sets=64)._searched(apart(6))
    assert asked == [] and made.notes == ()
    assert made.lower_bound_s == made.objective_s
    taken = found(60, replicas=(1, 1), num=6)
    asked = pieced(monkeypatch, {(False, None): taken})
    made = Exact(max_sets=63)._searched(apart(6))
    assert asked == [(63, False, None)]
    assert made == Partition(taken.stages, 60, 1.0, made.notes)
    assert "more than 63 legal cuts" in made.notes[0]


def test_a_lower_bound_is_at_most_the_objective(monkeypatch: pytest.MonkeyPatch) -> None:
    pieced(monkeypatch, {(False, None): found(60, replicas=(1, 1), num=6)}, bound_s=61.0)
    assert Exact(max_sets=3)._searched(apart(6)).lower_bound_s == 60


def test_fewer_sets_are_searched_where_more_cannot_be_afforded(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = pieced(monkeypatch, {(False, None): found(60, replicas=(1, 1), num=6)})
    monkeypatch.setattr(Exact, "_affordable", lambda self, request: min(self.max_sets, 5))
    made = Exact()._searched(apart(6))
    assert asked == [(5, False, None)] and "more than 5 legal cuts" in made.notes[0]
    made = Exact(cost_model=THOUSANDFOLD)._searched(apart(6))
    assert made.lower_bound_s is None, "the cost model is still the same"


def test_with_another_cost_model_a_plan_has_no_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = found(60, replicas=(1, 2))
    asked = pieced(monkeypatch, {(False, None): refused})
    planner = Exact(cost_model=THOUSANDFOLD, max_sets=3)
    assert planner._searched(apart(schedule=Picky())) == Partition(refused.stages, 60)
    assert asked == [(3, False, None)]


TIED = replace(
    apart(),
    schedule=Picky(),
    profile=Profile(tuple(Operator(f"op{i}", "", 1.0, 2.0, parameters={"shared": 4}) for i in range(NUM)), ()),
)


@pytest.mark.parametrize(
    ("request_", "also"),
    [
        (apart(schedule=Picky()), []),
        (TIED, [(3, False, 0)]),
        (replace(TIED, schedule=Picky(uniform_replicas=True)), []),
    ],
)
def test_where_the_schedule_refuses_the_best_plan_the_search_is_made_again_with_equal_widths(
    monkeypatch: pytest.MonkeyPatch, request_: PlanRequest, also: list[Any]
) -> None:
    answers = {
        (False, None): found(50, replicas=(1, 2)),
        (True, None): found(60, replicas=(2, 2)),
        (False, 0): found(59, replicas=(3, 3)),
    }
    asked = pieced(monkeypatch, answers)
    made = Exact(max_sets=3)._searched(request_)
    assert asked == [(3, False, None), (3, True, None), *also]
    assert (made.objective_s, made.stages[0].replicas) == ((59, 3) if also else (60, 2))


def test_a_plan_that_the_schedule_takes_is_not_searched_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = pieced(monkeypatch, {(False, None): found(50, replicas=(2, 2))})
    assert Exact(max_sets=3)._searched(replace(TIED)).objective_s == 50
    assert len(asked) == 1


def test_where_no_piece_has_a_plan_the_least_memory_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    pieced(monkeypatch, {(False, None): None})
    with pytest.raises(NoPlanFits, match=r"every plan needs at least .* and there is 0 MiB"):
        Exact(max_sets=3)._searched(apart(memory_bytes=0))


@pytest.mark.parametrize(
    ("max_sets", "num_moves", "expected"),
    [(500, 4, 500), (500, 0, 500), (500, 32_000, 100), (500, 10**9, 60), (50, 32_000, 50), (10, 10**9, 10)],
)
def test_the_number_of_sets_falls_with_that_of_moves(
    monkeypatch: pytest.MonkeyPatch, max_sets: int, num_moves: int, expected: int
) -> None:
    half = [SimpleNamespace(moves=SimpleNamespace(moves=[range(num_moves // 2)]))]
    monkeypatch.setattr(exact, "shapes", lambda request: half * 2)
    assert Exact(max_sets=max_sets)._affordable(apart(1)) == expected


# --- simple plans -----------------------------------------------------------------------------------------------------


@pytest.fixture
def simple() -> list[Partition]:
    plans = simple_plans(apart(6))
    assert len({plan.objective_s for plan in plans}) == len(plans) == 3
    return plans


def searched(monkeypatch: pytest.MonkeyPatch, plan: Partition | None) -> None:
    def give(self: Exact, request: PlanRequest) -> Partition:
        if plan is None:
            raise NoPlanFits("none")
        return plan

    monkeypatch.setattr(Exact, "_searched", give)


@pytest.mark.parametrize(("bound_s", "expected_s"), [(1.0, 1.0), (1e6, None)])
def test_where_the_search_finds_no_plan_the_best_simple_one_is_taken(
    monkeypatch: pytest.MonkeyPatch, simple: list[Partition], bound_s: float, expected_s: float | None
) -> None:
    searched(monkeypatch, None)
    monkeypatch.setattr(exact, "simple_bound_s", lambda request: bound_s)
    made = Exact().partition(apart(6))
    assert (made.stages, made.objective_s) == (simple[0].stages, simple[0].objective_s)
    assert made.lower_bound_s == (expected_s or simple[0].objective_s)
    monkeypatch.setattr(exact, "simple_plans", lambda request: [])
    with pytest.raises(NoPlanFits, match="none"):
        Exact().partition(apart(6))


def test_a_searched_plan_is_taken_unless_a_simple_one_is_better(
    monkeypatch: pytest.MonkeyPatch, simple: list[Partition]
) -> None:
    least_s, most_s = simple[0].objective_s, simple[-1].objective_s
    stages = (Stage(0, ("op0",), (0,)),)
    for seconds in (least_s / 2, least_s, least_s * (1 + 1e-13)):
        plan = Partition(stages, seconds, 1.0, ("searched",))
        searched(monkeypatch, plan)
        assert Exact().partition(apart(6)) == plan
    for seconds in (least_s * (1 + 1e-9), (least_s + most_s) / 2, 2 * most_s):
        searched(monkeypatch, Partition(stages, seconds, 1.0, ("searched",)))
        assert Exact().partition(apart(6)) == Partition(simple[0].stages, least_s, 1.0, ("searched",))
    monkeypatch.setattr(exact, "simple_plans", lambda request: [])
    assert Exact().partition(apart(6)).objective_s == 2 * most_s


def test_another_cost_model_is_not_compared_with_simple_plans() -> None:
    made = Exact(cost_model=THOUSANDFOLD).partition(line(1.0, 1.0))
    assert made.objective_s == 1000.0
    assert simple_plans(line(1.0, 1.0))[0].objective_s < 1000.0


# --- candidates -------------------------------------------------------------------------------------------------------


def partitioned(monkeypatch: pytest.MonkeyPatch, forms: Sequence[Found]) -> Partition:
    best = Partition((Stage(0, ("best",), (0,)),), 55.0, 50.0, ("searched",))
    monkeypatch.setattr(Exact, "partition", lambda self, request: best)
    monkeypatch.setattr(Exact, "_of_each_form", lambda self, request, best, num: list(forms))
    return best


@pytest.mark.parametrize(("options", "num"), [({}, 24), ({"num": 5}, 5), ({"num": 3}, 4), ({"num": 1}, 4)])
def test_candidates_are_the_best_the_simple_ones_and_others_by_objective(
    monkeypatch: pytest.MonkeyPatch, simple: list[Partition], options: Any, num: int
) -> None:
    forms = [
        replace(found(70 + number, replicas=(1,)), stages=(Stage(0, (f"{number}",), (0,)),)) for number in range(40)
    ]
    best = partitioned(monkeypatch, forms)
    monkeypatch.setattr(exact, "objection_to", lambda request, stages: None)
    made = Exact().candidates(apart(6), **options)
    assert made[0] is best and len(made) == num
    rest = [(plan.objective_s, plan.stages) for plan in made[1:]]
    taken = forms[: num - 4]
    expected = [(of.objective_s, of.stages) for of in (*simple, *taken)]
    assert rest == sorted(expected, key=lambda plan: plan[0])
    assert all((plan.lower_bound_s, plan.notes) == (50.0, ("searched",)) for plan in made)


def test_a_candidate_is_there_once_and_the_schedule_takes_it(
    monkeypatch: pytest.MonkeyPatch, simple: list[Partition]
) -> None:
    refused = Found((), (), (Stage(0, ("refused",), (0,)),), 1.0)
    twice = Found((), (), simple[0].stages, simple[0].objective_s)
    again = Found((), (), (Stage(0, ("best",), (0,)),), 55.0)
    partitioned(monkeypatch, [refused, twice, again])
    monkeypatch.setattr(
        exact, "objection_to", lambda request, stages: ScheduleInvalid("no") if stages == refused.stages else None
    )
    assert len(Exact().candidates(apart(6))) == 1 + len(simple)
    best = replace(simple[0], lower_bound_s=1.0)
    monkeypatch.setattr(Exact, "partition", lambda self, request: best)
    assert Exact().candidates(apart(6))[0] is best
    assert len(Exact().candidates(apart(6))) == len(simple) + 1, "the one that was the best is one of the forms"


def test_there_are_no_other_forms_of_stages_that_share_devices_or_of_another_cost_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    best = partitioned(monkeypatch, [found(1.0, replicas=(1,))])
    monkeypatch.setattr(exact, "objection_to", lambda request, stages: None)
    assert Exact(cost_model=THOUSANDFOLD).candidates(apart(6)) == (best,)
    request = apart(6, schedule=PretendSchedule(stages_per_worker=2))
    assert len(Exact().candidates(request)) == 1 + len(simple_plans(request))
    assert len(Exact().candidates(apart(6))) == 1 + 3 + 1


@pytest.mark.parametrize(
    ("replicas", "bound_s", "equal"), [((2, 2), 50.0, True), ((1, 2), 50.0, False), ((2, 2), 55.0, False)]
)
@pytest.mark.parametrize("ranked_sets", [10, 5000])
def test_forms_are_searched_over_the_cuts_of_the_best_plan_too(
    played: Played,
    monkeypatch: pytest.MonkeyPatch,
    replicas: tuple[int, int],
    bound_s: float,
    equal: bool,
    ranked_sets: int,
) -> None:
    monkeypatch.setattr(exact, "_RANKED_SETS", ranked_sets)
    works: list[Any] = []
    coarse_sets = exact.coarse_sets
    monkeypatch.setattr(exact, "coarse_sets", lambda *args: works.append(args[1:]) or coarse_sets(*args))
    first, middle = [f"op{i}" for i in (1, 5, 7)], [f"op{i}" for i in (0, 2, 11)]
    last = [f"op{i}" for i in range(NUM) if f"op{i}" not in (*first, *middle)]
    stages = tuple(
        Stage(id, tuple(ids), tuple(range(num)))
        for id, (ids, num) in enumerate(zip((first, middle, last), (*replicas, replicas[0]), strict=True))
    )
    request, script = apart(), played(Script(forms=[found(3.0)]))
    graph = BitGraph.of(request.profile)
    made = Exact()._of_each_form(request, Partition(stages, 55.0, bound_s), 9)
    assert [of.objective_s for of in made] == [3.0]
    assert (script.asked, script.options) == (["forms 9"], [equal])
    (sets,) = script.sets
    if ranked_sets == 10:
        one = graph.bits_of(request.profile, first)
        both = one | graph.bits_of(request.profile, middle)
        assert {0, one, both, graph.everything} <= set(sets) and sets == in_order(sets)
        assert 4 < len(sets) <= 4 + ranked_sets
        assert works == [([3.0 + i / 8 for i in range(NUM)], ranked_sets)]
    else:
        assert sets == down_sets(graph, 1 << NUM)


# --- over all cuts of a small graph -----------------------------------------------------------------------------------


def within(request: PlanRequest, cost_model: CostModel | None = None) -> Partition:
    graph = BitGraph.of(request.profile)
    sets = down_sets(graph, 10_000)
    assert sets
    return plan_within(request, graph, sets, cost_model)


def test_of_inputs_alone_nothing_can_be_planned() -> None:
    inputs = Profile((Operator("input.x", is_input=True), Operator("input.y", is_input=True)), ())
    with pytest.raises(ProfileInvalid, match="none of the 2 operators"):
        within(replace(line(1.0), profile=inputs))
    assert within(replace(line(1.0), profile=Profile((Operator("input.x", is_input=True), Operator("a", "", 1.0)), ())))


def test_where_no_plan_over_all_cuts_fits_the_least_memory_is_named() -> None:
    with pytest.raises(NoPlanFits, match="every plan needs at least"):
        within(apart(2, memory_bytes=0))


def test_a_plan_over_all_cuts_is_its_own_bound_where_all_widths_are_tried() -> None:
    made = within(line(1.0, 2.0, 3.0))
    assert (made.lower_bound_s, made.notes) == (made.objective_s, ())
    assert made.objective_s == pytest.approx(least_objective_s(line(1.0, 2.0, 3.0)))


def test_of_many_devices_a_bound_says_how_far_the_best_plan_may_be() -> None:
    request = line(1.0, 2.0, devices=25)
    made = within(request)
    assert made.lower_bound_s is not None
    assert 0 < made.lower_bound_s <= made.objective_s == objective_s(request, made.stages)
    assert "not every number of replicas was tried" in made.notes[0]
    by_model = within(request, THOUSANDFOLD)
    assert by_model.lower_bound_s is None and by_model.notes == made.notes
    assert within(line(1.0, 2.0, devices=24)).notes == ()


def test_a_bound_of_many_devices_is_at_most_the_objective(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact, "simple_bound_s", lambda request: 1e6)
    for request in (line(1.0, 2.0, devices=25), line(1.0, 2.0, schedule=PretendSchedule(stages_per_worker=2))):
        made = within(request)
        assert made.lower_bound_s == made.objective_s < 1e6


def test_stages_that_share_a_device_have_a_bound_and_a_note() -> None:
    made = within(line(1.0, 1.0, 1.0, 5.0, num_stages=4, schedule=PretendSchedule(stages_per_worker=2)))
    assert made.lower_bound_s is not None and 0 < made.lower_bound_s < made.objective_s
    assert "balanced one by one" in made.notes[0]


def test_where_the_best_plan_is_refused_the_best_of_equal_widths_is_taken() -> None:
    # On three devices the best plan has one of them for the small end, and two for the large one.
    request = line(1.0, 2.0, devices=3, schedule=Picky(flushes=False), num_stages=2)
    free = within(replace(request, schedule=PretendSchedule(flushes=False)))
    assert [stage.replicas for stage in free.stages] == [1, 2]
    made = within(request)
    assert [stage.replicas for stage in made.stages] == [1, 1]
    assert made.objective_s == objective_s(request, made.stages) > free.objective_s == made.lower_bound_s
    assert made.notes == (f"without the schedule's demand there would be a plan of {free.objective_s:.6g} s",)
    by_model = within(request, THOUSANDFOLD)
    assert [stage.replicas for stage in by_model.stages] == [1, 2] and by_model.notes == ()


def same_widths_of_shared(plan: Plan) -> bool:
    return len({stage.replicas for stage in plan.stages if {"op0", "op2"} & {*stage.operators}}) == 1


def test_stages_that_share_parameters_need_be_equal_only_among_themselves() -> None:
    schedule = Picky(flushes=False, takes=same_widths_of_shared)
    request = line(1.0, 8.0, 2.0, tied=(0, 2), devices=4, schedule=schedule, num_stages=3)
    asked: list[Any] = []
    search = exact.search

    def noted(*args: Any, **options: Any) -> Any:
        asked.append(options)
        return search(*args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exact, "search", noted)
        refuses_all = replace(request, schedule=replace(schedule, takes=lambda plan: False))
        with pytest.raises(NoPlanFits, match="the schedule refuses the best plan, and there is none"):
            within(refuses_all)
    assert asked == [{}, {"equal": True}, *({"tie_replicas": replicas} for replicas in (1, 2, 3, 4))]
    made = within(request)
    assert [stage.replicas for stage in made.stages] == [1, 2, 1]


def test_the_best_of_the_plans_that_the_schedule_takes_is_taken() -> None:
    request, objection = apart(schedule=Picky()), ScheduleInvalid("widths differ")
    refused, slow, quick = found(1, replicas=(1, 2)), found(3, replicas=(1, 1)), found(2, replicas=(2, 2))
    assert exact._best_taken(request, (None, refused, slow, quick, slow), objection) is quick
    with pytest.raises(NoPlanFits, match="widths differ") as caught:
        exact._best_taken(request, (None, refused), objection)
    assert caught.value.__cause__ is objection


def test_work_is_that_of_both_passes() -> None:
    work_s, values = exact._work_and_values(apart(3))
    assert work_s.tolist() == [3.0, 3.125, 3.25] and values.tolist() == [0, 1, 2]
    assert values.dtype == np.float64


# --- the lower bound --------------------------------------------------------------------------------------------------


def bound_of(request: PlanRequest) -> float:
    graph = BitGraph.of(request.profile)
    return exact._bound_s(request, graph, down_closed_parts(graph, 10**6))


@pytest.mark.parametrize("flushes", [True, False])
def test_on_one_device_the_bound_is_the_time_of_the_only_plan(flushes: bool) -> None:
    request = line(1.0, 2.0, 4.0, devices=1, schedule=PretendSchedule(flushes))
    assert bound_of(request) == pytest.approx(least_objective_s(request)) == 56.0
    quick = replace(request, topology=Topology((Level(1),), (DeviceKind("quick", 2.0),)))
    assert bound_of(quick) == pytest.approx(least_objective_s(quick)) == 28.0
    again = replace(request, recompute=True)
    assert bound_of(again) == pytest.approx(least_objective_s(again)) == 112.0


@pytest.mark.parametrize("flushes", [True, False])
def test_stages_without_transfers_have_a_tight_bound(flushes: bool) -> None:
    request = line(1.0, 1.0, 1.0, devices=3, schedule=PretendSchedule(flushes))
    best = least_objective_s(request)
    assert 0.8 * best <= bound_of(request) <= best * (1 + 1e-9)


def test_where_not_all_is_tried_the_bound_is_the_simple_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact, "simple_bound_s", lambda request: 0.125)
    assert bound_of(line(1.0, 1.0, schedule=PretendSchedule(stages_per_worker=2))) == 0.125
    assert bound_of(line(1.0, 1.0, devices=25)) == 0.125
    assert bound_of(line(1.0, 1.0, devices=24)) > 0.125


def test_the_time_on_the_way_is_in_the_bound() -> None:
    uniform = PretendSchedule(uniform_replicas=True)
    request = replace(line(2.0, 1.0, 1.0, schedule=uniform), topology=Topology((Level(2, latency_s=0.5),)))
    assert bound_of(request) == pytest.approx(least_objective_s(request)) == 16.5


def test_a_number_of_stages_that_does_not_fit_ends_no_search_for_a_bound() -> None:
    one_each = 4 * 10**6 + 1000
    request = apart(2, devices=2, schedule=PretendSchedule(splits_backward=True), memory_bytes=one_each)
    assert 0 < bound_of(request) <= least_objective_s(request) < math.inf
    assert least_objective_s(replace(request, num_stages=1)) == math.inf


def test_where_no_stage_fits_there_is_no_bound() -> None:
    request = apart(2, memory_bytes=0)
    assert bound_of(request) == 0.0 and least_objective_s(replace(request)) == math.inf
