"""Makes a plan from a model or from its profile: the main entry point of `ropewalk.pipeline`.

plan = ropewalk.pipeline.plan(model, example, devices="4x2@12GBps,1.25GBps", memory="16GB")
print(plan)                          # stages, times, memory, the bottleneck
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
from ropewalk.pipeline.predicting import predict, simulated
from ropewalk.pipeline.profiles import Profile
from ropewalk.pipeline.schedules import make_schedule
from ropewalk.pipeline.schedules.schedule import Schedule
from ropewalk.pipeline.topology import Level, Topology
from ropewalk.pipeline.topology_text import load_topology, parse_bandwidth, parse_topology
from ropewalk.pipeline.verifier import verify
from ropewalk.quantities import parse_memory
from ropewalk.user_frames import user_frames_only

DEFAULT_BANDWIDTH = 1e9
"""Bytes per second of links without a description: the value that PipeDream's optimizer uses, about 10 Gbit/s Ethernet.
"""

_SAME = 1e-9
"""Two simulated times count as equal if they differ by less than this share."""

_SUITING = {"pipedream": "pipedream", "balanced": "gpipe"}
"""For a partitioner that comes from a paper, the schedule of that paper."""


@user_frames_only
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
    """Choose where to cut a model, how many replicas each stage gets, and on which devices each stage runs.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> import ropewalk as rw
        >>> model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4)))
        >>> plan = rw.pipeline.plan(model, torch.zeros(8, 64), devices=2, num_stages=2, micro_batches=4)
        >>> len(plan.stages), plan.micro_batches
        (2, 4)

    Args:
        model: a `torch.nn.Module` (or its graph, from `trace`), which is profiled first; or its `Profile`, for
            which no torch is needed.
        example_inputs: for a module: the inputs of one micro-batch, as a tensor, or a tuple or dict of tensors.
        devices: their number (4), their number in each level from the inside out ("4x8@12GBps,1.25GBps"), the path of
            a TOML file that describes them, or a `Topology`.
        bandwidth: bytes per second of the links at each level, if `devices` does not give them; 1 GB/s by default.
        memory: memory of each device, such as "16GB" or a number of bytes; None: the topology's, or no limit.
        schedule: a name from `ropewalk.pipeline.schedules`, or a schedule. None: the one that suits the partitioner,
            which is "pipedream" for pipedream, "gpipe" for balanced, and "one_f_one_b" for the others.
        micro_batches: micro-batches in one step. None: 4 for each device (GPipe's rule for a small bubble), or 1 with
            the schedule "pipedream", which updates after every micro-batch.
        partitioner: a name from `ropewalk.pipeline.partitioners`, or a partitioner. None: "exact".
        num_stages: number of stages; None: the fastest number.
        recompute: whether all stages recompute their forwards; None: the planner decides for each stage.
        optimizer_slots: copies of the weights that the optimizer keeps: Adam 2, SGD with momentum 1, SGD 0.
        cuts: the last operator, or module, of each stage but the last one, or a mapping from operators to stages; the
            partitioner is then "fixed".
        leaf_modules: for a module: submodules that tracing treats as one operator each (see `trace`).
        repeats: how many times the profiler measures each operator.

    Returns:
        The plan; `plan.prediction` has the predicted times and memory.

    Raises:
        NoPlanFits: no plan meets the request; the message has the requested and the possible number, and the smallest
            change to the request that allows a plan.
        PlanInvalid, ProfileInvalid, TopologyInvalid, ScheduleInvalid: an argument is invalid; the message says which
            one and why.
        NotTraceable: the model's graph cannot be traced.
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
    # Tests prove the schedules of this package, but not those of users; verifying takes milliseconds.
    verify(made, schedule.actions(made), schedule)
    return replace(made, prediction=predict(request, partitioner, partition, made, schedule, planning_s))


@runtime_checkable
class Ranking(Protocol):
    """A partitioner that can return several good plans."""

    def candidates(self, request: PlanRequest) -> tuple[Partition, ...]:
        """Return several plans, best first by the partitioner's own objective.

        Args:
            request: the model, the devices and the constraints.
        """
        ...


def choose(request: PlanRequest, partitioner: Partitioner, schedule: Schedule) -> Partition:
    """Return the partitioner's plan or, if it proposes several, the one that is fastest in the simulator.

    An objective that can be minimised exactly leaves out effects that only a simulation shows, such as replicas that
    wait for each other. So the objective proposes plans, and the simulator decides. If several plans are equally
    fast, the first one is taken.

    Args:
        request: the model, the devices and the constraints.
        partitioner: proposes the plans.
        schedule: the order of actions in which the plans are simulated.

    Raises:
        NoPlanFits: the partitioner found no plan.
        PlanInvalid: the partitioner returned something else than a `Partition`.
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
        step_s = simulated(request, made, schedule).step_s
        if best is None or step_s < best_s * (1 - _SAME):
            best, best_s = candidate, step_s
    assert best is not None, "a partitioner without a plan raises"
    return replace(best, least_objective_s=min(candidate.objective_s for candidate in found))


def as_topology(
    devices: int | str | Path | Topology, bandwidth: str | float | Sequence[str | float] | None = None
) -> Topology:
    """Read a topology from the `devices` and `bandwidth` that `plan` takes.

    Args:
        devices: as for `plan`.
        bandwidth: as for `plan`.

    Raises:
        TopologyInvalid: `devices` cannot be read.
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
    """The profile that was given, or the measured profile of a model."""
    if isinstance(model, Profile):
        if example_inputs is not None or leaf_modules:
            raise PlanInvalid("example_inputs and leaf_modules are for a model; a profile has been measured already")
        return model
    if example_inputs is None:
        raise PlanInvalid(
            f"to plan a {type(model).__name__}, give example_inputs of one micro-batch, or its Profile instead"
        )
    # Imported by name, since planning from a profile must work without torch.
    profiler = importlib.import_module("ropewalk.pipeline.profiler")
    if leaf_modules:
        tracer = importlib.import_module("ropewalk.pipeline.tracing.tracer")
        model = tracer.trace(model, example_inputs, leaf_modules=leaf_modules)
    return profiler.profile(model, example_inputs, repeats=repeats)
