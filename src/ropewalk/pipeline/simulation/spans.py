"""The parts of a timeline: actions of workers, transfers between them, and reductions."""

from __future__ import annotations

from typing import NamedTuple

from ropewalk.pipeline.actions import Action, ActionKind, ReduceGroup
from ropewalk.pipeline.plans import PlanWorker

COMPUTING = frozenset(
    {
        ActionKind.FORWARD,
        ActionKind.BACKWARD,
        ActionKind.INPUT_GRADIENT,
        ActionKind.WEIGHT_GRADIENT,
        ActionKind.RECOMPUTE,
    }
)
"""The kinds of actions that the device itself computes."""


class ActionSpan(NamedTuple):
    """One action of a worker, without the wait before it. Times are seconds from the start of the timeline."""

    worker: PlanWorker
    action: Action
    start_s: float
    end_s: float


class TensorTransfer(NamedTuple):
    """The transfer of one tensor from one worker to another. Times are seconds from the start of the timeline."""

    tensor: str
    source: int
    """The stages at both ends; a gradient goes to an earlier stage."""
    target: int
    micro_batch: int
    sender: PlanWorker
    receiver: PlanWorker
    level: int
    """Index of the level of the topology that joins the devices; -1: they are the same device."""
    size_bytes: int
    port_s: float
    """Seconds for which it occupies each of the two ports."""
    sent_s: float
    """When the worker sent it, and when it entered the sender's port and the receiver's port."""
    out_s: float
    in_s: float
    arrival_s: float
    """When the receiver can take it."""


class Summing(NamedTuple):
    """The reduction of gradients (or of a norm) over workers. Times are seconds from the start of the timeline."""

    group: ReduceGroup
    stage: int | None
    """The stage whose replicas take part; None for the other groups."""
    version: int | None
    workers: tuple[PlanWorker, ...]
    level: int
    size_bytes: int
    """Bytes of the reduced tensors."""
    start_s: float
    end_s: float

    @property
    def sent_bytes(self) -> int:
        """Bytes that all workers together send: replicas send slices, others all that they have to each other."""
        num = len(self.workers)
        return (2 if self.group is ReduceGroup.REPLICAS else num) * (num - 1) * self.size_bytes
