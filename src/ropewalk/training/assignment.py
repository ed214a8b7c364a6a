"""The messages between the controller and the stage processes.

TrainingConfig    once, when a process starts: the model without its tensors, the loss, the optimizer
Presence          the answer of a process that has started
Assignment        at each deployment (a new epoch): the plan, which worker this process is, the source of its tensors
Admission         at each step: the micro-batches, each reduced to what this worker needs
AdmissionOutcome  the answer to an admission: losses, and snapshots that a peer now keeps
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from torch import Tensor

from ropewalk.exchange.exchange_maker import MakesExchange
from ropewalk.pipeline.plans import Plan, PlanWorker
from ropewalk.pipeline.schedules.schedule import Schedule
from ropewalk.pipeline.schedules.streams import Cut
from ropewalk.pipeline.stages.losses import Loss
from ropewalk.pipeline.stages.micro_batches import MicroBatchPiece, MiniBatch
from ropewalk.pipeline.stages.optimizer_maker import OptimizerMaker
from ropewalk.pipeline.stages.snapshots import WorkerSnapshot
from ropewalk.pipeline.stages.tensor_source import TensorSource
from ropewalk.pipeline.stages.training_options import TrainingOptions
from ropewalk.training.blueprint import Blueprint
from ropewalk.training.checkpoint import Checkpoint
from ropewalk.training.own_data import MakesData
from ropewalk.training.stored_snapshots import StoredSnapshot


@dataclass(frozen=True, slots=True)
class TrainingConfig:
    """The configuration that every stage process of a trainer gets when it starts."""

    blueprint: Blueprint
    loss: Loss
    optimizers: OptimizerMaker
    options: TrainingOptions
    exchange: MakesExchange | None = None
    """How gradients of replicas are averaged; None: over the links of the stages, in the order of the replicas."""
    data: MakesData | None = None
    """Gives mini-batches to the processes that need them; None: they come with admissions."""
    source: TensorSource | None = None
    """Where the initial parameters and buffers come from, if not from the launcher."""
    device: str = "cpu"
    """The kind of device that stages compute on, or one device for all: "cpu", "cuda", "cuda:1"."""


class Presence(NamedTuple):
    """A process that has started, as it introduces itself."""

    name: str
    """The name of this process; its replacement has another one."""
    host: str
    """The machine it runs on, which would be lost with it."""


@dataclass(frozen=True, slots=True)
class FromTensors:
    """Start the training with these parameters and buffers."""

    tensors: Mapping[str, Tensor]

    def only(self, names: Iterable[str]) -> FromTensors:
        """Return the tensors of one process."""
        return FromTensors({name: self.tensors[name] for name in names})


@dataclass(frozen=True, slots=True)
class FromSource:
    """Start from the training's tensor source, which each process reads or runs by itself."""


Place = int | WorkerSnapshot | StoredSnapshot
"""The place of a snapshot: the seat of its keeper, or the snapshot from the launcher, in memory or as a file."""


@dataclass(frozen=True, slots=True)
class FromSnapshots:
    """Go on from a cut of which there are snapshots."""

    cut: Cut
    epoch: int
    """The epoch that took them. Under another plan, the same number is another position."""
    places: Mapping[PlanWorker, Place]
    """The place of the snapshot of each worker of that epoch."""
    same_plan: bool
    """Whether the plan is that of the epoch, so that all versions of the weights are restored."""

    def only(self, worker: PlanWorker) -> FromSnapshots:
        """Return what one worker of the same plan needs, or everything for a worker of another plan."""
        return replace(self, places={worker: self.places[worker]}) if self.same_plan else self


@dataclass(frozen=True, slots=True)
class FromState:
    """Go on from a state that `state_dict` returned."""

    state: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class FromCheckpoint:
    """Go on from files, of which each process reads what it needs."""

    checkpoint: Checkpoint


Origin = FromTensors | FromSource | FromSnapshots | FromState | FromCheckpoint


@dataclass(frozen=True, slots=True)
class Assignment:
    """The role of a process in one epoch."""

    epoch: int
    plan: Plan
    schedule: Schedule
    worker: PlanWorker
    seed: int
    seats: Mapping[PlanWorker, int]
    """The seat of each worker: which replica of the node "stages" runs it."""
    origin: Origin
    start: Cut
    """The numbers of micro-batches and versions to continue from."""
    takes_snapshots: bool
    """Whether snapshots may be asked for."""
    folder: str | None = None
    """The folder to which each snapshot is also written; None: none."""


class MicroBatchInput(NamedTuple):
    """One micro-batch at one stage, where the stage needs a part of it that no other stage sends."""

    stage: int
    micro_batch: int
    piece: MicroBatchPiece


@dataclass(frozen=True, slots=True)
class Admission:
    """One step, a drain, or neither (run what the admitted steps allow), as one worker sees it."""

    epoch: int
    number: int
    """The number of the admission in its epoch, from 0: calls may overtake each other."""
    num: int
    """The number of micro-batches admitted."""
    whole: tuple[tuple[int, MiniBatch], ...]
    """For stages without replicas that need a part of every micro-batch: cutting one tensor there costs a tenth of
    sending the micro-batches separately."""
    given: tuple[MicroBatchInput, ...]
    step: int
    """The step of the run, for processes that read data by themselves."""
    drains: bool = False
    """Whether the pipeline is drained after these micro-batches."""
    keeper: int | None = None
    """The seat that keeps the snapshot taken at the cut after this admission; None: none is taken."""


@dataclass(frozen=True, slots=True)
class Examination:
    """Mini-batches to evaluate or predict for, as one worker sees them; nothing else is in flight."""

    epoch: int
    first: int
    """The number of the first mini-batch, and how many there are."""
    num: int
    given: tuple[MicroBatchInput, ...]
    wants_loss: bool
    """Whether the loss is wanted, or the model's output."""


class PeerSnapshot(NamedTuple):
    """A snapshot that a peer keeps."""

    cut: Cut
    took_s: float
    """Seconds for which it held up computing, and its size."""
    size_bytes: int
    keeper: int
    """The seat of the peer."""
    stored: StoredSnapshot | None = None
    """The file to which it was also written, if it was to be."""


@dataclass(frozen=True, slots=True)
class AdmissionOutcome:
    """A worker's answer once everything that follows from an admission is done."""

    micro_batches: tuple[int, ...]
    """The micro-batches that have losses, the loss values in one tensor, and the weight of each."""
    values: Tensor | None
    weights: tuple[float | None, ...]
    norm: Tensor | None = None
    """The norm of all gradients of the last update, and whether the update was skipped; if the norm was requested."""
    is_skipped: bool = False
    kept: tuple[PeerSnapshot, ...] = ()
    """Snapshots that reached their keepers since the last outcome."""
    lost_snapshots: tuple[str, ...] = ()
    """Why a snapshot could not be sent to its keeper, or written."""
