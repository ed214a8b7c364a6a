"""From a model, or its profile, to a plan: the main way in.

plan = ropewalk.pipeline.plan(model, example, devices="4x2@12GBps,1.25GBps", memory="16GB")
print(plan)                          # stages, times, memory, what holds it back
open("plan.svg", "w").write(plan.svg())
"""

from __future__ import annotations

import importlib
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from ropewalk.errors import PlanInvalid
from ropewalk.pipeline.partitioners import make_partitioner
from ropewalk.pipeline.partitioners.partitioner import Partition, Partitioner, PlanRequest
from ropewalk.pipeline.plans import Plan, assemble
from ropewalk.pipeline.predicting import mini_batch_s, predict, simulated
from ropewalk.pipeline.profiles import Profile
from ropewalk.pipeline.schedules import make_schedule
from ropewalk.pipeline.schedules.schedule import Schedule
from ropewalk.pipeline.topology import Level, Topology
from ropewalk.pipeline.topology_text import load_topology, parse_bandwidth, parse_topology
from ropewalk.pipeline.verifier import verify
from ropewalk.quantities import parse_memory

#: Bytes per second of links that nobody described: what PipeDream's optimizer takes, about 10 Gbit/s Ethernet.
DEFAULT_BANDWIDTH = 1e9

#: Two simulated times are the same if they differ by less than this share.
_SAME = 1e-9

#: The schedules of the papers that partitioners come from.
_SUITING = {"pipedream": "pipedream", "balanced": "gpipe"}


def plan(
    model: Any,
    example_inputs: Any = None,
    *,
    devices: int | str | Path | Topology,
    bandwidth: str | float | Sequence[str | float] | None = None,
    memory: str | int | None = None,
    schedule: str | Schedule | None = None,
    micro_batches: int | None = None,
    partitioner: str | Partitioner | None = None,
    num_stages: int | None = None,
    recompute: bool | None = None,
    optimizer_slots: int = 2,
    cuts: Sequence[str] | Mapping[str, int] | None = None,
    leaf_modules: Sequence[Any] = (),
    repeats: int = 5,
) -> Plan:
    """Choose where to cut a model, how often to copy each stage, and where each runs.

    Args:
        model: a `torch.nn.Module` (or its graph, from `trace`), which is profiled here first; or its `Profile`, for
            which no torch is needed.
        example_inputs: for a module: inputs of one micro-batch, a tensor, a tuple or a dict of them.
        devices: how many (4), in levels from the inside out ("4x8@12GBps,1.25GBps"), the path of a TOML file that
            describes them, or a `Topology`.
        bandwidth: bytes per second of each level, if `devices` has none; 1 GB/s if nothing says so.
        memory: of each device, "16GB"; None: what the topology says, or no limit.
        schedule: a name of `ropewalk.pipeline.schedules`, or a schedule. None: what suits the partitioner, that is
            "pipedream" for pipedream, "gpipe" for balanced, else "one_f_one_b".
        micro_batches: in one step. None: 4 for each device (GPipe's rule for a small bubble), or 1 with the schedule
            "pipedream", which updates as it goes.
        partitioner: a name of `ropewalk.pipeline.partitioners`, or a partitioner. None: "exact".
        num_stages: how many; None: what is fastest.
        recompute: True or False for all stages, None for the planner's choice.
        optimizer_slots: copies of the weights that the optimizer keeps: Adam 2, SGD with momentum 1, SGD 0.
        cuts: the last operator of each stage but the last, or operator -> stage; the partitioner is then "fixed".
        leaf_modules: for a module: what is not looked into when it is traced (see `trace`).
        repeats: of the profile's measurement.

    Returns:
        The plan, with what it will do in `plan.prediction`.

    Raises:
        NoPlanFits: no plan does what was asked; names the two numbers and the smallest change that would do.
        PlanInvalid, ProfileInvalid, TopologyInvalid, ScheduleInvalid: an argument cannot be; says which and why.
        NotTraceable: the model's graph cannot be seen.
    """
    topology = as_topology(devices, bandwidth)
    chosen = make_partitioner(partitioner or ("exact" if cuts is None else "fixed"))
    if cuts is not None and chosen.name != "fixed":
        raise PlanInvalid(f"cuts are for the partitioner 'fixed', not for {chosen.name!r}; leave out one of the two")
    order = make_schedule(schedule or _SUITING.get(chosen.name, "one_f_one_b"))
    profile = _profile_of(model, example_inputs, leaf_modules, repeats)
    if micro_batches is None:
        micro_batches = 1 if order.name == "pipedream" else 4 * topology.num_devices
    request = PlanRequest(
        profile,
        topology,
        order,
        micro_batches=micro_batches,
        memory_bytes=None if memory is None else parse_memory(memory),
        optimizer_slots=optimizer_slots,
        num_stages=num_stages,
        recompute=recompute,
        fixed_cuts=() if cuts is None else cuts if isinstance(cuts, Mapping) else tuple(cuts),
    )
    return _planned(request, chosen, order)


def _planned(request: PlanRequest, partitioner: Partitioner, schedule: Schedule) -> Plan:
    begun = time.perf_counter()
    partition = choose(request, partitioner, schedule)
    planning_s = time.perf_counter() - begun
    made = assemble(request.profile, partition.stages, schedule=schedule.name, micro_batches=request.micro_batches)
    # Ours are proved by their tests; one that somebody brings is not, and this takes milliseconds.
    verify(made, schedule.actions(made), schedule)
    return replace(made, prediction=predict(request, partitioner, partition, made, schedule, planning_s))


@runtime_checkable
class Ranking(Protocol):
    """A partitioner that knows several good plans."""

    def candidates(self, request: PlanRequest) -> tuple[Partition, ...]:
        """The plans, the best by the partitioner's own objective first."""
        ...


def choose(request: PlanRequest, partitioner: Partitioner, schedule: Schedule) -> Partition:
    """The partitioner's plan; of several, the one that is fastest in the simulator.

    An objective that can be minimised exactly leaves out what only a clock shows, such as replicas that wait for
    each other; so it proposes, and the simulator decides. Of equals, the first.

    Raises:
        NoPlanFits: the partitioner found none.
    """
    if not isinstance(partitioner, Ranking):
        partition: object = partitioner.partition(request)
        if not isinstance(partition, Partition):
            raise PlanInvalid(f"partitioner {partitioner.name!r} returned {partition!r}; it must return a Partition")
        return partition
    best, best_s = None, math.inf
    found = partitioner.candidates(request)
    for candidate in found:
        made = assemble(request.profile, candidate.stages, schedule=schedule.name, micro_batches=request.micro_batches)
        step_s = mini_batch_s(request, simulated(request, made, schedule))
        if best is None or step_s < best_s * (1 - _SAME):
            best, best_s = candidate, step_s
    assert best is not None, "a partitioner without a plan raises"
    return replace(best, least_objective_s=min(candidate.objective_s for candidate in found))


def as_topology(
    devices: int | str | Path | Topology, bandwidth: str | float | Sequence[str | float] | None = None
) -> Topology:
    """Read what `plan` takes as its devices.

    Raises:
        TopologyInvalid: it cannot be read.
        PlanInvalid: bandwidths are given twice, or not one for each level.
    """
    if isinstance(devices, Topology):
        topology, described = devices, True
    elif isinstance(devices, Path) or (isinstance(devices, str) and devices.endswith(".toml")):
        topology, described = load_topology(devices), True
    else:
        topology, described = parse_topology(str(devices)), "@" in str(devices)
    if described:
        if bandwidth is not None:
            raise PlanInvalid("the devices say the bandwidths of their links already; leave out `bandwidth`")
        return topology
    given: Sequence[str | float] = [bandwidth] if isinstance(bandwidth, str | int | float) else bandwidth or ()
    num_levels = len(topology.levels)
    if given and len(given) != num_levels:
        raise PlanInvalid(
            f"{len(given)} bandwidths were given for {num_levels} levels of devices ({devices}); give one for each, "
            f"from the inside out"
        )
    speeds = [parse_bandwidth(speed) for speed in given] or [DEFAULT_BANDWIDTH] * num_levels
    levels = tuple(Level(level.count, speed) for level, speed in zip(topology.levels, speeds, strict=True))
    return replace(topology, levels=levels)


def _profile_of(model: Any, example_inputs: Any, leaf_modules: Sequence[Any], repeats: int) -> Profile:
    """The profile that was given, or that of a model, measured here."""
    if isinstance(model, Profile):
        if example_inputs is not None or leaf_modules:
            raise PlanInvalid("example_inputs and leaf_modules are for a model; a profile has been measured already")
        return model
    if example_inputs is None:
        raise PlanInvalid(
            f"to plan a {type(model).__name__}, give example_inputs of one micro-batch, or its Profile instead"
        )
    # By name, since whoever plans from a profile may have no torch.
    profiler = importlib.import_module("ropewalk.pipeline.profiler")
    if leaf_modules:
        tracer = importlib.import_module("ropewalk.pipeline.tracing.tracer")
        model = tracer.trace(model, example_inputs, leaf_modules=leaf_modules)
    return profiler.profile(model, example_inputs, repeats=repeats)
