"""The parts of a micro-batch that a stage needs from outside: inputs, labels, the seed of its random numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ropewalk.pipeline.plans import Plan, PlanWorker
from ropewalk.pipeline.stages.micro_batches import MicroBatchPiece, MiniBatch
from ropewalk.pipeline.tracing.model_graph import ModelGraph
from ropewalk.training.assignment import MicroBatchInput


@dataclass(frozen=True, slots=True)
class Need:
    """The needs of one stage."""

    inputs: tuple[str, ...]
    """Ids of the model's input operators in it."""
    labels: bool
    """Whether the model ends here, so that it computes the loss."""
    seed: bool
    """Whether the stage starts the sequence of random numbers, so that it needs the seed."""
    names: tuple[str, ...]
    """Its parameters and buffers."""

    @property
    def of_piece(self) -> bool:
        """Whether the stage needs any part of a micro-batch."""
        return bool(self.inputs) or self.labels or self.seed

    def part_of(self, piece: MicroBatchPiece) -> MicroBatchPiece:
        """Return a micro-batch reduced to what the stage needs."""
        inputs = {id: piece.inputs[id] for id in self.inputs}
        return MicroBatchPiece(
            piece.step, piece.index, inputs, piece.labels if self.labels else None, piece.num_samples
        )

    def whole_of(self, batch: MiniBatch) -> MiniBatch:
        """Return a mini-batch reduced to what the stage needs."""
        inputs = {id: batch.inputs[id] for id in self.inputs}
        return MiniBatch(batch.step, inputs, batch.labels if self.labels else None, batch.sizes, batch.whole)


def needs_of(plan: Plan, graph: ModelGraph) -> tuple[Need, ...]:
    """Return the needs of each stage of a plan."""
    by_id = graph.by_id
    is_random = [any(by_id[id].is_random for id in stage.operators) for stage in plan.stages]
    found: list[Need] = []
    for stage in plan.stages:
        operators = [by_id[id] for id in stage.operators]
        names = dict.fromkeys(name for one in operators for name in (*one.parameters, *one.buffers))
        found.append(
            Need(
                tuple(one.id for one in operators if one.is_input),
                graph.output in stage.operators,
                is_random[stage.id] and not any(is_random[: stage.id]),
                tuple(names),
            )
        )
    return tuple(found)


@dataclass(frozen=True, slots=True)
class WorkerShare:
    """What one worker gets of a mini-batch."""

    whole: list[tuple[int, MiniBatch]]
    """Stages that have one replica, with the mini-batch reduced to what they need."""
    pieces: list[MicroBatchInput]
    """Micro-batches of stages whose replicas share the mini-batch."""


def shares_of(plan: Plan, needs: Sequence[Need], batch: MiniBatch | None, first: int) -> dict[PlanWorker, WorkerShare]:
    """Return what each worker gets of a mini-batch.

    Args:
        plan: the plan.
        needs: the needs of its stages.
        batch: the mini-batch; None: no worker gets anything.
        first: the number of its first micro-batch.
    """
    shares = {worker: WorkerShare([], []) for worker in plan.workers}
    for stage, need in enumerate(needs):
        if batch is None or not need.of_piece:
            continue
        part = need.whole_of(batch)
        if plan.stages[stage].replicas == 1:
            shares[plan.worker_of(stage, first)].whole.append((stage, part))
        else:
            for number, piece in enumerate(part.pieces(), first):
                shares[plan.worker_of(stage, number)].pieces.append(MicroBatchInput(stage, number, piece))
    return shares
