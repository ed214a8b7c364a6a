"""What passes between the controller and the stage processes.

Training     once, when a process starts: the model without its numbers, the loss, the optimizer
Presence     the answer of a process that has started
Assignment   at each deployment (a new epoch): the plan, which worker this process is, where its numbers come from
Admission    at each step: the micro-batches, of each only what this worker needs
Outcome      the answer to an admission: losses, and snapshots that lie with a peer now
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
    """What every stage process of a trainer is told when it starts."""

    blueprint: Blueprint
    loss: Loss
    optimizers: OptimizerMaker
    options: TrainingOptions
    #: How gradients of replicas are averaged; None: over the links of the stages, in the order of the replicas.
    exchange: MakesExchange | None = None
    #: What gives mini-batches to those who need them; None: they come with admissions.
    data: MakesData | None = None
    #: Where the first parameters and buffers come from, if not from the launcher.
    source: TensorSource | None = None
    #: The kind of device that stages compute on, or one device for all: "cpu", "cuda", "cuda:1".
    device: str = "cpu"


class Presence(NamedTuple):
    """A process that has started."""

    #: Of this process, and not of the one that comes in its place.
    name: str
    #: The machine it runs on: what is lost with it.
    host: str


@dataclass(frozen=True, slots=True)
class FromTensors:
    """The training begins with these parameters and buffers."""

    tensors: Mapping[str, Tensor]

    def only(self, names: Iterable[str]) -> FromTensors:
        """Those of one process."""
        return FromTensors({name: self.tensors[name] for name in names})


@dataclass(frozen=True, slots=True)
class FromSource:
    """It begins with what the source of the training gives, which each process makes or reads by itself."""


#: Where a snapshot is: kept by the process at a seat; or it comes from the launcher, as it is or as a file.
Place = int | WorkerSnapshot | StoredSnapshot


@dataclass(frozen=True, slots=True)
class FromSnapshots:
    """It goes on from a cut, of which there are snapshots."""

    cut: Cut
    #: The epoch that took them. Under another plan the same numbers are another place.
    epoch: int
    #: By worker of that epoch, where its snapshot is.
    places: Mapping[PlanWorker, Place]
    #: Whether the plan is the one of that epoch, so that all versions of the weights are taken up again.
    same_plan: bool

    def only(self, worker: PlanWorker) -> FromSnapshots:
        """What one worker of the same plan needs; all, for one of another plan."""
        return replace(self, places={worker: self.places[worker]}) if self.same_plan else self


@dataclass(frozen=True, slots=True)
class FromState:
    """It goes on from what `state_dict` gave."""

    state: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class FromCheckpoint:
    """It goes on from files, of which each process reads what it needs."""

    checkpoint: Checkpoint


Origin = FromTensors | FromSource | FromSnapshots | FromState | FromCheckpoint


@dataclass(frozen=True, slots=True)
class Assignment:
    """What a process is to be in one epoch."""

    epoch: int
    plan: Plan
    schedule: Schedule
    worker: PlanWorker
    seed: int
    #: Where each worker sits: which replica of the node "stages" it is.
    seats: Mapping[PlanWorker, int]
    origin: Origin
    #: Where the numbers of micro-batches and versions go on.
    start: Cut
    #: Whether snapshots may be asked for.
    takes_snapshots: bool
    #: The folder where each snapshot is written, too; None: it is not.
    folder: str | None = None


class MicroBatchInput(NamedTuple):
    """One micro-batch at one stage, where the stage needs something of it that no other stage brings."""

    stage: int
    micro_batch: int
    piece: MicroBatchPiece


@dataclass(frozen=True, slots=True)
class Admission:
    """One step, a drain, or neither (what can be done with what was admitted), as one worker sees it."""

    epoch: int
    #: Counts admissions of an epoch, from 0: calls may overtake each other.
    number: int
    #: How many micro-batches are admitted.
    num: int
    #: For stages without replicas, that need something of all micro-batches: cutting one tensor there costs a tenth of
    #: sending so many.
    whole: tuple[tuple[int, MiniBatch], ...]
    given: tuple[MicroBatchInput, ...]
    #: Which step of the run it is, for those who read data by themselves.
    step: int
    #: Whether the pipeline is emptied after them.
    drains: bool = False
    #: The seat that keeps the snapshot which is taken at the cut behind it; None: none is taken.
    keeper: int | None = None


@dataclass(frozen=True, slots=True)
class Examination:
    """Mini-batches to evaluate, or to predict for, as one worker sees them; nothing is in flight."""

    epoch: int
    #: The number of the first one, and how many there are.
    first: int
    num: int
    given: tuple[MicroBatchInput, ...]
    #: Whether the loss is wanted, or what the model gives.
    wants_loss: bool


class PeerSnapshot(NamedTuple):
    """A snapshot that lies with a peer."""

    cut: Cut
    #: Seconds that it held up the computing, and its size.
    took_s: float
    size_bytes: int
    #: The seat of the peer.
    keeper: int
    #: The file in which it is too, if it was to be written.
    stored: StoredSnapshot | None = None


@dataclass(frozen=True, slots=True)
class AdmissionOutcome:
    """What a worker has to say when it has done all that came of an admission."""

    #: Of which micro-batches there are losses, their values in one tensor, and what each counts.
    micro_batches: tuple[int, ...]
    values: Tensor | None
    weights: tuple[float | None, ...]
    #: The norm of all gradients of the last update, and whether it was left out; if somebody asked for the norm.
    norm: Tensor | None = None
    is_skipped: bool = False
    #: Snapshots that were brought away since the last outcome.
    kept: tuple[PeerSnapshot, ...] = ()
    #: Why one could not be brought to its keeper, or written.
    lost_snapshots: tuple[str, ...] = ()
