"""What every partitioner promises: from a request (profile, devices, schedule, limits) to stages on devices."""

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
    """What a planner asks of a schedule; every `Schedule` answers it."""

    @property
    def name(self) -> str:
        """What it is called in SCHEDULES."""
        ...

    @property
    def flushes(self) -> bool:
        """Whether the pipeline runs empty at the end of each step, and updates once there."""
        ...

    @property
    def splits_backward(self) -> bool:
        """Whether backward runs in two halves (zero bubble)."""
        ...

    @property
    def uniform_replicas(self) -> bool:
        """Whether all stages need as many replicas."""
        ...

    @property
    def stages_per_worker(self) -> int:
        """How many stages each device runs: 1; interleaved more, zb_v 2."""
        ...

    def in_flight(self, workers_after: int, replicas: int, micro_batches: int) -> int:
        """How many micro-batches a stage holds at most, on each replica; of all its chunks where a worker has several.

        Args:
            workers_after: workers that run later stages (`Plan.workers_after`).
            replicas: of this stage.
            micro_batches: of one step.
        """
        ...

    def held(self, workers_after: int, replicas: int, micro_batches: int, num_stages: int) -> int:
        """How many it holds at most until the second half of their backward, where that is split; else `in_flight`."""
        ...

    def extra_versions(self, workers_after: int, replicas: int, num_stages: int) -> int:
        """How many versions of its weights a stage keeps at most, beside the newest."""
        ...

    def check(self, plan: Plan) -> None:
        """Raise ScheduleInvalid if this plan is out of its range."""
        ...

    def group_of(self, stage: int, num_groups: int) -> int:
        """Which group runs a stage: of its own number; interleaved `stage % num_groups`; zb_v there and back."""
        ...


@dataclass(frozen=True)
class PlanRequest:
    """What to plan for.

    Raises:
        PlanInvalid: a number is out of its range.
        NoPlanFits: more stages are asked for than there are operators or devices.
    """

    profile: Profile
    topology: Topology
    schedule: CostedSchedule
    #: Micro-batches of one step; the times of the profile are for one of them.
    micro_batches: int = 1
    #: Memory of each device that the plan may use, if that is less than the device's kind has.
    memory_bytes: int | None = None
    #: Copies of the weights that the optimizer keeps: Adam 2, SGD with momentum 1, SGD 0.
    optimizer_slots: int = 2
    #: None: whatever is best.
    num_stages: int | None = None
    #: True or False: all stages, or none, run their forward again before the backward. None: the planner's choice.
    recompute: bool | None = None
    #: The cuts of the partitioner `fixed`: the last operators of all stages but the last, in the order of the program,
    #: or the stage of each operator. Empty: where the model says `cut_here()`.
    fixed_cuts: tuple[str, ...] | Mapping[str, int] = ()

    def __post_init__(self) -> None:
        _check(self)

    def memory_limit(self, kind: int) -> float:
        """Bytes that a plan may use of each device of a kind; `inf` if nothing limits it."""
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
            owner = "the model" if available == num_operators else f"{request.topology.num_devices} devices"
            raise NoPlanFits(
                f"{request.num_stages} stages were asked for, but {owner} has {available} {what}; "
                f"ask for num_stages <= {available}",
                needed=request.num_stages,
                available=available,
            )


@dataclass(frozen=True)
class Partition:
    """Stages on devices, and how good they are by the cost model that chose them."""

    stages: tuple[Stage, ...]
    #: Seconds per mini-batch in steady state.
    objective_s: float
    #: No plan has a smaller objective than this, as far as the partitioner knows.
    lower_bound_s: float | None = None
    #: What a reader of the plan should know of how it was found.
    notes: tuple[str, ...] = ()
    #: The least objective that was found, if a simulator chose another plan than that; None: this one's.
    least_objective_s: float | None = None

    @property
    def gap(self) -> float | None:
        """How much worse than the best plan this may be: 0.05 for 5 %. None: not known."""
        return gap_above(self.lower_bound_s, self.least_objective_s or self.objective_s)


@runtime_checkable
class Partitioner(Protocol):
    """Chooses where to cut a model, how often to copy each stage, and on which devices.

    Every implementation promises:

    - each operator is in one stage, stages only read from earlier ones, and none is empty;
    - the same request gives the same stages, in every process;
    - stages take devices in their order, each device runs one stage (or as many as the schedule wants).

    Raises:
        NoPlanFits: no plan does what was asked; says what was needed, what there is, and the smallest change that would
            do.
    """

    @property
    def name(self) -> str:
        """What it is called in PARTITIONERS."""
        ...

    def partition(self, request: PlanRequest) -> Partition:
        """Choose the stages."""
        ...
