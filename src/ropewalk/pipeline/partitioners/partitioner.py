"""The interface of partitioners: from a request (profile, devices, schedule, limits) to stages on devices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from ropewalk.errors import NoPlanFits, PlanInvalid
from ropewalk.pipeline.plans import Plan, Stage
from ropewalk.pipeline.prediction import gap_above
from ropewalk.pipeline.profiles import Profile
from ropewalk.pipeline.topology import Topology


class CostedSchedule(Protocol):
    """The properties of a schedule that a planner needs; every `Schedule` has them."""

    @property
    def name(self) -> str:
        """The name of the schedule in `SCHEDULES`."""
        ...

    @property
    def flushes(self) -> bool:
        """Whether each step ends with an empty pipeline and one update."""
        ...

    @property
    def splits_backward(self) -> bool:
        """Whether backwards run in two halves (zero bubble)."""
        ...

    @property
    def uniform_replicas(self) -> bool:
        """Whether all stages need equally many replicas."""
        ...

    @property
    def stages_per_worker(self) -> int:
        """The number of stages on each device: 1, or more for interleaved, or 2 for zb_v."""
        ...

    def in_flight(self, workers_after: int, replicas: int, micro_batches: int) -> int:
        """Return the most micro-batches that a replica of a stage holds (a worker with several stages: at all of them).

        Args:
            workers_after: workers that run later stages (`Plan.workers_after`).
            replicas: replicas of this stage.
            micro_batches: micro-batches of one step.
        """
        ...

    def held(self, workers_after: int, replicas: int, micro_batches: int, num_stages: int) -> int:
        """Return the most micro-batches held until the second half of a split backward; else `in_flight`.

        Args:
            workers_after: workers that run later stages (`Plan.workers_after`).
            replicas: replicas of this stage.
            micro_batches: micro-batches of one step.
            num_stages: number of stages of the plan.
        """
        ...

    def between_halves(self, workers_after: int, replicas: int, micro_batches: int, num_stages: int) -> int:
        """Return the most micro-batches between the two halves of a split backward; 0 if backwards are whole.

        Args:
            workers_after: workers that run later stages (`Plan.workers_after`).
            replicas: replicas of this stage.
            micro_batches: micro-batches of one step.
            num_stages: number of stages of the plan.
        """
        ...

    def update_size(self, replicas: int, micro_batches: int) -> int:
        """Return the number of micro-batches in one update of a stage.

        Args:
            replicas: replicas of this stage.
            micro_batches: micro-batches of one step.
        """
        ...

    def extra_versions(self, workers_after: int, replicas: int, num_stages: int) -> int:
        """Return the most versions of its weights that a stage keeps in addition to the newest.

        Args:
            workers_after: workers that run later stages (`Plan.workers_after`).
            replicas: replicas of this stage.
            num_stages: number of stages of the plan.
        """
        ...

    def check(self, plan: Plan) -> None:
        """Check that the schedule can run a plan.

        Raises:
            ScheduleInvalid: the plan is out of the schedule's range.
        """
        ...

    def group_of(self, stage: int, num_groups: int) -> int:
        """Return the group that runs a stage: number `stage`; interleaved `stage % num_groups`; zb_v there and back."""
        ...


@dataclass(frozen=True)
class PlanRequest:
    """A request for a plan.

    Raises:
        PlanInvalid: a number is out of its range.
        NoPlanFits: `num_stages` exceeds the number of operators or devices.
    """

    profile: Profile
    topology: Topology
    schedule: CostedSchedule
    micro_batches: int = 1
    """Micro-batches of one step; the times of the profile are for one micro-batch."""
    memory_bytes: int | None = None
    """Bytes of each device's memory that the plan may use, if less than the device's kind has."""
    optimizer_slots: int = 2
    """Copies of the weights that the optimizer keeps: Adam 2, SGD with momentum 1, SGD 0."""
    num_stages: int | None = None
    """Number of stages; None: the best number."""
    recompute: bool | None = None
    """Whether all stages run their forward again before the backward; None: the planner decides for each stage."""
    fixed_cuts: tuple[str, ...] | Mapping[str, int] = ()
    """The cuts of the partitioner `fixed`: the last operator of each stage except the last one, in program order, or
    the stage of each operator. Empty: the places where the model calls `cut_here()`."""

    def __post_init__(self) -> None:
        _check(self)

    def memory_limit(self, kind: int) -> float:
        """Return the bytes that a plan may use on each device of a kind; `inf` without a limit.

        Args:
            kind: index of the kind in the topology.
        """
        limits = (self.memory_bytes, self.topology.kinds[kind].memory_bytes)
        return min((float(limit) for limit in limits if limit is not None), default=float("inf"))


def _check(request: PlanRequest) -> None:
    for name, least in (("micro_batches", 1), ("optimizer_slots", 0), ("memory_bytes", 0), ("num_stages", 1)):
        value = getattr(request, name)
        if value is not None and value < least:
            raise PlanInvalid(f"{name} must be at least {least}, not {value}")
    if request.num_stages is None:
        return
    num_operators = sum(not operator.is_input for operator in request.profile.operators)
    num_places = request.topology.num_devices * request.schedule.stages_per_worker
    for available, what in ((num_operators, "operators beside its inputs"), (num_places, "places for stages")):
        if request.num_stages > available:
            owner = "the model has" if available == num_operators else f"{request.topology.num_devices} devices have"
            raise NoPlanFits(
                f"{request.num_stages} stages were asked for, but {owner} {available} {what}; "
                f"ask for num_stages <= {available}",
                needed=request.num_stages,
                available=available,
            )


@dataclass(frozen=True)
class Partition:
    """Stages on devices, with their objective by the cost model that chose them."""

    stages: tuple[Stage, ...]
    objective_s: float
    """Seconds per mini-batch in steady state."""
    lower_bound_s: float | None = None
    """Lower bound of the objective over all plans, in seconds; None: not known."""
    notes: tuple[str, ...] = ()
    """Remarks for the reader of the plan on how it was found."""
    least_objective_s: float | None = None
    """The least objective that was found, if the simulator preferred this plan to the best one; None: `objective_s`."""

    @property
    def gap(self) -> float | None:
        """The most by which this plan can exceed the best one: 0.05 for 5 %. None: not known."""
        return gap_above(self.lower_bound_s, self.least_objective_s or self.objective_s)


@runtime_checkable
class Partitioner(Protocol):
    """Chooses where to cut a model, how many replicas each stage gets, and on which devices.

    Every implementation promises:

    - each operator is in one stage, stages only read from earlier ones, and no stage is empty;
    - the same request gives the same stages, in every process;
    - stages take devices in their order, and each device runs one stage (or `stages_per_worker` of the schedule).

    Raises:
        NoPlanFits: no plan meets the request; the message has the needed and the available number, and the smallest
            change that allows a plan.
    """

    @property
    def name(self) -> str:
        """The name of the partitioner in `PARTITIONERS`."""
        ...

    def partition(self, request: PlanRequest) -> Partition:
        """Choose the stages.

        Args:
            request: the model, the devices, the schedule and the limits.
        """
        ...
