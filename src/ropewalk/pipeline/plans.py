"""A plan: which operators each stage runs, on which devices, and which tensors pass between the stages.

    stage 0  [input.x, conv1, relu]   devices (0, 1, 2): 3 replicas, micro-batch b goes to replica b mod 3
       │ edge relu -> 1
    stage 1  [fc1, fc2]               devices (3,)

Stages are numbered in the direction of the data: every edge leads to a later stage. A tensor
that several later stages read is sent directly to each of them. Stages on the same devices
share workers (interleaved and V-shaped schedules); such a set of stages is a *group*, and a
worker is (group, replica).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import msgspec

from ropewalk.errors import PlanInvalid
from ropewalk.pipeline.plan_dot import plan_dot
from ropewalk.pipeline.plan_svg import plan_svg
from ropewalk.pipeline.plan_table import plan_table
from ropewalk.pipeline.prediction import Prediction
from ropewalk.pipeline.profiles import Profile


class PlanWorker(NamedTuple):
    """One process of a pipeline: replica `replica` of all stages of group `group`."""

    group: int
    replica: int

    def __str__(self) -> str:
        return f"{self.group}.{self.replica}"


@dataclass(frozen=True, slots=True)
class Stage:
    """Operators that run together."""

    id: int
    operators: tuple[str, ...]
    """Ids of operators, in the profile's topological order."""
    devices: tuple[int, ...]
    """One device per replica; the same operators run on each."""
    recompute: bool = False
    """Whether the stage keeps only its inputs, and runs its forward again before its backward."""

    @property
    def replicas(self) -> int:
        """The number of replicas: one for each device."""
        return len(self.devices)


@dataclass(frozen=True, slots=True)
class Edge:
    """A value that crosses from one stage to later ones."""

    tensor: str
    """Id of the operator whose value crosses."""
    source: int
    targets: tuple[int, ...]
    size_bytes: int
    """Bytes of the value, sent to each target for one micro-batch."""
    gradient_bytes: int
    """Bytes of the gradient that each target sends back; 0 if the value has no gradient."""


@dataclass(frozen=True, slots=True)
class Tie:
    """A parameter that several stages read; each stage holds a copy, and their gradients are summed before a step."""

    parameter: str
    stages: tuple[int, ...]


@dataclass(frozen=True)
class Plan:
    """Stages on devices, and the schedule that they follow.

    Raises:
        PlanInvalid: stages are not numbered 0, 1, ..., a stage is empty or has no device, an operator is in two stages,
            an edge does not lead to a later stage or is there twice, a tie names no stages, or two stages share some of
            their devices but not all.
    """

    stages: tuple[Stage, ...]
    edges: tuple[Edge, ...] = ()
    tied: tuple[Tie, ...] = ()
    schedule: str = "one_f_one_b"
    micro_batches: int = 1
    """Micro-batches in one step."""
    prediction: Prediction | None = field(default=None, compare=False)
    """Predicted times and memory, if `plan` made this plan."""

    def __post_init__(self) -> None:
        _check(self)

    @cached_property
    def placement(self) -> tuple[int, ...]:
        """The group of each stage: stages on the same devices form one group; groups are ordered by first stage."""
        groups: dict[tuple[int, ...], int] = {}
        return tuple(groups.setdefault(stage.devices, len(groups)) for stage in self.stages)

    @cached_property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """The stages of each group."""
        return tuple(
            tuple(stage for stage, of in enumerate(self.placement) if of == group)
            for group in range(max(self.placement) + 1)
        )

    @cached_property
    def workers(self) -> tuple[PlanWorker, ...]:
        """All workers, by group and replica."""
        return tuple(
            PlanWorker(group, replica)
            for group, stages in enumerate(self.groups)
            for replica in range(self.stages[stages[0]].replicas)
        )

    def worker_of(self, stage: int, micro_batch: int) -> PlanWorker:
        """Return the worker that runs a micro-batch at a stage; replicas take turns.

        Args:
            stage: id of the stage.
            micro_batch: number of the micro-batch.
        """
        return PlanWorker(self.placement[stage], micro_batch % self.stages[stage].replicas)

    def device_of(self, worker: PlanWorker) -> int:
        """Return the device of a worker."""
        return self.stages[self.groups[worker.group][0]].devices[worker.replica]

    def workers_after(self, stage: int) -> int:
        """Return the number of workers of later stages (docs/theory.md, "Weight versions": W_s = ceil(this / r_s))."""
        return self._workers_after[stage]

    @cached_property
    def _workers_after(self) -> tuple[int, ...]:
        counts: list[int] = []
        devices: set[int] = set()
        for stage in reversed(self.stages):
            counts.append(len(devices))
            devices.update(stage.devices)
        return tuple(reversed(counts))

    def inputs_of(self, stage: int) -> tuple[Edge, ...]:
        """Return the edges that lead to a stage."""
        return tuple(edge for edge in self.edges if stage in edge.targets)

    def outputs_of(self, stage: int) -> tuple[Edge, ...]:
        """Return the edges that begin at a stage."""
        return tuple(edge for edge in self.edges if edge.source == stage)

    def __str__(self) -> str:
        """The plan as a table; without a prediction, the table has the stages alone."""
        if self.prediction:
            return plan_table(self, self.prediction)
        return "\n".join(
            f"stage {stage.id} on devices {', '.join(map(str, stage.devices))}: {', '.join(stage.operators)}"
            for stage in self.stages
        )

    def svg(self) -> str:
        """Draw the plan as an SVG document.

        Raises:
            PlanInvalid: the plan has no prediction.
        """
        if self.prediction is None:
            raise PlanInvalid("this plan has no prediction to draw; plans made by ropewalk.pipeline.plan have one")
        return plan_svg(self, self.prediction)

    def dot(self, profile: Profile) -> str:
        """Draw the plan over the operator graph of its profile, in Graphviz's DOT language.

        Args:
            profile: the profile that the plan was made from.
        """
        return plan_dot(self, profile)

    def to_json(self) -> bytes:
        """Return the plan as JSON, which `Plan.from_json` reads."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1)

    @classmethod
    def from_json(cls, text: bytes | str) -> Plan:
        """Read a plan that `to_json` wrote.

        Raises:
            PlanInvalid: `text` is not such a plan; the message says where.
        """
        try:
            return msgspec.json.decode(text, type=cls)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise PlanInvalid(f"this is not a plan in Ropewalk's JSON: {error}") from error


def assemble(profile: Profile, stages: Sequence[Stage], *, schedule: str, micro_batches: int) -> Plan:
    """Make a plan from stages: find the tensors that pass between them and the parameters that they share.

    Args:
        profile: the operators, and the edges between them.
        stages: the stages, in order; together they have each operator once.
        schedule: name of the plan's schedule.
        micro_batches: micro-batches in one step.

    Raises:
        PlanInvalid: an operator is in no stage or in two, or an edge of the profile leads to an earlier stage.
    """
    stage_of: dict[str, int] = {}
    for stage in stages:
        for id in stage.operators:
            if id not in profile.by_id:
                raise PlanInvalid(f"stage {stage.id} has {id!r}, which is not an operator of the profile")
            if id in stage_of:
                raise PlanInvalid(f"operator {id!r} is in stage {stage_of[id]} and in stage {stage.id}")
            stage_of[id] = stage.id
    if missing := [id for id in profile.order if id not in stage_of]:
        raise PlanInvalid(f"{len(missing)} operators are in no stage, the first is {missing[0]!r}")
    for source, target in profile.edges:
        if stage_of[source] > stage_of[target]:
            raise PlanInvalid(
                f"{target!r} in stage {stage_of[target]} reads {source!r} of the later stage {stage_of[source]}; "
                f"a stage may only read from earlier ones"
            )
    edges: list[Edge] = []
    for id in profile.order:
        operator, source = profile.by_id[id], stage_of[id]
        targets = sorted({stage_of[target] for target in profile.targets[id]} - {source})
        if targets:
            edges.append(Edge(id, source, tuple(targets), operator.output_bytes, operator.returned_bytes))
    tied: list[Tie] = []
    for name, readers in profile.tied.items():
        holders = sorted({stage_of[id] for id in readers})
        if len(holders) > 1:
            tied.append(Tie(name, tuple(holders)))
    return Plan(tuple(stages), tuple(edges), tuple(tied), schedule, micro_batches)


def _check(plan: Plan) -> None:
    if not plan.stages:
        raise PlanInvalid("a plan needs at least one stage")
    if plan.micro_batches < 1:
        raise PlanInvalid(f"a step has at least 1 micro-batch, not {plan.micro_batches}")
    stage_of: dict[str, int] = {}
    for number, stage in enumerate(plan.stages):
        if stage.id != number:
            raise PlanInvalid(f"stages are numbered along the data from 0; number {number} says it is {stage.id}")
        if not stage.operators:
            raise PlanInvalid(f"stage {number} has no operators")
        for id in stage.operators:
            if id in stage_of:
                raise PlanInvalid(f"operator {id!r} is in stage {stage_of[id]} and again in stage {number}")
            stage_of[id] = number
        if not stage.devices or len(set(stage.devices)) != len(stage.devices) or min(stage.devices) < 0:
            raise PlanInvalid(f"stage {number} needs different devices, at least one, not {stage.devices}")
        for other in plan.stages[:number]:
            if stage.devices != other.devices and set(stage.devices) & set(other.devices):
                raise PlanInvalid(
                    f"stages {other.id} and {number} share some of their devices {other.devices} and {stage.devices}; "
                    f"stages share all of them, in the same order, or none"
                )
    tensors: set[str] = set()
    for edge in plan.edges:
        if (
            not edge.targets
            or edge.source < 0
            or min(edge.targets) <= edge.source
            or max(edge.targets) >= len(plan.stages)
        ):
            raise PlanInvalid(
                f"edge {edge.tensor!r} leads from stage {edge.source} to {edge.targets}, not to later ones"
            )
        if edge.tensor in tensors:
            raise PlanInvalid(f"two edges are for the value of {edge.tensor!r}; one leads to all stages that read it")
        if min(edge.size_bytes, edge.gradient_bytes) < 0:
            raise PlanInvalid(
                f"edge {edge.tensor!r} has {edge.size_bytes} bytes, and {edge.gradient_bytes} for its gradient; both "
                f"must be at least 0"
            )
        tensors.add(edge.tensor)
    for tie in plan.tied:
        if len(set(tie.stages)) < 2 or min(tie.stages) < 0 or max(tie.stages) >= len(plan.stages):
            raise PlanInvalid(
                f"parameter {tie.parameter!r} is tied between stages {tie.stages}; it needs several of the stages 0 to "
                f"{len(plan.stages) - 1}"
            )
