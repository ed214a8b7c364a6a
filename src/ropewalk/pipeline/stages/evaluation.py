"""Evaluation by stages: each runs its part of the model in evaluation mode on its newest weights, forwards only.

    batch 0   F0 S0>1 ─▶ R0 F1 S1>2 ─▶ R1 F2 ─▶ loss, or outputs
    batch 1        F0 S0>1 ─▶ R0 F1 S1>2 ─▶ ...                       whole mini-batches follow each other

The graph of evaluation differs from that of training (no dropout, other branches). It is cut alike; a stage may have no
operators in it. Its edges have names of their own, so that its values can share links with training's. Mini-batches are
not cut into micro-batches: the outputs are those of the whole model.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ropewalk.errors import PlanInvalid, RopewalkError, StageFailed
from ropewalk.pipeline.actions import Action, ActionKind
from ropewalk.pipeline.plans import Edge, Plan, PlanWorker
from ropewalk.pipeline.stages.in_memory_links import LinkMessage, Links, Tag
from ropewalk.pipeline.stages.losses import Loss
from ropewalk.pipeline.stages.micro_batches import MicroBatchPiece
from ropewalk.pipeline.stages.running_stage import RunningStage
from ropewalk.pipeline.tracing.model_graph import ModelGraph
from ropewalk.pipeline.tracing.stage_program import StageProgram
from ropewalk.pipeline.transfers import with_transfers

_PREFIX = "eval/"


@dataclass(frozen=True)
class StageEvaluation:
    """The operators of each stage in evaluation, and the edges between them.

    Args:
        graph: the graph of the model in training.
        training: the plan by which it is trained.
    """

    graph: ModelGraph
    training: Plan

    @cached_property
    def stages(self) -> tuple[tuple[str, ...], ...]:
        """The ids of each stage's operators; a stage may have none."""
        return self.graph.eval_stages([stage.operators for stage in self.training.stages])

    @cached_property
    def output_stage(self) -> int:
        """The id of the stage that makes the model's output."""
        output = self.graph.for_eval.output
        return next(id for id, operators in enumerate(self.stages) if output in operators)

    @cached_property
    def input_stages(self) -> frozenset[int]:
        """The ids of the stages that read the model's inputs."""
        inputs = {one.id for one in self.graph.for_eval.operators if one.is_input}
        return frozenset(id for id, operators in enumerate(self.stages) if inputs & set(operators))

    @cached_property
    def plan(self) -> Plan:
        """The plan: the stages and devices of training, with the edges of evaluation."""
        stage_of = {one: id for id, operators in enumerate(self.stages) for one in operators}
        targets: dict[str, set[int]] = defaultdict(set)
        for source, target in self.graph.for_eval.edges:
            if stage_of[source] != stage_of[target]:
                targets[source].add(stage_of[target])
        edges = [Edge(f"{_PREFIX}{one}", stage_of[one], tuple(sorted(found)), 0, 0) for one, found in targets.items()]
        stages = [
            replace(stage, operators=self.stages[stage.id] or (f"{_PREFIX}nothing",), recompute=False)
            for stage in self.training.stages
        ]
        return Plan(tuple(stages), tuple(edges))

    def actions(self, first: int, num: int) -> dict[PlanWorker, list[Action]]:
        """Return the actions of each worker for `num` mini-batches, the first of which has number `first`."""
        lists: dict[PlanWorker, list[Action]] = {worker: [] for worker in self.plan.workers}
        orders = {worker: self._order(worker, first, num) for worker in self.plan.workers}
        for worker, action in with_transfers(self.plan, orders):
            lists[worker].append(action)
        return lists

    def program(self, stage: int) -> StageProgram:
        """Return the program of a stage, which must have operators."""
        return self.graph.for_eval.stage_program(self.stages[stage])

    def _order(self, worker: PlanWorker, first: int, num: int) -> Iterator[Action]:
        """Yield a worker's actions in the order of (batch + stage), as if all forwards took equal time."""
        own = [stage for stage in self.plan.groups[worker.group] if self.stages[stage]]
        turns = [
            (batch + stage, stage, batch)
            for stage in own
            for batch in range(first, first + num)
            if self.plan.worker_of(stage, batch) == worker
        ]
        return iter([Action(ActionKind.FORWARD, stage, worker.replica, batch) for _, stage, batch in sorted(turns)])


@dataclass(frozen=True, slots=True)
class Evaluated:
    """The last stage's results of one mini-batch."""

    outputs: Any = None
    """The model's output; None if a loss was wanted."""
    value: Tensor | None = None
    """The value of the loss and its weight, as in `LossOfPiece`; None if outputs were wanted."""
    weight: float | None = None


class EvalWorker:
    """Performs actions of an evaluation: replica `worker.replica` of the stages of its group.

    Args:
        worker: the worker's place in the plan.
        evaluation: the evaluation that all workers run.
        stages: its stages in training, whose weights and buffers it reads.
        links: the links to the other workers; those of training may be used.
        loss: the model's loss.

    Raises:
        PlanInvalid: a stage reads a tensor in evaluation that it does not have in training.
    """

    def __init__(
        self,
        worker: PlanWorker,
        evaluation: StageEvaluation,
        stages: Mapping[int, RunningStage],
        links: Links,
        loss: Loss,
    ) -> None:
        self.worker = worker
        self._evaluation = evaluation
        self._links = links
        self._loss = loss
        self._stages = {id: stage for id, stage in stages.items() if evaluation.stages[id]}
        self._programs = {id: evaluation.program(id) for id in self._stages}
        for id, program in self._programs.items():
            _check_has(stages[id], program)
        self._admitted: dict[tuple[int, int], tuple[MicroBatchPiece, bool]] = {}
        self._values: dict[tuple[int, int], dict[str, Any]] = defaultdict(dict)
        self._outgoing: dict[Tag, LinkMessage] = {}
        self.results: dict[int, Evaluated] = {}
        """Results by mini-batch, at the worker that has the model's output; the reader removes them."""

    def admit(self, stage: int, number: int, piece: MicroBatchPiece, *, wants_loss: bool) -> None:
        """Take in a mini-batch, for the stages that read inputs and the one that makes the output."""
        self._admitted[stage, number] = piece, wants_loss

    def can_perform(self, action: Action) -> bool:
        """Return whether an action can be performed without waiting."""
        if action.kind is ActionKind.RECEIVE:
            return self._links.has(_tag(action))
        return action.kind is not ActionKind.SEND or self._links.has_room(_tag(action))

    def waits_for(self, action: Action) -> str | None:
        """Return what an action still waits for, in words; None if nothing."""
        if self.can_perform(action):
            return None
        return f"{_tag(action)}" if action.kind is ActionKind.RECEIVE else f"room on the link for {_tag(action)}"

    def perform(self, action: Action) -> None:
        """Perform an action.

        Raises:
            StageFailed: the model or the loss raised.
        """
        assert action.micro_batch is not None
        if action.kind is ActionKind.SEND:
            tag = _tag(action)
            self._links.send(tag, self._outgoing.pop(tag))
        elif action.kind is ActionKind.RECEIVE:
            tag = _tag(action)
            value = self._links.receive(tag).tree
            self._values[action.stage, action.micro_batch][tag.edge.removeprefix(_PREFIX)] = value
        else:
            try:
                self._forward(action.stage, action.micro_batch)
            except RopewalkError:
                raise
            except Exception as error:
                raise _failed(action, error) from error

    def _forward(self, id: int, number: int) -> None:
        stage, program = self._stages[id], self._programs[id]
        values = self._values.pop((id, number), {})
        piece, wants_loss = self._admitted.pop((id, number), (None, False))
        for one in program.model_inputs:
            assert piece is not None, f"mini-batch {number} was not admitted"
            values[one] = piece.inputs[one]
        kind = stage.setup.options.autocast
        with torch.no_grad(), torch.autocast(stage.device.type, kind, enabled=kind is not None):
            outputs = program(values, stage.versions.parameters, stage.buffers)
            if id == self._evaluation.output_stage:
                assert piece is not None, f"mini-batch {number} was not admitted"
                self.results[number] = self._result(outputs, piece, wants_loss)
        for edge in self._evaluation.plan.outputs_of(id):
            for target in edge.targets:
                value = outputs[edge.tensor.removeprefix(_PREFIX)]
                self._outgoing[Tag(edge.tensor, id, target, number)] = LinkMessage(value)

    def _result(self, outputs: Mapping[str, Any], piece: MicroBatchPiece, wants_loss: bool) -> Evaluated:
        output = outputs[self._evaluation.graph.for_eval.output]
        if not wants_loss:
            return Evaluated(output)
        loss = self._loss(output, piece.labels, piece.num_samples)
        return Evaluated(value=loss.value, weight=loss.weight)


def _check_has(stage: RunningStage, program: StageProgram) -> None:
    has = {*stage.versions.parameters, *stage.buffers}
    if missing := [name for name in (*program.parameters, *program.buffers) if name not in has]:
        raise PlanInvalid(
            f"in evaluation stage {stage.setup.id} reads {missing[0]!r}, which it does not have, because in training "
            f"it does not read it; cut the model elsewhere, or evaluate what to_module gives"
        )


def _tag(action: Action) -> Tag:
    assert action.edge is not None and action.peer is not None and action.micro_batch is not None
    ends = (action.stage, action.peer) if action.kind is ActionKind.SEND else (action.peer, action.stage)
    return Tag(action.edge, *ends, action.micro_batch)


def _failed(action: Action, error: Exception) -> StageFailed:
    operator = getattr(error, "ropewalk_operator", "")
    where = f" at operator {operator!r}" if operator else ""
    return StageFailed(
        f"stage {action.stage}, replica {action.replica}, mini-batch {action.micro_batch} of an evaluation: the "
        f"forward raised {type(error).__name__}{where}: {error}",
        stage=action.stage,
        replica=action.replica,
        micro_batch=action.micro_batch,
        operator=operator,
        action=str(action),
    )
