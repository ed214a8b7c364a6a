"""The messages between the controller and the stage processes.

Training     once, when a process starts: the model without its tensors, the loss, the optimizer
Presence     the answer of a process that has started
Assignment   at each deployment (a new epoch): the plan, which worker this process is, the source of its tensors
Admission    at each step: the micro-batches, each reduced to what this worker needs
Outcome      the answer to an admission: losses, and snapshots that a peer now keeps
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from torch import Tensor

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
from ropewalk.training.replica_groups import MakesExchange
from ropewalk.training.stored_snapshots import StoredSnapshot


@dataclass(frozen=True, slots=True)
class TrainingConfig:
    """The configuration that every stage process of a trainer gets when it starts."""

    blueprint: Blueprint
    loss: Loss
    optimizers: OptimizerMaker
    options: TrainingOptions
    #: How gradients of replicas are averaged; None: over the links of the stages, in the order of the replicas.
    exchange: MakesExchange | None = None
    #: Gives mini-batches to the processes that need them; None: they come with admissions.
    data: MakesData | None = None
    #: Where the initial parameters and buffers come from, if not from the launcher.
    source: TensorSource | None = None
    #: The kind of device that stages compute on, or one device for all: "cpu", "cuda", "cuda:1".
    device: str = "cpu"


class Presence(NamedTuple):
    """A process that has started, as it introduces itself."""

    #: The name of this process; its replacement has another one.
    name: str
    #: The machine it runs on, which would be lost with it.
    host: str


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


#: The place of a snapshot: the seat of its keeper, or the snapshot from the launcher, in memory or as a file.
Place = int | WorkerSnapshot | StoredSnapshot


@dataclass(frozen=True, slots=True)
class FromSnapshots:
    """Go on from a cut of which there are snapshots."""

    cut: Cut
    #: The epoch that took them. Under another plan, the same number is another position.
    epoch: int
    #: The place of the snapshot of each worker of that epoch.
    places: Mapping[PlanWorker, Place]
    #: Whether the plan is that of the epoch, so that all versions of the weights are restored.
    same_plan: bool

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
    #: The seat of each worker: which replica of the node "stages" runs it.
    seats: Mapping[PlanWorker, int]
    origin: Origin
    #: The numbers of micro-batches and versions to continue from.
    start: Cut
    #: Whether snapshots may be asked for.
    takes_snapshots: bool
    #: The folder to which each snapshot is also written; None: none.
    folder: str | None = None


class MicroBatchInput(NamedTuple):
    """One micro-batch at one stage, where the stage needs a part of it that no other stage sends."""

    stage: int
    micro_batch: int
    piece: MicroBatchPiece


@dataclass(frozen=True, slots=True)
class Admission:
    """One step, a drain, or neither (run what the admitted steps allow), as one worker sees it."""

    epoch: int
    #: The number of the admission in its epoch, from 0: calls may overtake each other.
    number: int
    #: The number of micro-batches admitted.
    num: int
    #: For stages without replicas that need a part of every micro-batch: cutting one tensor there costs a tenth of
    #: sending the micro-batches separately.
    whole: tuple[tuple[int, MiniBatch], ...]
    given: tuple[MicroBatchInput, ...]
    #: The step of the run, for processes that read data by themselves.
    step: int
    #: Whether the pipeline is drained after these micro-batches.
    drains: bool = False
    #: The seat that keeps the snapshot taken at the cut after this admission; None: none is taken.
    keeper: int | None = None


@dataclass(frozen=True, slots=True)
class Examination:
    """Mini-batches to evaluate or predict for, as one worker sees them; nothing else is in flight."""

    epoch: int
    #: The number of the first mini-batch, and how many there are.
    first: int
    num: int
    given: tuple[MicroBatchInput, ...]
    #: Whether the loss is wanted, or the model's output.
    wants_loss: bool


class PeerSnapshot(NamedTuple):
    """A snapshot that a peer keeps."""

    cut: Cut
    #: Seconds for which it held up computing, and its size.
    took_s: float
    size_bytes: int
    #: The seat of the peer.
    keeper: int
    #: The file to which it was also written, if it was to be.
    stored: StoredSnapshot | None = None


@dataclass(frozen=True, slots=True)
class AdmissionOutcome:
    """A worker's answer once everything that follows from an admission is done."""

    #: The micro-batches that have losses, the loss values in one tensor, and the weight of each.
    micro_batches: tuple[int, ...]
    values: Tensor | None
    weights: tuple[float | None, ...]
    #: The norm of all gradients of the last update, and whether the update was skipped; if the norm was requested.
    norm: Tensor | None = None
    is_skipped: bool = False
    #: Snapshots that reached their keepers since the last outcome.
    kept: tuple[PeerSnapshot, ...] = ()
    #: Why a snapshot could not be sent to its keeper, or written.
    lost_snapshots: tuple[str, ...] = ()
