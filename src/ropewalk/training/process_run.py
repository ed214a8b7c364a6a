"""A training run on processes: cuts mini-batches, and assembles states and checkpoint files."""

from __future__ import annotations

import copy
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from torch import Tensor

from ropewalk.errors import ServiceLost, StageLost
from ropewalk.pipeline.local_evaluation import checked_pair
from ropewalk.pipeline.plans import Plan, PlanWorker
from ropewalk.pipeline.schedules.schedule import Schedule
from ropewalk.pipeline.stages.evaluation import Evaluated, StageEvaluation
from ropewalk.pipeline.stages.losses import Loss
from ropewalk.pipeline.stages.micro_batches import MicroBatchPiece, MiniBatch, mini_batch, split
from ropewalk.pipeline.stages.saved_training import check_tensors, run_facts
from ropewalk.pipeline.step_metrics import StepMetrics
from ropewalk.pipeline.tracing.model_graph import ModelGraph
from ropewalk.pipeline.tracing.model_inputs import as_arguments
from ropewalk.training.assignment import Examination, FromCheckpoint, FromState, MicroBatchInput
from ropewalk.training.checkpoint import read_manifest
from ropewalk.training.checkpoint_files import Writing, begin
from ropewalk.training.checkpoint_future import CheckpointFuture
from ropewalk.training.clocks import measured_offset
from ropewalk.training.controller import Controller
from ropewalk.training.counters import WorkerCounters
from ropewalk.training.history import TrainingHistory
from ropewalk.training.manifests import PartRecord
from ropewalk.training.plan_repair import with_replicas
from ropewalk.training.recorder import WorkerRecord
from ropewalk.training.run import AdmittedStep
from ropewalk.training.stage_device import on_cpu
from ropewalk.training.worker_sample import WorkerSample


class ProcessRun:
    """Drives a controller.

    Args:
        controller: a controller that has not been started.
        graph: the graph of the model.
        loss: computes the metrics.
    """

    def __init__(self, controller: Controller, graph: ModelGraph, loss: Loss) -> None:
        self._controller = controller
        self._graph = graph
        self._loss = loss
        self._saving: CheckpointFuture | None = None
        self._num_examined = 0
        self._evaluated: StageEvaluation | None = None
        self._offsets: dict[tuple[str, int], int] = {}
        """Nanoseconds by host and pid, for looks."""
        controller.start()

    @property
    def num_steps(self) -> int:
        return self._controller.num_steps

    @property
    def plan(self) -> Plan:
        return self._controller.plan

    @property
    def schedule(self) -> Schedule:
        return self._controller.schedule

    @property
    def events(self) -> list[str]:
        return self._controller.events

    def step(self, x: Any, y: Any) -> AdmittedStep:
        args, kwargs = as_arguments(x)
        controller = self._controller
        plan = controller.plan
        inputs, whole = on_cpu(self._graph.bind(*args, **kwargs)), self._graph.whole_inputs
        batch = mini_batch(inputs, on_cpu(y), plan.micro_batches, step=self.num_steps, whole=whole)
        num = len(batch.sizes)
        if controller.schedule.flushes and num != plan.micro_batches:
            controller.schedule.check(replace(plan, micro_batches=num))
        return self._admitted(num, batch)

    def step_of_own_data(self) -> AdmittedStep:
        """Admit a step whose mini-batch the stages read by themselves."""
        return self._admitted(self.plan.micro_batches, None)

    def _admitted(self, num: int, batch: MiniBatch | None) -> AdmittedStep:
        controller, metrics = self._controller, StepMetrics(num, self._loss)
        controller.admit(num, batch, metrics)
        return AdmittedStep(metrics, lambda: controller.wait_until(lambda: metrics.done))

    def drain(self) -> None:
        self._controller.drain()

    def evaluate(self, batches: Iterable[tuple[Any, Any]]) -> float:
        remaining = iter(batches)
        found: list[tuple[Tensor, float | None]] = []
        # This many batches are under way at once, so that every stage has work.
        while chunk := list(islice(remaining, 2 * len(self.plan.workers))):
            for one in self._examined([checked_pair(pair) for pair in chunk], wants_loss=True):
                assert one.value is not None
                found.append((one.value, one.weight))
        if not found:
            raise ValueError("there are no batches to evaluate on")
        return float(self._loss.over(found))

    def predict(self, x: Any) -> Any:
        (result,) = self._examined([(x, None)], wants_loss=False)
        return result.outputs

    def _examined(self, batches: Sequence[tuple[Any, Any]], *, wants_loss: bool) -> list[Evaluated]:
        """Evaluate mini-batches; the results are in their order."""
        graph, first = self._graph.for_eval, self._num_examined
        self._num_examined += len(batches)
        pieces: list[MicroBatchPiece] = []
        for x, y in batches:
            args, kwargs = as_arguments(x)
            pieces += split(on_cpu(graph.bind(*args, **kwargs)), on_cpu(y), 1, whole=graph.whole_inputs)

        def ask(client: Any, worker: PlanWorker) -> Future[Mapping[int, Evaluated]]:
            evaluation = self._evaluation
            given = [
                MicroBatchInput(stage, number, piece)
                for number, piece in enumerate(pieces, first)
                for stage in {*evaluation.input_stages, evaluation.output_stage}
                if self.plan.worker_of(stage, number) == worker
            ]
            asked = Examination(self._controller.epoch, first, len(pieces), tuple(given), wants_loss)
            return client.examine.future(asked)

        answers = self._controller.ask(ask, "an evaluation")
        results = {number: one for found in answers.values() for number, one in found.items()}
        return [results[number] for number in range(first, first + len(pieces))]

    @property
    def _evaluation(self) -> StageEvaluation:
        """The evaluation for the current plan, which a death may change."""
        if self._evaluated is None or self._evaluated.training is not self.plan:
            self._evaluated = StageEvaluation(self._graph, self.plan)
        return self._evaluated

    # --- state and weights --------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        states = self._controller.ask(
            lambda client, worker: client.state.future(self._names_of(worker)), "the state of the stages"
        )
        for state in states.values():
            for kind, named in state.items():
                found.setdefault(kind, {}).update(named)
        return {**found, "num_steps": self.num_steps, "seed": self._controller.seed}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        num_steps, seed = run_facts(state)
        controller = self._controller
        controller.drain()
        # Here, because a stage looks only for what it has, and its failure would end the training.
        check_tensors(state, *self._held())
        origin = FromState(copy.deepcopy(dict(state)))  # a death may come after the caller has changed it
        controller.redeploy(controller.plan, origin, num_steps=num_steps, seed=seed)

    def save(self, folder: Path, keep: int | None) -> CheckpointFuture:
        """Take copies, then return; the files are written while training goes on."""
        self._settle_saving()
        self.drain()
        writing = begin(folder, self.num_steps, keep=keep)
        facts = {"num_steps": self.num_steps, "seed": self._controller.seed, "schedule": self.schedule.name}
        try:
            copied = self._controller.ask(
                lambda client, worker: client.copy_for_saving.future(self._names_of(worker)), "the copies of the stages"
            )
            parts = {
                worker: self._controller.client(worker).save.future(str(writing.path), f"{worker}") for worker in copied
            }
        except BaseException:
            writing.abandon()
            raise
        self._saving = CheckpointFuture.begun(lambda: _committed(writing, parts, facts))
        return self._saving

    def load(self, folder: Path) -> None:
        self._settle_saving()  # the newest checkpoint may be the one that is being written
        checkpoint = read_manifest(folder)
        checkpoint.check_fits(*self._held())
        controller = self._controller
        controller.drain()
        origin = FromCheckpoint(checkpoint)
        controller.redeploy(controller.plan, origin, num_steps=checkpoint.num_steps, seed=checkpoint.seed)

    def _settle_saving(self) -> None:
        if self._saving is not None:
            self._saving.settle()

    def resize(self, stage: int, replicas: int) -> None:
        plan = with_replicas(self.plan, stage, replicas)
        self.schedule.check(plan)
        state = self.state_dict()
        self._controller.redeploy(plan, FromState(state))

    # --- observing ----------------------------------------------------------------------------------------------------

    def records(self) -> Mapping[PlanWorker, WorkerRecord]:
        return self._controller.ask(lambda client, _: client.record.future(), "the records of the stages")

    def counters(self) -> Mapping[PlanWorker, WorkerCounters]:
        return self._controller.ask(lambda client, _: client.counters.future(), "the counters of the stages")

    def offsets(self, counters: Mapping[PlanWorker, WorkerCounters]) -> Mapping[PlanWorker, int]:
        here = os.uname().nodename
        far = [worker for worker, counted in counters.items() if counted.host not in ("", here)]
        return {worker: measured_offset(self._controller.client(worker).clock).offset_ns for worker in far}

    # --- looking at it, from any thread -------------------------------------------------------------------------------

    @property
    def history(self) -> TrainingHistory:
        return self._controller.history

    @property
    def seats(self) -> Mapping[PlanWorker, int]:
        return self._controller.seats

    @property
    def has_exchange(self) -> bool:
        return self._controller.has_exchange and any(stage.replicas > 1 for stage in self.plan.stages)

    def ask_samples(
        self, but: Collection[PlanWorker], with_actions: bool, with_exchanges: bool
    ) -> Mapping[PlanWorker, Future[WorkerSample | None]]:
        controller, plan = self._controller, self.plan
        # The last step of all is as many steps back as may be under way; the first one of a record may be incomplete.
        num_steps = controller.schedule.steps_ahead(plan) + 3 if with_actions else 0
        return {
            worker: controller.client(worker).sample.future(num_steps, with_exchanges)
            for worker in plan.workers
            if worker not in but
        }

    def clock_offsets(self, samples: Mapping[PlanWorker, WorkerSample]) -> Mapping[PlanWorker, int]:
        here = os.uname().nodename
        far = {worker: (sample.host, sample.pid) for worker, sample in samples.items() if sample.host != here}
        for worker, process in far.items():
            if process not in self._offsets:
                self._offsets[process] = measured_offset(self._controller.client(worker).clock).offset_ns
        return {worker: self._offsets[process] for worker, process in far.items()}

    def snapshots_panel(self) -> dict[str, Any] | None:
        return self._controller.snapshots_panel()

    def close(self, grace_s: float | None = None) -> None:
        try:
            if grace_s is None:
                self._settle_saving()
        finally:
            self._controller.close(grace_s)

    def _held(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the parameters and buffers of the model that its stages hold: what no stage reads is in no state."""
        held = {name for need in self._controller.needs for name in need.names}
        graph = self._graph
        return (
            {name: one for name, one in graph.parameters.items() if name in held},
            {name: one for name, one in graph.buffers.items() if name in held},
        )

    def _names_of(self, worker: PlanWorker) -> list[str]:
        """Return the parameters and buffers of which this worker is the first holder."""
        if worker.replica:
            return []
        needs = self._controller.needs
        own = [name for stage in self.plan.groups[worker.group] for name in needs[stage].names]
        first = {name: group for group in reversed(range(len(self.plan.groups)))
                 for stage in self.plan.groups[group] for name in needs[stage].names}  # fmt: skip
        return [name for name in dict.fromkeys(own) if first[name] == worker.group]


def _committed(writing: Writing, parts: Mapping[PlanWorker, Future[PartRecord]], facts: Mapping[str, Any]) -> Path:
    try:
        return writing.commit([future.result() for future in parts.values()], facts)
    except ServiceLost as error:
        raise StageLost(
            f"a process died while its part of the checkpoint was written ({error}); earlier checkpoints are intact",
            cause=error.cause,
        ) from error
    finally:
        writing.abandon()
