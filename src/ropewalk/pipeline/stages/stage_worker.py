"""A worker performs the actions of a schedule: computes, sends, receives, reduces and steps.

A worker decides nothing: the schedule gives the order. `waits_for` says what an action still lacks, so that the caller
(the loop of a local executor, or a process) knows when to perform it. A reduction is begun by its action and completed
by the step that follows.
"""

from __future__ import annotations

from collections.abc import Mapping

from ropewalk.errors import RopewalkError, ScheduleInvalid, StageFailed
from ropewalk.pipeline.actions import Action, ActionKind
from ropewalk.pipeline.plans import Plan, PlanWorker
from ropewalk.pipeline.stages.gradient_sums import Sums
from ropewalk.pipeline.stages.in_memory_links import LinkMessage, Links, Tag
from ropewalk.pipeline.stages.micro_batches import MicroBatchPiece
from ropewalk.pipeline.stages.running_stage import RunningStage
from ropewalk.pipeline.stages.worker_update import WorkerUpdate


class StageWorker:
    """One worker: replica `worker.replica` of the stages of its group.

    Args:
        worker: the worker's place in the plan.
        plan: the plan, with all edges that actions name.
        stages: its stages by id.
        links: the links to the other workers.
        sums: the sums with the other workers.
    """

    def __init__(
        self, worker: PlanWorker, plan: Plan, stages: Mapping[int, RunningStage], links: Links, sums: Sums
    ) -> None:
        self.worker = worker
        self.stages = stages
        self._links = links
        self.update = WorkerUpdate(worker, plan, stages, sums)
        """Performs its reductions and steps."""

    def admit(self, stage: int, micro_batch: int, piece: MicroBatchPiece) -> None:
        """Take in the caller's part of a micro-batch for one of its stages."""
        self.stages[stage].admit(micro_batch, piece)

    def can_perform(self, action: Action) -> bool:
        """Return whether an action can be performed without waiting."""
        kind = action.kind
        if kind is ActionKind.RECEIVE:
            return self._links.has(_tag(action))
        if kind is ActionKind.SEND:
            return self._links.has_room(_tag(action))
        return (kind is not ActionKind.STEP and kind is not ActionKind.REDUCE) or self.update.lacks(action) is None

    def waits_for(self, action: Action) -> str | None:
        """Return what an action still waits for, in words; None if nothing."""
        if action.kind is ActionKind.RECEIVE and not self._links.has(tag := _tag(action)):
            return f"{tag}"
        if action.kind is ActionKind.SEND and not self._links.has_room(tag := _tag(action)):
            return f"room on the link for {tag}"
        if action.kind in (ActionKind.STEP, ActionKind.REDUCE) and (lacked := self.update.lacks(action)):
            key, missing = lacked
            who = ", ".join(f"stage {member.stage} replica {member.replica}" for member in missing)
            return f"the gradients ({key.what}) of {who}"
        return None

    def perform(self, action: Action) -> None:
        """Perform an action.

        Raises:
            StageFailed: user code, or torch, raised in it.
            ScheduleInvalid: the action cannot be performed here, or not now.
        """
        stage = self.stages.get(action.stage)
        if stage is None or action.replica != self.worker.replica:
            raise ScheduleInvalid(
                f"{action} was given to worker {self.worker}, which is replica {self.worker.replica} of stages "
                f"{sorted(self.stages)}",
                action=str(action),
                worker=str(self.worker),
            )
        try:
            self._perform(stage, action)
        except ScheduleInvalid as error:
            error.action, error.worker = error.action or str(action), error.worker or str(self.worker)
            raise
        except RopewalkError:
            raise
        except Exception as error:
            raise _failed(stage, action, error) from error

    def _perform(self, stage: RunningStage, action: Action) -> None:
        kind = action.kind
        if kind is ActionKind.SEND:
            tag = _tag(action)
            self._links.send(tag, _outgoing(stage, action, (tag.edge, tag.target)))
        elif kind is ActionKind.RECEIVE:
            tag = _tag(action)
            stage.arrive(tag.micro_batch, (tag.edge, tag.source), self._links.receive(tag))
        elif kind is ActionKind.FORWARD:
            stage.forward(_number(action), action.version)
        elif kind is ActionKind.BACKWARD or kind is ActionKind.INPUT_GRADIENT:
            stage.backward(_number(action))
        elif kind is ActionKind.WEIGHT_GRADIENT:
            stage.weight_gradients(_number(action))
        elif kind is ActionKind.RECOMPUTE:
            stage.recompute(_number(action))
        elif kind is ActionKind.REDUCE:
            self.update.reduce(action)
        else:
            self.update.step(action)


def _number(action: Action) -> int:
    assert action.micro_batch is not None
    return action.micro_batch


def _tag(action: Action) -> Tag:
    assert action.edge is not None and action.peer is not None and action.micro_batch is not None
    here_first = action.kind is ActionKind.SEND
    source, target = (action.stage, action.peer) if here_first else (action.peer, action.stage)
    return Tag(action.edge, source, target, action.micro_batch)


def _outgoing(stage: RunningStage, action: Action, end: tuple[str, int]) -> LinkMessage:
    key = (_number(action), end)
    if key not in stage.outgoing:
        raise ScheduleInvalid(f"{action}: there is nothing to send; what makes it has not run, or it was sent before")
    return stage.outgoing.pop(key)


def _failed(stage: RunningStage, action: Action, error: Exception) -> StageFailed:
    operator = getattr(error, "ropewalk_operator", "")
    flight = None if action.micro_batch is None else stage.in_flight.get(action.micro_batch)
    version = flight.version if flight is not None else action.version
    where = f" at operator {operator!r}" if operator else ""
    what = "" if action.micro_batch is None else f", micro-batch {action.micro_batch}"
    return StageFailed(
        f"stage {action.stage}, replica {action.replica}{what}, weights of version {version}: {_WORDS[action.kind]} "
        f"({action}) raised {type(error).__name__}{where}: {error}",
        stage=action.stage,
        replica=action.replica,
        micro_batch=action.micro_batch,
        version=version,
        operator=operator,
        action=str(action),
    )


_WORDS = {
    ActionKind.FORWARD: "the forward",
    ActionKind.RECOMPUTE: "the forward again",
    ActionKind.BACKWARD: "the backward",
    ActionKind.INPUT_GRADIENT: "the input half of the backward",
    ActionKind.WEIGHT_GRADIENT: "the weight half of the backward",
    ActionKind.SEND: "sending",
    ActionKind.RECEIVE: "receiving",
    ActionKind.REDUCE: "summing gradients",
    ActionKind.STEP: "the step",
}
