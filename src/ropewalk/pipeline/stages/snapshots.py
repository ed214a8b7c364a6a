"""Snapshots of a worker at a cut of the run: taken while it trains on, and loaded into another worker.

    worker ──take──▶ WorkerSnapshot ──(pickled: a few kilobytes and one block of memory)──▶ put ──▶ worker
    trains on         weights in all versions that live, buffers, optimizer, rates, exchange

Snapshots are indexed by stage and by the names of parameters. The pipeline is not drained for them: see
`ropewalk.pipeline.resuming` for what a cut is, and why a snapshot is all that a worker needs to continue from one.
Random numbers follow from step and index of each micro-batch, and sums of gradients and moments are empty right after a
step, so neither is part of a snapshot.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, cast

import torch
from torch import Tensor

from ropewalk.pipeline.plans import PlanWorker
from ropewalk.pipeline.schedules.streams import Cut
from ropewalk.pipeline.stages.packed_tensors import TensorBlock, unpacked
from ropewalk.pipeline.stages.running_stage import RunningStage
from ropewalk.pipeline.stages.saved_training import Rates, give_back, held
from ropewalk.pipeline.stages.stage_worker import StageWorker

_NUM_BLOCKS = 3
"""Blocks of memory that a worker keeps: two that peers may hold as snapshots, and one to copy into meanwhile."""


class Stateful(Protocol):
    """State besides a stage's own that lasts from update to update: that of the exchange between its replicas."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: Mapping[str, Any], /) -> None: ...


class WorkerSnapshot:
    """The state of one worker at a cut.

    Attributes:
        worker: the worker's place in the plan.
        cut: the cut.
        size_bytes: size of the block with its tensors.
    """

    def __init__(self, worker: PlanWorker, cut: Cut, packed: Any, memory: Any, size_bytes: int) -> None:
        self.worker = worker
        self.cut = cut
        self.size_bytes = size_bytes
        self._packed = packed
        self._memory: Any = memory
        """A tensor where the snapshot was taken; elsewhere the object that pickle made, as a keeper needs no tensors.
        """
        self._lender: tuple[list[TensorBlock], TensorBlock] | None = None

    def stages(self) -> dict[int, dict[str, Any]]:
        """Return for each stage copies of what it held: the entries of `saved_training.held`, and more."""
        memory = self._block()
        if not isinstance(memory, Tensor):
            writable = memory if not memoryview(memory).readonly else bytearray(memory)
            memory = torch.frombuffer(writable, dtype=torch.uint8) if self.size_bytes else torch.empty(0).byte()
        return unpacked(self._packed, memory)

    def release(self) -> None:
        """Allow the memory to be reused: the snapshot was sent, or is not wanted. May be called twice."""
        lender, self._lender = self._lender, None
        if lender is not None:
            self._memory = None
            free, block = lender
            if len(free) < _NUM_BLOCKS:
                free.append(block)

    def pin(self) -> None:
        """Never reuse the memory for a later snapshot: it may still be read after `release`."""
        self._lender = None

    def lent_by(self, free: list[TensorBlock], block: TensorBlock) -> WorkerSnapshot:
        """Return the snapshot, set up to give `block` back to `free` when it is released."""
        self._lender = free, block
        return self

    def _block(self) -> Any:
        if self._memory is None:
            raise ValueError(f"the snapshot of worker {self.worker} was released, and its memory is used for others")
        return self._memory

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        memory = self._block()
        if isinstance(memory, Tensor):
            memory = memory[: self.size_bytes].numpy()
        buffer = pickle.PickleBuffer(cast(Any, memory))
        return WorkerSnapshot, (self.worker, self.cut, self._packed, buffer, self.size_bytes)


class SnapshotTaker:
    """Takes snapshots of one worker; made before its first forward.

    Args:
        worker: the worker to take snapshots of.
        rates: the schedules of the learning rate.
        exchanges: by stage, the exchange between its replicas, if it has one.
        flushes: whether the schedule ends each step with an empty pipeline, so that no micro-batch is in flight at a
            cut.
    """

    def __init__(
        self,
        worker: StageWorker,
        rates: Rates,
        exchanges: Mapping[int, Stateful] | None = None,
        *,
        flushes: bool = False,
    ) -> None:
        self._worker = worker
        self._rates = rates
        self._exchanges = exchanges or {}
        self._free: list[TensorBlock] = []
        for stage in worker.stages.values():
            stage.can_be_resumed = not flushes

    def take(self, cut: Cut) -> WorkerSnapshot:
        """Copy what the worker holds, right after its last step before a cut (`resuming.last_step`).

        Raises:
            ValueError: the worker has not reached the cut: a micro-batch from before it is in flight.
        """
        contents = {id: self._contents(stage, cut) for id, stage in self._worker.stages.items()}
        block = self._free.pop() if self._free else TensorBlock()
        packed = block.pack(contents)
        snapshot = WorkerSnapshot(self._worker.worker, cut, packed, block.memory, block.size_bytes)
        return snapshot.lent_by(self._free, block)

    def _contents(self, stage: RunningStage, cut: Cut) -> dict[str, Any]:
        versions = stage.versions
        if behind := [number for number in stage.in_flight if number < cut.next_micro_batch]:
            raise ValueError(
                f"micro-batch {behind[0]} is in flight at stage {stage.setup.id}, and the cut is behind it, at "
                f"{cut.next_micro_batch}; take the snapshot right after the worker's last step before the cut"
            )
        exchange = self._exchanges.get(stage.setup.id)
        return {
            **held(stage, self._rates),
            "newest": versions.newest,
            "older": {
                version: {name: versions.leaves(version)[name] for name in versions.trainable}
                for version in versions.versions
                if version != versions.newest
            },
            # The buffers at the entry of the micro-batches in flight.
            "in_flight": {number: dict(flight.buffers or {}) for number, flight in stage.in_flight.items()},
            "exchange": None if exchange is None else exchange.state_dict(),
        }


def put(
    snapshot: WorkerSnapshot,
    worker: StageWorker,
    rates: Rates,
    exchanges: Mapping[int, Stateful] | None = None,
) -> None:
    """Load a snapshot into a worker of the same plan and schedule that has no micro-batches in flight.

    Args:
        snapshot: the snapshot.
        worker: the worker.
        rates: the schedules of the learning rate of its stages.
        exchanges: by stage, the exchange between its replicas, if it has one.

    Raises:
        ValueError: the snapshot is of another model, of other stages, or was trained with other groups of the
            optimizer.
        ScheduleInvalid: the worker has no room for as many versions of the weights.
    """
    found = snapshot.stages()
    if found.keys() != worker.stages.keys():
        raise ValueError(
            f"the snapshot of worker {snapshot.worker} is of stages {sorted(found)}, and worker {worker.worker} has "
            f"{sorted(worker.stages)}; for another plan, give as_state(snapshots) to its stages"
        )
    exchanges = exchanges or {}
    for id, contents in found.items():
        if contents["exchange"] is not None and id not in exchanges:
            raise ValueError(f"stage {id} had an exchange with state, and has none here; make the worker with the same")
    for id, contents in found.items():
        stage = worker.stages[id]
        give_back(contents, [stage], {stage: rates[stage]} if stage in rates else {})
        stage.versions.restore(contents["newest"], contents["older"])
        stage.again = {
            number: {name: buffer.to(stage.device) for name, buffer in buffers.items()}
            for number, buffers in contents["in_flight"].items()
        }
        if contents["exchange"] is not None:
            exchanges[id].load_state_dict(contents["exchange"])


def as_state(snapshots: Iterable[WorkerSnapshot]) -> dict[str, Any]:
    """Return the training state at a cut, in the form of `saved_training.taken`, for stages of any plan or schedule.

    Micro-batches that were in flight start over, with the newest weights. So without a flush the run does not continue
    to the bit as the one that was cut, but as one that was drained at the cut.

    The state of exchanges is left out: it belongs to one replica of one plan. Residuals of compression are dropped, and
    exchanges of the other plan start over.

    Args:
        snapshots: snapshots at one cut, of at least one replica of each stage. If several hold a value, that of the
            first stage and replica is taken.

    Raises:
        ValueError: the snapshots are of several cuts.
    """
    ordered = sorted(snapshots, key=lambda snapshot: snapshot.worker)
    cut_of(ordered)
    stages = [(id, contents) for snapshot in ordered for id, contents in snapshot.stages().items()]
    found: dict[str, Any] = {kind: {} for kind in ("parameters", "buffers", "optimizer", "options", "rates")}
    # By stage, then by replica: sorting is stable.
    for _, contents in sorted(stages, key=lambda one: one[0])[::-1]:
        for kind, named in found.items():
            named.update(contents[kind])
    return found


def cut_of(snapshots: Sequence[WorkerSnapshot], workers: Iterable[PlanWorker] | None = None) -> Cut:
    """Return the cut that snapshots were taken at.

    Args:
        snapshots: the snapshots.
        workers: if given, there must be one snapshot of each of these workers.

    Raises:
        ValueError: the snapshots are of several cuts, or not of these workers.
    """
    cuts = {snapshot.cut for snapshot in snapshots}
    if len(cuts) != 1:
        raise ValueError(f"snapshots of one cut are wanted, and these are of {len(cuts)}: {sorted(map(str, cuts))}")
    if workers is not None and (found := sorted(one.worker for one in snapshots)) != (wanted := sorted(workers)):
        raise ValueError(
            f"one snapshot of each worker is wanted, {', '.join(map(str, wanted))}, and there are those of "
            f"{', '.join(map(str, found))}"
        )
    (cut,) = cuts
    return cut
