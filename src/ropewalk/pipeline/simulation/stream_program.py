"""Action lists compiled for the simulator: an integer and a duration for each action, an integer for each message.

So the event loop handles lists of numbers alone. The integer of an action:

    -1        compute (F, B, I, W, C) or step, for its duration
    2m        send message m                      2m + 1    receive message m
    -2 - k    take part in reduction k
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ropewalk.errors import ScheduleInvalid
from ropewalk.pipeline.actions import Action, ActionKind, ReduceGroup
from ropewalk.pipeline.cost import reduce_s
from ropewalk.pipeline.plans import Plan, PlanWorker
from ropewalk.pipeline.profiles import Profile
from ropewalk.pipeline.simulation.stage_load import StageLoad
from ropewalk.pipeline.topology import Topology
from ropewalk.pipeline.updates import members

COMPUTE = -1
SAME_DEVICE = -1
"""The level of a link between a device and itself."""


@dataclass(slots=True)
class TransferLink:
    """A link for one tensor in one direction from one worker to another, with slots of its own."""

    number: int
    tensor: str
    source: int
    target: int
    sender: int
    receiver: int
    level: int
    """Index of the level that joins the two devices; `SAME_DEVICE` if they are the same."""
    size_bytes: int
    seconds: float
    latency_s: float
    messages: dict[tuple[int, int], int] = field(default_factory=dict[tuple[int, int], int])
    num_sent: dict[int, int] = field(default_factory=dict[int, int])
    num_received: dict[int, int] = field(default_factory=dict[int, int])


@dataclass(slots=True)
class Reduction:
    """A reduction over workers, none of which goes on before all have reached it."""

    group: ReduceGroup
    stage: int | None
    """The stage whose replicas take part; None for the other groups."""
    version: int | None
    members: list[int]
    size_bytes: int = 0
    level: int = SAME_DEVICE
    seconds: float = 0.0


class StreamProgram:
    """The lists of all workers, as numbers.

    Args:
        plan: stages on devices.
        profile: the sizes of the tensors.
        topology: the links between the devices.
        loads: the load of each stage.
        actions: the actions of each worker, in order.
        update_s: seconds of a Step at each stage; 0 for stages that are missing here.

    Raises:
        ScheduleInvalid: an action names a tensor, a stage or a worker that the plan does not have.
    """

    def __init__(
        self,
        plan: Plan,
        profile: Profile,
        topology: Topology,
        loads: Sequence[StageLoad],
        actions: Mapping[PlanWorker, Sequence[Action]],
        update_s: Mapping[int, float],
    ) -> None:
        self.plan, self.profile, self.topology, self.loads = plan, profile, topology, loads
        self.workers = plan.workers
        self.devices = [plan.device_of(worker) for worker in self.workers]
        self.lists = [list(actions.get(worker, ())) for worker in self.workers]
        if strangers := [str(worker) for worker in actions if worker not in set(self.workers)]:
            raise ScheduleInvalid(f"there are actions of worker {strangers[0]}, which the plan does not have")
        self.links: list[TransferLink] = []
        self.link_of: list[int] = []
        self.micro_batch_of: list[int] = []
        self.reductions: list[Reduction] = []
        self.codes: list[list[int]] = []
        self.durations: list[list[float]] = []
        self._seconds = {
            ActionKind.FORWARD: [load.forward_s for load in loads],
            ActionKind.BACKWARD: [load.backward_s for load in loads],
            ActionKind.INPUT_GRADIENT: [load.input_gradient_s for load in loads],
            ActionKind.WEIGHT_GRADIENT: [load.weight_gradient_s for load in loads],
            ActionKind.RECOMPUTE: [load.forward_s for load in loads],
            ActionKind.STEP: [update_s.get(stage, 0.0) for stage in range(len(loads))],
        }
        self._index = {worker: number for number, worker in enumerate(self.workers)}
        self._edges = {edge.tensor: edge for edge in plan.edges}
        self._found: dict[tuple[str | None, int, int | None, int, int], TransferLink] = {}
        self._members: dict[tuple[PlanWorker, ReduceGroup], tuple[PlanWorker, ...]] = {}
        self._reduction_numbers: dict[tuple[ReduceGroup, int | None, tuple[PlanWorker, ...], int | None], int] = {}
        self._parameter_bytes = {name: size for op in profile.operators for name, size in op.parameters.items()}
        for number in range(len(self.workers)):
            self._read(number)
        for reduction in self.reductions:
            self._weigh(reduction)

    # --- reading ------------------------------------------------------------------------------------------------------

    def _read(self, worker: int) -> None:
        codes: list[int] = []
        durations: list[float] = []
        for action in self.lists[worker]:
            kind, duration = action.kind, 0.0
            if not 0 <= action.stage < len(self.loads):
                raise _invalid(action, self.workers[worker], f"names stage {action.stage} of {len(self.loads)}")
            if kind is ActionKind.SEND:
                code = 2 * self._message(action, worker, is_send=True)
            elif kind is ActionKind.RECEIVE:
                code = 2 * self._message(action, worker, is_send=False) + 1
            elif kind is ActionKind.REDUCE:
                code = -2 - self._reduction(action, worker)
            else:
                code, duration = COMPUTE, self._seconds[kind][action.stage]
            codes.append(code)
            durations.append(duration)
        self.codes.append(codes)
        self.durations.append(durations)

    def _message(self, action: Action, worker: int, *, is_send: bool) -> int:
        """The number of an action's message; the n-th send of a micro-batch over a link belongs to its n-th receive."""
        stage, peer, micro_batch = action.stage, action.peer, action.micro_batch
        if micro_batch is None or peer is None:
            raise _invalid(action, self.workers[worker], "names no micro-batch or no stage at the other end")
        source, target = (stage, peer) if is_send else (peer, stage)
        stages = self.plan.stages
        if not 0 <= peer < len(stages):
            raise _invalid(action, self.workers[worker], f"names stage {peer} of {len(stages)}")
        key = (
            action.edge,
            source,
            target,
            micro_batch % len(stages[source].devices),
            micro_batch % len(stages[target].devices),
        )
        link = self._found.get(key)
        if link is None:
            link = self._found[key] = self._link(action, self.workers[worker], source, target)
        end, counts = (link.sender, link.num_sent) if is_send else (link.receiver, link.num_received)
        if end != worker:
            raise _invalid(
                action,
                self.workers[worker],
                f"belongs to worker {self.workers[end]}: replicas take micro-batches in turn",
            )
        time = counts.get(micro_batch, 0)
        counts[micro_batch] = time + 1
        message = link.messages.get((micro_batch, time))
        if message is None:
            message = link.messages[micro_batch, time] = len(self.link_of)
            self.link_of.append(link.number)
            self.micro_batch_of.append(micro_batch)
        return message

    def _link(self, action: Action, worker: PlanWorker, source: int, target: int) -> TransferLink:
        assert action.micro_batch is not None
        edge = self._edges.get(action.edge or "")
        if edge is None or ((edge.source, target) != (source, target) and (edge.source, source) != (target, source)):
            raise _invalid(action, worker, f"names a tensor that does not pass from stage {source} to {target}")
        if max(source, target) not in edge.targets:
            raise _invalid(action, worker, f"names a tensor that only passes to {edge.targets}")
        sender = self._index[self.plan.worker_of(source, action.micro_batch)]
        receiver = self._index[self.plan.worker_of(target, action.micro_batch)]
        size = edge.size_bytes if source < target else edge.gradient_bytes
        level = level_index(self.topology, self.devices[sender], self.devices[receiver])
        seconds = latency_s = 0.0
        if level != SAME_DEVICE:
            seconds = size / self.topology.levels[level].bandwidth
            latency_s = self.topology.levels[level].latency_s
        link = TransferLink(
            len(self.links), edge.tensor, source, target, sender, receiver, level, size, seconds, latency_s
        )
        self.links.append(link)
        return link

    # --- reductions ---------------------------------------------------------------------------------------------------

    def _reduction(self, action: Action, worker: int) -> int:
        group, name = action.group, self.workers[worker]
        if group is None:
            raise _invalid(action, name, "does not say among whom")
        if group is ReduceGroup.TIED and not any(action.stage in tie.stages for tie in self.plan.tied):
            raise _invalid(action, name, "is of a stage without tied parameters")
        if (name, group) not in self._members:
            self._members[name, group] = members(self.plan, name, group)
        stage = action.stage if group is ReduceGroup.REPLICAS else None
        key = (group, stage, self._members[name, group], action.version)
        number = self._reduction_numbers.get(key)
        if number is None:
            number = self._reduction_numbers[key] = len(self.reductions)
            self.reductions.append(Reduction(group, stage, action.version, []))
        who = self.reductions[number].members
        if not who or who[-1] != worker:  # each worker is a member once
            who.append(worker)
        return number

    def _weigh(self, reduction: Reduction) -> None:
        """Replicas sum in slices, as the cost model says; copies of tied parameters, and norms, go whole to all."""
        devices = tuple(self.devices[member] for member in reduction.members)
        num = len(devices)
        if num < 2:
            return
        if reduction.group is not ReduceGroup.NORM:
            reduction.size_bytes = self._summed_bytes(reduction)
        reduction.level = level_index(self.topology, min(devices), max(devices))
        level = self.topology.levels[reduction.level]
        if reduction.group is ReduceGroup.REPLICAS:
            reduction.seconds = reduce_s(float(reduction.size_bytes), num, level)
        else:
            reduction.seconds = (num - 1) * reduction.size_bytes / level.bandwidth + level.latency_s

    def _summed_bytes(self, reduction: Reduction) -> int:
        """Replicas reduce the parameters that are not tied to other stages; all holders of a tied one reduce it."""
        if reduction.stage is not None:
            tied = {tie.parameter for tie in self.plan.tied if reduction.stage in tie.stages}
            return self.loads[reduction.stage].weight_bytes - sum(self._parameter_bytes[name] for name in tied)
        groups = {self.workers[member].group for member in reduction.members}
        placement = self.plan.placement
        return sum(self._parameter_bytes[tie.parameter] for tie in self.plan.tied if placement[tie.stages[0]] in groups)


def level_index(topology: Topology, one: int, other: int) -> int:
    """Return the index of the innermost level that joins two devices; `SAME_DEVICE` for a device and itself."""
    if one == other:
        return SAME_DEVICE
    sizes = topology.component_sizes
    return next(index for index, size in enumerate(sizes) if one // size == other // size)


def _invalid(action: Action, worker: PlanWorker, what: str) -> ScheduleInvalid:
    return ScheduleInvalid(f"{action} in the list of worker {worker} {what}", action=str(action), worker=str(worker))
