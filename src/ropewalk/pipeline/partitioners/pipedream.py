"""PipeDream's partitioner: minimises the time of the slowest stage over levels of links, with replicated stages.

Narayanan et al., "PipeDream: Generalized Pipeline Parallelism for DNN Training", SOSP'19, section
3.1, and its repository msr-fiddle/pipedream (`optimizer_graph_hierarchical.py`), whose objectives
`cost_model="repository"` equals. The cost models are in `pipedream_costs`, the places to cut in
`antichains`, the dynamic program in `pipedream_search`.

Departures: ties are broken by a rule, so that plans are the same in every run; an input of the
model runs with the first stage that reads it (in the repository: in stage 0), since its transfer
is free in this cost model; an operator that PipeDream's states leave out runs with the last stage
that it reads from.

This partitioner serves for comparisons. It ignores micro-batches, schedules, optimizer state and
recomputation; `exact` takes them into account.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import replace
from typing import Literal

import numpy as np

from ropewalk.errors import NoPlanFits, PlanInvalid
from ropewalk.near_names import check_choice
from ropewalk.pipeline.cost import plan_cost
from ropewalk.pipeline.partitioners.antichains import OperatorGraph, States
from ropewalk.pipeline.partitioners.partitioner import Partition, PlanRequest
from ropewalk.pipeline.partitioners.pipedream_costs import make_cost_model
from ropewalk.pipeline.partitioners.pipedream_search import PlanSearch, Rules, data_parallel_s, search
from ropewalk.pipeline.plans import Stage
from ropewalk.pipeline.profiles import Profile
from ropewalk.quantities import shown_size

MemoryTest = Literal["repository", "counted"]


class PipeDreamPartitioner:
    """PipeDream's optimizer. The objective is in seconds per mini-batch, for which the profile was measured.

    Args:
        cost_model: "repository" for the costs of its code, or "paper" for those of the paper's text.
        free_transfers: whether cuts cost nothing, as in the repository without `--activation_compression_ratio`.
        straight: whether to use no replicas (`--straight_pipeline`).
        fewer_machines: whether a plan on fewer devices may win (`--use_fewer_machines`); otherwise all are used.
        memory_test: how to apply a memory limit. "repository": its own test (`--use_memory_constraint -s`), which
            counts neither the current mini-batch nor gradients nor the optimizer; the plan has a note if it exceeds
            the limit by Ropewalk's count. "counted": refuse a plan that exceeds the limit by Ropewalk's count; the
            search does not look for another. None: "repository" with the repository's cost model, "counted" with the
            paper's.
        max_states: most antichains; graphs with more are refused. Time and memory grow with the square of their
            number, with several levels the time with the cube.

    Raises:
        PlanInvalid: there is no such cost model or memory test.
    """

    name = "pipedream"

    def __init__(
        self,
        *,
        cost_model: str = "repository",
        free_transfers: bool = False,
        straight: bool = False,
        fewer_machines: bool = False,
        memory_test: MemoryTest | None = None,
        max_states: int = 2000,
    ) -> None:
        self.costs = make_cost_model(cost_model, free_transfers=free_transfers)
        self.rules = Rules(straight=straight, fewer_machines=fewer_machines)
        self.memory_test = memory_test or ("repository" if cost_model == "repository" else "counted")
        check_choice("memory_test", self.memory_test, ("repository", "counted"), PlanInvalid)
        self.max_states = max_states

    @property
    def cost_model(self) -> str:
        """The name of the cost model."""
        return self.costs.name

    def partition(self, request: PlanRequest) -> Partition:
        """Choose the stages.

        Raises:
            NoPlanFits: no plan fits into memory or uses all devices as requested, or the graph has too many antichains.
            PlanInvalid: the request needs something that PipeDream does not support: a number of stages, several
                speeds of devices, or several stages on a device.
        """
        _refuse_what_it_does_not_know(request)
        limit = min(request.memory_limit(kind) for kind in _kinds(request))
        rules = replace(self.rules, memory_bytes=limit if self.memory_test == "repository" else math.inf)
        states = OperatorGraph.of(request.profile).states(self.max_states)
        found = search(states, self.costs, request.topology.levels, speed=_speed(request), rules=rules)
        if found.objective_s == math.inf:
            raise self._does_not_fit(states, request, rules)
        stages = _as_stages(request, found)
        replicas = [stage.replicas for stage in stages]
        if request.schedule.uniform_replicas and len(set(replicas)) > 1:
            raise NoPlanFits(
                f"schedule {request.schedule.name} needs equally many replicas of every stage, and PipeDream's plan "
                f"has {replicas}; use the schedule 'pipedream', set straight, or use the partitioner 'exact'",
                needed=max(replicas),
                available=min(replicas),
            )
        return Partition(stages, found.objective_s, notes=self._memory_notes(request, stages, limit))

    def data_parallel_s(self, request: PlanRequest) -> float:
        """Return the seconds of a mini-batch with data parallelism on all devices, whether or not the model fits."""
        graph = OperatorGraph.of(request.profile)
        return data_parallel_s(graph.only_last(), self.costs, request.topology.levels, _speed(request))

    def one_device_s(self, request: PlanRequest) -> float:
        """Return the seconds of a mini-batch on one device, by this cost model."""
        return float(OperatorGraph.of(request.profile).only_last().work_s[0]) / _speed(request)

    def _search(self, states: States, request: PlanRequest, rules: Rules) -> PlanSearch:
        return PlanSearch(states, self.costs, request.topology.levels, speed=_speed(request), rules=rules)

    def _does_not_fit(self, states: States, request: PlanRequest, rules: Rules) -> NoPlanFits:
        """The error for a straight pipeline; others fit, since data parallelism passes PipeDream's memory test."""
        num_devices = request.topology.num_devices
        if self._search(states, request, replace(rules, memory_bytes=math.inf)).objective_s == math.inf:
            return NoPlanFits(
                f"a straight pipeline over all {num_devices} devices needs as many places to end a stage, and the "
                f"graph has {len(states)}; take {len(states)} devices, set fewer_machines, or allow replicas",
                needed=num_devices,
                available=len(states),
            )
        # The least limit that a plan passes is one of the numbers that the test compares with the limit.
        stashed = np.unique(states.between(states.weight_bytes + states.activation_bytes))
        rounds = np.arange(1, max(level.count for level in request.topology.levels))
        limits = np.unique(np.outer(stashed[stashed > 0], rounds))
        least = bisect_left(
            limits,
            True,
            key=lambda limit: (
                self._search(states, request, replace(rules, memory_bytes=float(limit))).objective_s < math.inf
            ),
        )
        needed = math.ceil(limits[least])
        return NoPlanFits(
            f"no straight pipeline over {num_devices} devices passes PipeDream's memory test with "
            f"{_bytes(rules.memory_bytes)} on each; allow {_bytes(needed)}, or replicas",
            needed=needed,
            available=rules.memory_bytes,
        )

    def _memory_notes(self, request: PlanRequest, stages: tuple[Stage, ...], limit: float) -> tuple[str, ...]:
        if limit == math.inf:
            return ()
        sizes = plan_cost(request, stages).device_bytes
        fullest = max(range(len(stages)), key=sizes.__getitem__)
        if sizes[fullest] <= limit:
            return ()
        finding = (
            f"stage {fullest} needs {_bytes(sizes[fullest])} on each device with weights, gradients, optimizer and "
            f"the mini-batches in flight, but there are {_bytes(limit)}"
        )
        if self.memory_test == "repository":
            return (f"passes PipeDream's memory test, which does not count all there is: {finding}",)
        raise NoPlanFits(
            f"PipeDream's fastest plan does not fit: {finding}; allow that, or use the "
            f"partitioner 'exact', which looks for plans that fit",
            needed=sizes[fullest],
            available=limit,
        )


def _refuse_what_it_does_not_know(request: PlanRequest) -> None:
    schedule = request.schedule
    if request.num_stages is not None:
        raise PlanInvalid(
            f"PipeDream's search chooses the number of stages itself, and num_stages={request.num_stages} was asked "
            f"for; leave it out, or use the partitioner 'exact' or 'balanced'"
        )
    if schedule.stages_per_worker > 1:
        raise PlanInvalid(
            f"schedule {schedule.name} runs {schedule.stages_per_worker} stages on each device, and PipeDream's plans "
            f"have one; use the partitioner 'exact' or 'balanced'"
        )
    speeds = {request.topology.kinds[kind].speed for kind in _kinds(request)}
    if len(speeds) > 1:
        raise PlanInvalid(
            f"PipeDream's cost model knows one speed of devices, and these have {sorted(speeds)}; use the partitioner "
            f"'exact'"
        )


def _bytes(size: float) -> str:
    return f"{int(size)} bytes ({shown_size(int(size))})"


def _kinds(request: PlanRequest) -> set[int]:
    return set(request.topology.kind_of) or {0}


def _speed(request: PlanRequest) -> float:
    return request.topology.kind(0).speed


def _as_stages(request: PlanRequest, search: PlanSearch) -> tuple[Stage, ...]:
    profile, states, found = request.profile, search.states, list(search.stages())
    stage_of: dict[str, int] = {}
    for number, (start, state, _) in enumerate(found):
        taken = states.covered[state] & ~states.covered[start - 1] if start else states.covered[state]
        stage_of |= {states.graph.operators[place].id: number for place in np.flatnonzero(taken)}
    _place_the_others(profile, stage_of)
    return tuple(
        Stage(number, tuple(id for id in profile.order if stage_of[id] == number), devices, bool(request.recompute))
        for number, (*_, devices) in enumerate(found)
    )


def _place_the_others(profile: Profile, stage_of: dict[str, int]) -> None:
    """Place operators without a state: inputs in the first stage that reads them, others in the last they read from."""
    inputs = [id for id in profile.order if id not in stage_of and not profile.sources[id]]
    for id in profile.order:
        if id not in stage_of and id not in inputs:
            stage_of[id] = max((stage_of[source] for source in profile.sources[id] if source in stage_of), default=0)
    for id in inputs:
        stage_of[id] = min((stage_of[target] for target in profile.targets[id]), default=0)
