"""GPipe's cells: as good as the best of all cuts, evenly filled, and within the memory."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk.errors import NoPlanFits, ProfileInvalid
from ropewalk.pipeline.cost import objective_s, plan_cost
from ropewalk.pipeline.partitioners.balanced import Balanced, least_maximum_cells
from ropewalk.pipeline.partitioners.partitioner import PlanRequest
from ropewalk.pipeline.plans import assemble
from ropewalk.pipeline.profiles import Operator, Profile
from ropewalk.pipeline.schedules import make_schedule
from ropewalk.pipeline.topology import DeviceKind, Level, Topology

COSTS = st.lists(st.integers(0, 50), min_size=1, max_size=9)


def chain(*seconds: float, output_bytes: int = 0) -> Profile:
    ids = [f"n{place}" for place in range(len(seconds))]
    operators = tuple(Operator(id, forward_s=s, output_bytes=output_bytes) for id, s in zip(ids, seconds, strict=True))
    return Profile(operators, tuple(pairwise(ids)))


def request(profile: Profile, devices: int, schedule: str = "gpipe", **more) -> PlanRequest:
    topology = Topology((Level(devices, 1e9),), more.pop("kinds", (DeviceKind(),)), more.pop("kind_of", ()))
    return PlanRequest(profile, topology, make_schedule(schedule), micro_batches=8, **more)


@settings(deadline=None, max_examples=150)
@given(COSTS, st.lists(st.sampled_from([0.5, 1.0, 2.0]), min_size=1, max_size=5))
def test_cells_are_the_best_of_all_cuts(costs: list[int], speeds: list[float]) -> None:
    """The dearest cell is as cheap as possible; of such cuts, the most even. Sums of these numbers are exact."""
    speeds = speeds[: len(costs)]
    cells = least_maximum_cells(costs, speeds)
    assert [place for cell in cells for place in cell] == list(range(len(costs)))
    assert len(cells) == len(speeds) and all(cells)

    def shape(ends: tuple[int, ...]) -> tuple[float, float]:
        bounds = pairwise((0, *ends))
        times = [sum(costs[start:end]) / speed for (start, end), speed in zip(bounds, speeds, strict=True)]
        return max(times), sum(time**2 for time in times)

    cuts = combinations(range(1, len(costs)), len(speeds) - 1)
    assert shape(tuple(cell.stop for cell in cells)) == min(shape((*cut, len(costs))) for cut in cuts)


def test_of_equally_good_cuts_the_most_even_is_taken() -> None:
    cells = least_maximum_cells([9.0, 1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 1.0])
    assert [len(cell) for cell in cells] == [1, 2, 2]


@settings(deadline=None, max_examples=50)
@given(st.lists(st.floats(0, 1e3), min_size=4, max_size=9))
def test_cells_of_any_seconds_are_the_best_of_all_cuts_too(costs: list[float]) -> None:
    cells = least_maximum_cells(costs, [1.0] * 3)
    cuts = [(0, *cut, len(costs)) for cut in combinations(range(1, len(costs)), 2)]
    best = min(max(sum(costs[start:end]) for start, end in pairwise(cut)) for cut in cuts)
    assert max(sum(costs[place] for place in cell) for cell in cells) == pytest.approx(best)


def test_each_device_gets_a_cell_with_the_inputs_where_they_are_read() -> None:
    operators = (Operator("x", is_input=True), Operator("a", forward_s=1), Operator("mask", is_input=True))
    operators += (Operator("b", forward_s=1), Operator("c", forward_s=1))
    profile = Profile(operators, (("x", "a"), ("a", "b"), ("b", "c"), ("mask", "c")))
    asked = request(profile, 3)
    partition = Balanced().partition(asked)
    assert [stage.operators for stage in partition.stages] == [("x", "a"), ("b",), ("mask", "c")]
    assert [stage.devices for stage in partition.stages] == [(0,), (1,), (2,)]
    assert partition.objective_s == objective_s(asked, partition.stages)
    assemble(profile, partition.stages, schedule="gpipe", micro_batches=8)


def test_a_faster_device_gets_more() -> None:
    kinds = (DeviceKind("slow"), DeviceKind("fast", speed=3.0))
    partition = Balanced().partition(request(chain(*[1.0] * 8), 2, kinds=kinds, kind_of=(0, 1)))
    assert [len(stage.operators) for stage in partition.stages] == [2, 6]


def test_there_are_no_more_stages_than_operators_or_than_asked_for() -> None:
    assert len(Balanced().partition(request(chain(1, 1), 4)).stages) == 2
    assert len(Balanced().partition(request(chain(1, 1, 1, 1), 4, num_stages=3)).stages) == 3


def test_it_recomputes_only_if_that_is_what_it_takes_to_fit() -> None:
    profile = chain(1, 1, 1, 1, output_bytes=100)
    for asked, memory, done in ((None, None, False), (True, None, True), (None, 10**6, False)):
        stages = Balanced().partition(request(profile, 2, recompute=asked, memory_bytes=memory)).stages
        assert all(stage.recompute is done for stage in stages)
    plain = Balanced().partition(request(profile, 2, recompute=False))
    needed = max(plan_cost(request(profile, 2), plain.stages).device_bytes)
    tight = Balanced().partition(request(profile, 2, memory_bytes=needed - 1))
    assert all(stage.recompute for stage in tight.stages)


def test_memory_that_no_cells_fit_is_refused_with_both_numbers() -> None:
    profile = chain(1, 1, output_bytes=100)
    with pytest.raises(NoPlanFits, match=r"stage \d needs (\d+) bytes .* has 10 ") as caught:
        Balanced().partition(request(profile, 2, memory_bytes=10))
    enough = request(profile, 2, memory_bytes=int(caught.value.needed))
    assert max(plan_cost(enough, Balanced().partition(enough).stages).device_bytes) <= caught.value.needed


def test_a_profile_of_inputs_alone_is_refused() -> None:
    with pytest.raises(ProfileInvalid, match="more than an input"):
        Balanced().partition(request(Profile((Operator("x", is_input=True),), ()), 2))


@pytest.mark.parametrize(
    ("schedule", "devices"), [("interleaved", [(0,), (1,), (0,), (1,)]), ("zb_v", [(0,), (1,), (1,), (0,)])]
)
def test_a_device_runs_as_many_cells_as_the_schedule_wants(schedule: str, devices: list[tuple[int, ...]]) -> None:
    """And fewer devices if there are not operators enough; a number of stages that cannot be dealt out is refused."""
    profile = chain(1, 1, 1, 1, 1)
    partition = Balanced().partition(request(profile, 2, schedule))
    assert [stage.devices for stage in partition.stages] == devices
    assert len(Balanced().partition(request(chain(1, 1, 1), 2, schedule)).stages) == 2
    with pytest.raises(NoPlanFits, match=r"3 is not a multiple of that; ask for num_stages=2"):
        Balanced().partition(request(profile, 2, schedule, num_stages=3))
    with pytest.raises(NoPlanFits, match=r"2 stages on each device, and the model has 1 operators"):
        Balanced().partition(request(chain(1), 2, schedule))
