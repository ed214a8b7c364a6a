"""What a timeline consists of: what workers do, and what passes between them."""

from __future__ import annotations

from typing import NamedTuple

from ropewalk.pipeline.actions import Action, ActionKind, ReduceGroup
from ropewalk.pipeline.plans import PlanWorker

#: What the device itself computes.
COMPUTING = frozenset(
    {
        ActionKind.FORWARD,
        ActionKind.BACKWARD,
        ActionKind.INPUT_GRADIENT,
        ActionKind.WEIGHT_GRADIENT,
        ActionKind.RECOMPUTE,
    }
)


class ActionSpan(NamedTuple):
    """One action of a worker, without the wait before it."""

    worker: PlanWorker
    action: Action
    start_s: float
    end_s: float


class TensorTransfer(NamedTuple):
    """One tensor that passed from one worker to another."""

    tensor: str
    #: The stages; a gradient goes to an earlier one.
    source: int
    target: int
    micro_batch: int
    sender: PlanWorker
    receiver: PlanWorker
    #: Index of the level of the topology that joins the devices; -1: they are one device.
    level: int
    size_bytes: int
    #: How long it takes each of the two ports.
    port_s: float
    #: When the worker sent it, and when the sender's and the receiver's port began with it.
    sent_s: float
    out_s: float
    in_s: float
    #: When the receiver can have it.
    arrival_s: float


class Summing(NamedTuple):
    """Gradients (or a norm) that workers summed with one another."""

    group: ReduceGroup
    #: Whose replicas they are; None for the other groups.
    stage: int | None
    version: int | None
    workers: tuple[PlanWorker, ...]
    level: int
    #: Bytes of what is summed; over the links go 2 (n - 1) times as many.
    size_bytes: int
    start_s: float
    end_s: float
