"""Random small requests, and every plan that answers one: the truth that `exact` is held to.

Shares nothing with `exact` but the cost function of plans.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations, product

from hypothesis import strategies as st

from ropewalk.pipeline.cost import objective_s
from ropewalk.pipeline.partitioners.partitioner import PlanRequest
from ropewalk.pipeline.plans import Plan, Stage
from ropewalk.pipeline.profiles import Operator, Profile, SavedValue
from ropewalk.pipeline.topology import DeviceKind, Level, Topology


@dataclass(frozen=True)
class PretendSchedule:
    """One with all that a planner asks of a schedule, and numbers that are easy to follow."""

    flushes: bool = True
    uniform_replicas: bool = False
    stages_per_worker: int = 1
    splits_backward: bool = False
    #: Whether each stage keeps as many versions as there are stages.
    in_step: bool = False
    #: Without a flush, whether an update has all micro-batches of a step.
    whole_updates: bool = False
    name: str = "pretend"

    def in_flight(self, workers_after: int, replicas: int, micro_batches: int) -> int:
        """As one forward, one backward."""
        ahead = -(-workers_after // replicas) + 1
        return min(ahead, -(-micro_batches // replicas)) if self.flushes else ahead

    def held(self, workers_after: int, replicas: int, micro_batches: int, num_stages: int) -> int:
        """With a split backward, some more."""
        return self.in_flight(workers_after, replicas, micro_batches) + (num_stages if self.splits_backward else 0)

    def between_halves(self, workers_after: int, replicas: int, micro_batches: int, num_stages: int) -> int:
        """One more than are held beyond those in flight."""
        return num_stages + 1 if self.splits_backward else 0

    def update_size(self, replicas: int, micro_batches: int) -> int:
        """As PipeDream, or as PipeDream-2BW."""
        return micro_batches if self.flushes or self.whole_updates else replicas

    def extra_versions(self, workers_after: int, replicas: int, num_stages: int) -> int:
        """As PipeDream, with and without vertical sync."""
        if self.flushes:
            return 0
        return num_stages - 1 if self.in_step else -(-workers_after // replicas)

    def check(self, plan: Plan) -> None:
        """Takes any plan."""

    def group_of(self, stage: int, num_groups: int) -> int:
        """There and back."""
        turn, place = divmod(stage, num_groups)
        return num_groups - 1 - place if turn % 2 else place


# --- requests ---------------------------------------------------------------------------------------------------------


@st.composite
def profiles(draw: st.DrawFn, most: int = 5) -> Profile:
    """Small graphs with shared values, ties, values without gradients, and an input."""
    num = draw(st.sampled_from([*range(1, most + 1), most, most, most]))
    milliseconds = st.sampled_from([0, 3, 7, 8, 12, 15, 20, 31]).map(lambda number: number / 1000)
    sizes = st.integers(0, 8).map(lambda number: number * 1000)
    operators: list[Operator] = []
    edges: list[tuple[str, str]] = []
    for number in range(num):
        id = f"op{number}"
        sources = draw(st.lists(st.integers(0, number - 1), unique=True, max_size=3, min_size=1)) if number else []
        sources = sources if draw(st.integers(0, 5)) else []
        edges += [(f"op{source}", id) for source in sources]
        kept = draw(st.lists(st.sampled_from([id, *(f"op{source}" for source in sources)]), unique=True, max_size=2))
        operators.append(
            Operator(
                id,
                forward_s=draw(milliseconds),
                backward_s=draw(milliseconds),
                output_bytes=draw(sizes),
                gradient_bytes=draw(st.none() | sizes),
                parameters=draw(st.dictionaries(st.sampled_from(["tied", id]), sizes, max_size=2)),
                input_gradient_s=draw(st.none() | milliseconds),
                weight_gradient_s=draw(milliseconds),
                held_bytes=draw(sizes),
                buffer_bytes=draw(sizes),
                saved_bytes=draw(st.none() | sizes),
                saved=tuple(SavedValue(value, 3000) for value in kept),
            )
        )
    if draw(st.booleans()):
        targets = draw(st.lists(st.integers(0, num - 1), unique=True, min_size=1, max_size=2))
        operators.insert(0, Operator("input.x", output_bytes=draw(sizes), is_input=True))
        edges += [("input.x", f"op{target}") for target in targets]
    return Profile(tuple(operators), tuple(edges))


def levels(*counts: int) -> st.SearchStrategy[tuple[Level, ...]]:
    """Levels of these counts, with links from free to dear."""
    bandwidths = st.sampled_from([4e6, 1e6, 3e5, math.inf])
    latencies = st.sampled_from([0.0, 0.002])
    return st.tuples(*(st.builds(Level, st.just(count), bandwidths, latencies) for count in counts))


@st.composite
def requests(draw: st.DrawFn, counts: tuple[int, ...], *, num_kinds: int = 1, most: int = 5) -> PlanRequest:
    """Requests for devices in levels of these counts."""
    memory = st.sampled_from([None, None, None, 150_000, 90_000, 60_000, 40_000])
    kinds = (DeviceKind("one", 1.0, draw(memory)), DeviceKind("other", 2.5, draw(memory)))[:num_kinds]
    num = math.prod(counts)
    kind_of = tuple(draw(st.lists(st.integers(0, 1), min_size=num, max_size=num))) if num_kinds > 1 else ()
    flushes = draw(st.booleans())
    schedule = PretendSchedule(
        flushes,
        uniform_replicas=draw(st.integers(0, 4)) == 0,
        splits_backward=draw(st.integers(0, 4)) == 0,
        in_step=draw(st.integers(0, 3)) == 0,
        whole_updates=draw(st.booleans()),
    )
    profile = draw(profiles(most))
    request = PlanRequest(
        profile,
        Topology(draw(levels(*counts)), kinds, kind_of),
        schedule,
        micro_batches=draw(st.sampled_from([4, 8, 1, 3, 6])),
        memory_bytes=draw(memory),
        optimizer_slots=draw(st.integers(0, 2)),
        recompute=draw(st.sampled_from([None, None, True, False])),
    )
    num_operators = sum(not operator.is_input for operator in profile.operators)
    asked = draw(st.sampled_from([None, None, *range(1, min(num, num_operators) + 1)]))
    return replace(request, num_stages=asked)


# --- every plan -------------------------------------------------------------------------------------------------------


def down_closed(profile: Profile) -> list[frozenset[str]]:
    """All sets of operators that hold the sources of their members."""
    ids = [operator.id for operator in profile.operators]
    subsets = (frozenset(subset) for size in range(len(ids) + 1) for subset in combinations(ids, size))
    return [subset for subset in subsets if all(set(profile.sources[id]) <= subset for id in subset)]


def chains(profile: Profile, before: frozenset[str] = frozenset()) -> Iterator[tuple[frozenset[str], ...]]:
    """All ways to cut what is not before into stages, each of which computes something."""
    if len(before) == len(profile.operators):
        yield ()
        return
    for after in down_closed(profile):
        stage = after - before
        if before < after and not all(profile.by_id[id].is_input for id in stage):
            for rest in chains(profile, after):
                yield (stage, *rest)


def placements(topology: Topology, num_stages: int) -> Iterator[tuple[tuple[int, ...], ...]]:
    """All devices for `num_stages`: of each kind in their order, each stage on a run that nests, any devices idle."""

    def place(left: tuple[tuple[int, ...], ...], num: int) -> Iterator[tuple[tuple[int, ...], ...]]:
        if num == 0:
            yield ()
            return
        for kind, devices in enumerate(left):
            for start, end in combinations(range(len(devices) + 1), 2):
                run = devices[start:end]
                if topology.nests(run):
                    for earlier in place((*left[:kind], devices[:start], *left[kind + 1 :]), num - 1):
                        yield (*earlier, run)

    yield from place(tuple(topology.devices_of(kind) for kind in range(len(topology.kinds))), num_stages)


def least_objective_s(request: PlanRequest) -> float:
    """The objective of the best plan of all; `inf` if none fits."""
    best = math.inf
    choices = (False, True) if request.recompute is None else (request.recompute,)
    on_devices: dict[int, list[tuple[tuple[int, ...], ...]]] = {}
    for chain in chains(request.profile):
        num = len(chain)
        if num > request.topology.num_devices or request.num_stages not in (None, num):
            continue
        for devices in on_devices.setdefault(num, list(placements(request.topology, num))):
            if request.schedule.uniform_replicas and len({len(run) for run in devices}) > 1:
                continue
            for recompute in product(choices, repeat=num):
                stages = tuple(
                    Stage(number, tuple(id for id in request.profile.order if id in chain[number]), run, again)
                    for number, (run, again) in enumerate(zip(devices, recompute, strict=True))
                )
                best = min(best, objective_s(request, stages))
    return best
