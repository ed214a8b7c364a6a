"""The parts of a micro-batch that a stage needs from outside: inputs, labels, the seed of its random numbers."""

from __future__ import annotations

from dataclasses import dataclass

from ropewalk.pipeline.plans import Plan
from ropewalk.pipeline.stages.micro_batches import MicroBatchPiece, MiniBatch
from ropewalk.pipeline.tracing.model_graph import ModelGraph


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
