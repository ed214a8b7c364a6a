"""The runtime of one worker in one epoch: its stages, its links, and the queue of its actions.

    admit ──▶ [F0:0 S0:0>1 F0:1 ... U0v1 | answer | ...] ──▶ one after the other, each as soon as it can run
                                     │         └ called when everything before it is done: losses are returned
                                     └ after the step of a cut: a snapshot is sent to the keeper, in the background

It belongs to the main thread of its process; other threads call nothing here, unless a docstring says so.
"""

from __future__ import annotations

import functools
import os
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import TypeVar

import torch
from torch import Tensor

from ropewalk import injection
from ropewalk.exchange.groups.link_group import Send
from ropewalk.exchange.tensor_codec import ALIGN
from ropewalk.pipeline.actions import Action
from ropewalk.pipeline.resuming import can_cut, last_step
from ropewalk.pipeline.schedules.streams import Cut
from ropewalk.pipeline.stages.evaluation import Evaluated, EvalWorker, StageEvaluation
from ropewalk.pipeline.stages.exchange_sums import ExchangeSums, ReplicaExchange
from ropewalk.pipeline.stages.gradient_sums import Contributor
from ropewalk.pipeline.stages.micro_batches import MicroBatchPiece, MiniBatch
from ropewalk.pipeline.stages.snapshots import SnapshotTaker, WorkerSnapshot, put
from ropewalk.pipeline.stages.stage_maker import StageMaker
from ropewalk.pipeline.stages.stage_worker import StageWorker
from ropewalk.pipeline.stages.tensor_source import TensorSource
from ropewalk.pipeline.stages.wiring import wire
from ropewalk.pipeline.tracing.trees import map_tensors
from ropewalk.training.assignment import Admission, AdmissionOutcome, Assignment, Examination, TrainingConfig
from ropewalk.training.counters import WorkerCounters
from ropewalk.training.link_sums import LinkSums
from ropewalk.training.links import ProcessLinks
from ropewalk.training.needs import needs_of
from ropewalk.training.own_data import DataShard, OwnData
from ropewalk.training.recorder import Recorder
from ropewalk.training.replica_groups import Inboxes, exchanges_of
from ropewalk.training.replicator import ReplicationJob, Replicator
from ropewalk.training.sources import Unset
from ropewalk.training.stage_device import on_cpu, stage_device
from ropewalk.training.worker_sample import WorkerSample, worker_sample

_LOOK_S = 0.5
"""Seconds between checks whether an action that waits for other workers is still wanted."""

Batch = TypeVar("Batch", MiniBatch, MicroBatchPiece)

Mark = Callable[[], object]
"""Called between two actions."""


class StageRuntime:
    """Carries out the actions of one worker in one epoch.

    Args:
        training: the configuration that all workers share.
        assignment: the role of this worker.
        tensors: the source of the initial values of its parameters and buffers; None: arbitrary values, because others
            will replace them.
        replicator: sends snapshots to their keepers.
        sends: for a stage, by replica, functions that send a packet of an exchange.
        inboxes: receive the packets of exchanges.
    """

    def __init__(
        self,
        training: TrainingConfig,
        assignment: Assignment,
        tensors: TensorSource | None,
        replicator: Replicator,
        sends: Callable[[int], list[Send]],
        inboxes: Inboxes,
    ) -> None:
        self.assignment = assignment
        plan, worker = assignment.plan, assignment.worker
        self._device = device = stage_device(training.device, plan.device_of(worker))
        blueprint = training.blueprint if device.type == "cpu" else training.blueprint.on(device)
        graph = blueprint.graph()
        wiring = wire(plan, [s.id for s in plan.stages if any(graph.by_id[id].is_random for id in s.operators)])
        self.plan, self.schedule = wiring.plan, assignment.schedule
        self.links = ProcessLinks(assignment.epoch, worker, self.plan, device=device)
        maker = StageMaker(
            graph,
            wiring,
            self.schedule,
            training.loss,
            self._put_loss,
            training.optimizers,
            assignment.seed,
            tensors=tensors or Unset(training.blueprint),
            options=training.options,
            device=device,
        )
        self.stages = {
            stage: maker.stage(stage, worker.replica, graph.stage_program(plan.stages[stage].operators))
            for stage in plan.groups[worker.group]
        }
        self.rates = maker.rates
        self.recorder = Recorder(worker)
        exchanges: dict[Contributor, ReplicaExchange] = {}
        if training.exchange is not None:
            exchanges = exchanges_of(training.exchange, self.plan, self.stages, assignment.epoch, sends, inboxes)
        self._sums = ExchangeSums(LinkSums(self.links), exchanges)
        self._exchanges = {member.stage: bound.exchange for member, bound in exchanges.items()}
        self._worker = StageWorker(worker, self.plan, self.stages, self.links, self._sums)
        self._performing: StageWorker | EvalWorker = self._worker
        self._graph, self._loss = graph, training.loss
        self._needs = needs_of(self.plan, graph)
        self._data = self._own_data(training)
        self._stream = self.schedule.stream(self.plan, start=assignment.start, only=worker)
        self._taker = None
        if assignment.takes_snapshots:
            self._taker = SnapshotTaker(self._worker, self.rates, self._exchanges, flushes=self.schedule.flushes)
        self._replicator = replicator
        self._cuts: dict[Action, tuple[Cut, int]] = {}
        """By the step that ends it, a cut of which a snapshot is wanted, and the seat of its keeper."""
        self._to_do: deque[Action | Mark] = deque()
        self._lacks: str | None = None
        """What the first action to do waits for, in words. Only the main thread may ask the links, which take in what
        has arrived: `doing`, in another thread, would take it from a main thread that sleeps until it comes."""
        self._losses: list[tuple[int, Tensor, float | None]] = []
        self._step, self._num_steps = -1, 0
        self._actions_of_step = 0
        """The step of the run that is worked on, the number of those begun, and the most actions of one, for samples.
        """
        self._num_snapshots = 0
        self._snapshot_s = 0.0

    def _own_data(self, training: TrainingConfig) -> OwnData | None:
        """Return the mini-batches that this worker reads by itself; None if it gets them, or needs none."""
        if training.data is None or not any(self._needs[stage].of_piece for stage in self.stages):
            return None
        plan, replica = self.assignment.plan, self.assignment.worker.replica
        shard = DataShard(replica, plan.stages[next(iter(self.stages))].replicas, plan.micro_batches)
        return OwnData(training.data, self._graph, shard, self.assignment.seed)

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to do."""
        return not self._to_do

    @property
    def doing(self) -> str:
        """The action that the worker does or waits for, in words; may be read by any thread."""
        try:
            action = self._to_do[0]
        except IndexError:
            return "it has nothing to do"
        if not isinstance(action, Action):
            return "it is answering"
        lacks = self._lacks
        return f"at {action}" + (f", waits for {lacks}" if lacks else "")

    def put(self, snapshot: WorkerSnapshot) -> None:
        """Restore the state of a worker of the same plan at the cut where this one starts."""
        put(snapshot, self._worker, self.rates, self._exchanges)

    def admit(self, admission: Admission, answer: Callable[[AdmissionOutcome], object]) -> None:
        """Queue a step, or a drain; `answer` is called when everything that follows from it is done."""
        # Handed over in its turn, and not now: the previous step has micro-batches of the same numbers.
        worker, first = self.assignment.worker, self._stream.position.next_micro_batch
        self._to_do.append(lambda: self._hand_over(admission, first))
        if admission.num or not admission.drains:
            actions = self._stream.admit(admission.num)[worker]
            self._actions_of_step = max(self._actions_of_step, len(actions))
            self._to_do.extend(actions)
        if admission.drains:
            self._to_do.extend(self._stream.drain()[worker])
        if admission.keeper is not None and self._taker is not None:
            cut = self._stream.position
            if can_cut(self.plan, self.schedule, cut):
                self._cuts[last_step(self.plan, self.schedule, cut, worker)] = cut, admission.keeper
        self._to_do.append(lambda: answer(self._outcome()))

    def examine(self, asked: Examination, answer: Callable[[Mapping[int, Evaluated]], object]) -> None:
        """Queue an evaluation; `answer` is called with the results of this worker, by the numbers of mini-batches."""
        evaluation, examiner = self._evaluation, self._examiner

        def begin() -> None:
            for stage, number, piece in asked.given:
                examiner.admit(stage, number, self._placed(piece), wants_loss=asked.wants_loss)
            self._performing = examiner

        def end() -> None:
            self._performing = self._worker
            results, examiner.results = examiner.results, {}
            answer(on_cpu(results))

        self._to_do.append(begin)
        self._to_do.extend(evaluation.actions(asked.first, asked.num)[self.assignment.worker])
        self._to_do.append(end)

    @cached_property
    def _evaluation(self) -> StageEvaluation:
        return StageEvaluation(self._graph, self.plan)

    @cached_property
    def _examiner(self) -> EvalWorker:
        """The evaluation worker, made once, because its programs are compiled."""
        return EvalWorker(self.assignment.worker, self._evaluation, self.stages, self.links, self._loss)

    def go_on(self, is_wanted_elsewhere: Callable[[], bool]) -> None:
        """Run the queued actions until they are done or the process has another command.

        Args:
            is_wanted_elsewhere: whether the process has another command; called between actions.

        Raises:
            StageFailed: an action raised.
        """
        to_do, links, worker = self._to_do, self.links, self._performing
        record, clock, visit = self.recorder.record, time.monotonic_ns, injection.visit
        while to_do and not is_wanted_elsewhere():
            action = to_do[0]
            if not isinstance(action, Action):
                to_do.popleft()
                action()
                worker = self._performing
                continue
            waited_ns = 0
            if not worker.can_perform(action):
                began = clock()
                while not worker.can_perform(action):
                    self._lacks = worker.waits_for(action)
                    links.wait(_LOOK_S)
                    if is_wanted_elsewhere():
                        return
                self._lacks = None
                waited_ns = clock() - began
            if visit:
                visit("stage.before_action", str(action))
            start = clock()
            worker.perform(action)
            if self._device.type == "cuda":  # otherwise the record would show the time of the launch alone
                torch.cuda.current_stream().synchronize()
            if worker is self._worker:  # evaluations are not part of the plan
                record(action, start, clock(), waited_ns)
            to_do.popleft()
            if self._cuts and action in self._cuts:
                self._take_snapshot(*self._cuts.pop(action))

    def interrupt(self) -> None:
        """Interrupt a wait in an exchange, which then raises; may be called by any thread."""
        self._sums.abort(self.assignment.epoch)

    def counters(self) -> WorkerCounters:
        """Return the counters since the beginning of the epoch."""
        return WorkerCounters.of(
            self.assignment.worker,
            self.stages.values(),
            host=os.uname().nodename,
            pid=os.getpid(),
            sent_bytes={worker: traffic.size_bytes for worker, traffic in self.links.traffic.items()},
            exchange=next((one.report() for one in self._exchanges.values()), None),
            num_snapshots=self._num_snapshots,
            snapshot_s=self._snapshot_s,
        )

    def sample(self, num_steps: int, *, with_exchange: bool) -> WorkerSample:
        """Return what the worker does and holds at this moment; may be called by any thread.

        Args:
            num_steps: the number of steps whose actions are wanted: the newest; 0: none.
            with_exchange: whether the costs of the exchange are wanted; some exchanges read all that compression has
                kept back for it.
        """
        return worker_sample(
            self.assignment.worker,
            self.stages.values(),
            epoch=self.assignment.epoch,
            step=self._step,
            num_steps=self._num_steps,
            doing=self.doing,
            doing_s=max(0, time.monotonic_ns() - self.recorder.last_end_ns) / 1e9 if self._num_steps else 0.0,
            sent_bytes={worker: traffic.size_bytes for worker, traffic in list(self.links.traffic.items())},
            exchanges={stage: one.report() for stage, one in self._exchanges.items()} if with_exchange else {},
            record=self.recorder.take(num_steps * self._actions_of_step) if num_steps else None,
        )

    def close(self) -> None:
        """Close links and exchanges; may be called twice."""
        self._to_do.clear()
        self._sums.close()
        self.links.close()

    def _hand_over(self, admission: Admission, first: int) -> None:
        if admission.num:
            self._step = self._worker.update.run_step = admission.step
            self._num_steps += 1
        for stage, whole in admission.whole:
            for number, piece in enumerate(self._placed(whole).pieces(), first):
                self.stages[stage].admit(number, piece)
        for stage, micro_batch, piece in admission.given:
            self.stages[stage].admit(micro_batch, self._placed(piece))
        if self._data is None or not admission.num:
            return
        for index, piece in self._data.pieces(admission.step).items():
            for id, stage in self.stages.items():
                if self.plan.worker_of(id, first + index) == self.assignment.worker:
                    stage.admit(first + index, self._placed(self._needs[id].part_of(piece)))

    def _placed(self, given: Batch) -> Batch:
        """Return a batch on this worker's device."""
        if self._device.type == "cpu":
            if isinstance(given, MicroBatchPiece):
                return given
            place = _aligned
        else:
            place = functools.partial(Tensor.to, device=self._device)
        return replace(given, inputs=map_tensors(place, given.inputs), labels=map_tensors(place, given.labels))

    def _take_snapshot(self, cut: Cut, keeper: int) -> None:
        assert self._taker is not None
        began = time.monotonic()
        snapshot = self._taker.take(cut)
        took_s = time.monotonic() - began
        self._num_snapshots += 1
        self._snapshot_s += took_s
        self._replicator.bring(ReplicationJob(keeper, self.assignment.epoch, snapshot, took_s, self.assignment.folder))

    def _put_loss(self, micro_batch: int, value: Tensor, weight: float | None) -> None:
        self._losses.append((micro_batch, value, weight))

    def _outcome(self) -> AdmissionOutcome:
        losses, self._losses = self._losses, []
        verdict = self._worker.update.take_verdict()
        return AdmissionOutcome(
            tuple(number for number, _, _ in losses),
            torch.stack([value.detach().cpu() for _, value, _ in losses]) if losses else None,
            tuple(weight for _, _, weight in losses),
            norm=None if verdict is None else verdict.norm,
            is_skipped=verdict is not None and verdict.skips,
            kept=self._replicator.delivered(self.assignment.epoch),
            lost_snapshots=self._replicator.failed(self.assignment.epoch),
        )


def _aligned(tensor: Tensor) -> Tensor:
    """Align a tensor like torch's own memory: frames begin anywhere, and kernels then add in another order."""
    return tensor if tensor.data_ptr() % ALIGN == 0 else tensor.clone()
