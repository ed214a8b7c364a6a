"""`StageProcess`: the service that runs one worker of a pipeline; its main thread does all the computing.

controller ── assign, connect, work, abort ──▶ commands ──▶ main thread: commands first, then the next action
peers ───────── links (shared memory, or deliver) ─────────▶     └ answers go back through futures
peers ───────── keep ──▶ snapshot store: snapshots of others
"""

from __future__ import annotations

import functools
import os
import queue
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

import torch

from ropewalk import injection
from ropewalk.calls.client import Client
from ropewalk.calls.markers import concurrent, method
from ropewalk.errors import ExchangeAborted, PeerLost, ServiceLost, StageLost
from ropewalk.exchange.groups.inbox import Packet
from ropewalk.exchange.groups.link_group import Send
from ropewalk.exchange.groups.member import one_way
from ropewalk.exchange.groups.watched_worker import WatchedWorker
from ropewalk.pipeline.plans import PlanWorker
from ropewalk.pipeline.schedules.streams import Cut
from ropewalk.pipeline.stages.evaluation import Evaluated
from ropewalk.pipeline.stages.saved_training import give_back, taken
from ropewalk.pipeline.stages.snapshots import WorkerSnapshot, as_state
from ropewalk.pipeline.stages.tensor_source import GivenTensors, TensorSource
from ropewalk.program import node_context
from ropewalk.training import stored_snapshots
from ropewalk.training.assignment import (
    Admission,
    AdmissionOutcome,
    Assignment,
    Examination,
    FromCheckpoint,
    FromSnapshots,
    FromSource,
    FromState,
    FromTensors,
    Place,
    Presence,
    TrainingConfig,
)
from ropewalk.training.checkpoint_parts import write_part
from ropewalk.training.counters import WorkerCounters
from ropewalk.training.far_links import FarMessage
from ropewalk.training.links import Endpoint
from ropewalk.training.manifests import PartRecord
from ropewalk.training.recorder import WorkerRecord
from ropewalk.training.replica_groups import Inboxes
from ropewalk.training.replicator import Replicator
from ropewalk.training.snapshot_store import SnapshotStore
from ropewalk.training.stage_device import on_cpu
from ropewalk.training.stage_runtime import StageRuntime
from ropewalk.training.stored_snapshots import StoredSnapshot
from ropewalk.training.worker_sample import WorkerSample

T = TypeVar("T")


class StageProcess(WatchedWorker):
    """A process that runs one worker of a pipeline, which may be another one in each epoch.

    Args:
        training: the configuration of the training.
        peers: all stage processes, including this one.
    """

    def __init__(self, training: TrainingConfig, peers: Client) -> None:
        super().__init__()
        self._seat = node_context.current_node().replica
        # Torch was loaded before this process was forked, when its number of threads was not known yet.
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS") or 1))
        self._training = training
        self._peers = peers
        self._commands: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._runtime: StageRuntime | None = None
        self._epoch = -1
        self._early: dict[int, tuple[Admission, Future[AdmissionOutcome]]] = {}
        """Admissions that arrived before their turn, and calls that are not answered yet."""
        self._open: list[Future[Any]] = []
        self._next_number = 0
        self._snapshots: SnapshotStore[WorkerSnapshot] = SnapshotStore()
        self._inboxes = Inboxes()
        self._replicator = Replicator(self._keep_here_and_there)
        self._copy: dict[str, Any] = {}
        self._is_stopping = False

    # --- life cycle ---------------------------------------------------------------------------------------------------

    def hello(self) -> Presence:
        """Identify this process; a replacement gives another name."""
        return Presence(self.name, os.uname().nodename)

    def where(self) -> str:
        """Return what the process is doing at the moment, in words."""
        runtime = self._runtime
        return runtime.doing if runtime is not None else "it is not a worker just now"

    @concurrent(1)
    def sample(self, num_steps: int, with_exchange: bool) -> WorkerSample | None:
        """Return what its worker does and holds, at once, while the main thread computes; None if it is not a worker.

        Args:
            num_steps: the number of steps whose actions are wanted; 0: none.
            with_exchange: whether the costs of the exchange are wanted.
        """
        runtime = self._runtime
        return None if runtime is None else runtime.sample(num_steps, with_exchange=with_exchange)

    def clock(self) -> int:
        """Return the time of its clock, in nanoseconds."""
        return time.monotonic_ns()

    # --- work ---------------------------------------------------------------------------------------------------------

    @concurrent(2)
    def assign(self, assignment: Assignment) -> Endpoint:
        """Become a worker; the work of an earlier epoch is dropped."""
        return self._do(lambda: self._assign(assignment))

    @concurrent(2)
    def stand_by(self, epoch: int, basis: tuple[int, Cut] | None) -> None:
        """Be no worker in an epoch, and keep the snapshots of others.

        Args:
            epoch: the epoch that begins.
            basis: the epoch that took the snapshots it goes on from, and their cut; None: it goes on from none.
        """

        def begin() -> None:
            self._abort(epoch)
            self._epoch = epoch
            self._snapshots.begin(epoch, basis)

        self._do(begin)

    @concurrent(2)
    def connect(self, epoch: int, endpoints: Mapping[PlanWorker, Endpoint]) -> None:
        """Connect to the other workers."""
        self._do(lambda: self._connect(epoch, endpoints))

    @concurrent(64)
    def work(self, admission: Admission) -> AdmissionOutcome:
        """Do a step; returns when it is done."""
        done: Future[AdmissionOutcome] = Future()
        self._submit(lambda: self._admit(admission, done))
        return done.result()

    @concurrent(2)
    def examine(self, asked: Examination) -> Mapping[int, Evaluated]:
        """Evaluate mini-batches; returns the results of this worker."""
        done: Future[Any] = Future()
        self._submit(lambda: self._examine(asked, done))
        return done.result()

    @concurrent(2)
    def abort(self, epoch: int) -> None:
        """Drop the work of this epoch, and of earlier ones."""
        runtime = self._runtime
        if runtime is not None and runtime.assignment.epoch <= epoch:
            runtime.interrupt()
        self._do(lambda: self._abort(epoch))

    @method
    def deliver(self, message: FarMessage) -> None:
        """Accept a message from a worker on another host."""
        runtime = self._runtime
        if runtime is not None:
            runtime.links.deliver(message)

    @method
    def deliver_packet(self, stage: int, packet: Packet) -> None:
        """Accept a packet of an exchange from another replica of a stage."""
        self._inboxes.deliver(stage, packet)

    # --- its state ----------------------------------------------------------------------------------------------------

    @concurrent(2)
    def state(self, names: Collection[str]) -> dict[str, Any]:
        """Return the state of these parameters and buffers, while nothing is in flight."""
        return self._do(lambda: self._taken(names))

    @concurrent(2)
    def copy_for_saving(self, names: Collection[str]) -> None:
        """Copy the state that `save` will write, so that training can go on meanwhile."""
        self._copy = self._do(lambda: self._taken(names))

    @concurrent(2)
    def save(self, folder: str, part: str) -> PartRecord:
        """Write the copied state."""
        if injection.visit:
            injection.visit("stage.before_saving", part)
        copied, self._copy = self._copy, {}
        if not copied:
            raise StageLost("the process that had copied the state is gone; earlier checkpoints are intact")
        return write_part(folder, part, copied)

    @concurrent(2)
    def counters(self) -> WorkerCounters:
        """Return the counters of this worker."""
        return self._do(lambda: self._runtime_here.counters())

    @concurrent(2)
    def record(self) -> WorkerRecord:
        """Return the recent actions of this worker."""
        return self._do(lambda: self._runtime_here.recorder.take())

    @concurrent(16)
    def keep(self, epoch: int, snapshot: WorkerSnapshot) -> None:
        """Keep a snapshot of a peer, in case it dies."""
        self._snapshots.put(epoch, snapshot)

    def kept(self) -> Any:
        """Return the workers and cuts of the snapshots that are kept here."""
        return self._snapshots.contents()

    @concurrent(16)
    def snapshot(self, worker: PlanWorker, cut: Cut, epoch: int) -> WorkerSnapshot:
        """Return a snapshot that is kept here, by the epoch that took it."""
        return self._snapshots.get(worker, cut, epoch, to_send=True)

    @concurrent(16)
    def copy(self, seat: int, worker: PlanWorker, cut: Cut, epoch: int) -> None:
        """Get a snapshot from a peer and keep it too, because another keeper is gone."""
        if injection.visit:
            injection.visit("stage.before_copying", str(self._epoch))
        self._snapshots.put(epoch, self._snapshot_at(seat, worker, cut, epoch))

    # --- the main thread ----------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Execute commands and actions until the program stops."""
        node_context.on_stop(self._stop)
        try:
            while not self._is_stopping:
                if self._runtime is None or self._runtime.is_idle:
                    self._commands.get()()
                while not self._commands.empty():
                    self._commands.get()()
                if self._runtime is not None and not self._is_stopping:
                    self._compute(self._runtime)
        finally:
            self._has_ended.set()
            self._replicator.close()
            # Calls that wait for steps would delay the end of the process.
            self._give_up(ExchangeAborted("this process ends", epoch=self._epoch))

    def _compute(self, runtime: StageRuntime) -> None:
        try:
            runtime.go_on(lambda: not self._commands.empty())
        except Exception as error:
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        """Fail all calls of this epoch, whose work cannot go on here."""
        if self._runtime is not None:
            self._runtime.close()
            self._runtime = None
        waiting = [*self._open, *(done for _, done in self._early.values())]
        self._open, self._early = [], {}
        for done in waiting:
            done.set_exception(error)

    def _assign(self, assignment: Assignment) -> Endpoint:
        if injection.visit:
            injection.visit("stage.before_assignment", str(assignment.epoch))
        self._give_up(ExchangeAborted(f"epoch {self._epoch} was given up", epoch=self._epoch))
        self._epoch, self._next_number = assignment.epoch, 0
        origin = assignment.origin
        self._snapshots.begin(
            assignment.epoch, (origin.epoch, origin.cut) if isinstance(origin, FromSnapshots) else None
        )
        tensors: TensorSource | None = None
        if isinstance(origin, FromTensors):
            tensors = GivenTensors(origin.tensors)
        elif isinstance(origin, FromSource):
            tensors = self._training.source
        runtime = StageRuntime(
            self._training,
            assignment,
            tensors,
            self._replicator,
            lambda stage: self._sends(assignment, stage),
            self._inboxes,
        )
        match origin:
            case FromTensors() | FromSource():
                pass
            case FromSnapshots(cut, epoch, places, True):
                snapshot = self._snapshot_at(places[assignment.worker], assignment.worker, cut, epoch)
                runtime.put(snapshot)
                self._snapshots.put(epoch, snapshot)
            case FromSnapshots(cut, epoch, places, _):
                snapshots = [self._snapshot_at(place, of, cut, epoch) for of, place in places.items()]
                self._give_back(runtime, as_state(snapshots))
            case FromState(state):
                self._give_back(runtime, state)
            case FromCheckpoint(checkpoint):
                self._give_back(runtime, checkpoint.load(_names_of(runtime)))
        self._runtime = runtime
        return runtime.links.endpoint()

    def _give_back(self, runtime: StageRuntime, state: Mapping[str, Any]) -> None:
        """Restore the stages from their parts of a state."""
        names = _names_of(runtime)
        own = {kind: {name: one for name, one in state[kind].items() if name in names}
               for kind in ("parameters", "buffers", "optimizer", "options", "rates")}  # fmt: skip
        give_back(own, list(runtime.stages.values()), runtime.rates)

    def _taken(self, names: Collection[str]) -> dict[str, Any]:
        runtime, wanted = self._runtime_here, set(names)
        state = on_cpu(taken(list(runtime.stages.values()), runtime.rates))
        return {kind: {name: one for name, one in named.items() if name in wanted} for kind, named in state.items()}

    def _sends(self, assignment: Assignment, stage: int) -> list[Send]:
        """Return, by replica of a stage, functions that send it a packet without waiting."""
        replicas = range(assignment.plan.stages[stage].replicas)
        group = assignment.plan.placement[stage]
        calls = [self._peers[assignment.seats[PlanWorker(group, replica)]].deliver_packet for replica in replicas]
        return [lambda packet, call=call: call.future(stage, packet) for call in calls]

    def _snapshot_at(self, place: Place, worker: PlanWorker, cut: Cut, epoch: int) -> WorkerSnapshot:
        if isinstance(place, WorkerSnapshot):
            return place
        if isinstance(place, StoredSnapshot):
            return stored_snapshots.read(place)
        if place == self._seat:
            return self._snapshots.get(worker, cut, epoch)
        try:
            return self._peers[place].snapshot(worker, cut, epoch)
        except ServiceLost as error:  # otherwise it would look as if this process were gone
            raise ExchangeAborted(f"the keeper of the snapshot of worker {worker} is gone: {error}") from error

    def _keep_here_and_there(self, seat: int, epoch: int, snapshot: WorkerSnapshot) -> Future[Any]:
        """Send one of our own snapshots to its keeper; in the replicator's thread."""
        if injection.visit:
            injection.visit("stage.before_keeping", str(epoch))
        self._snapshots.put(epoch, snapshot)
        return self._peers[seat].keep.future(epoch, snapshot)

    def _connect(self, epoch: int, endpoints: Mapping[PlanWorker, Endpoint]) -> None:
        runtime = self._runtime_here
        if epoch == self._epoch:
            seats = runtime.assignment.seats
            try:
                runtime.links.connect(endpoints, {worker: one_way(self._peers[seats[worker]]) for worker in endpoints})
            except PeerLost as error:  # the controller learns of the loss by itself
                raise ExchangeAborted(f"a worker that was to be connected is gone: {error}", epoch=epoch) from error

    def _admit(self, admission: Admission, done: Future[AdmissionOutcome]) -> None:
        if (runtime := self._runtime_of(admission.epoch, done)) is None:
            return
        self._early[admission.number] = admission, done
        while (following := self._early.pop(self._next_number, None)) is not None:
            self._next_number += 1
            self._begin(functools.partial(runtime.admit, following[0]), following[1])

    def _examine(self, asked: Examination, done: Future[Any]) -> None:
        if (runtime := self._runtime_of(asked.epoch, done)) is not None:
            self._begin(functools.partial(runtime.examine, asked), done)

    def _runtime_of(self, epoch: int, done: Future[Any]) -> StageRuntime | None:
        """Return the runtime of an epoch; None, and `done` fails, if the epoch is over."""
        if epoch == self._epoch and self._runtime is not None:
            return self._runtime
        done.set_exception(ExchangeAborted(f"epoch {epoch} was given up", epoch=epoch))
        return None

    def _begin(self, begin: Callable[[Callable[[Any], object]], object], done: Future[Any]) -> None:
        """Make the runtime begin a task, and answer when it is done."""

        def answer(result: Any) -> None:
            self._open.remove(done)
            done.set_result(result)

        self._open.append(done)
        try:
            begin(answer)
        except Exception as error:
            self._give_up(error)

    def _abort(self, epoch: int) -> None:
        if epoch >= self._epoch:
            self._give_up(ExchangeAborted(f"epoch {self._epoch} was given up", epoch=self._epoch))

    @property
    def _runtime_here(self) -> StageRuntime:
        if self._runtime is None:
            raise ExchangeAborted("this process is not a worker just now", epoch=self._epoch)
        return self._runtime

    def _stop(self) -> None:
        def stop() -> None:
            self._is_stopping = True

        self._submit(stop)

    def _do(self, call: Callable[[], T]) -> T:
        """Make the main thread call a function, and return its result."""
        done: Future[T] = Future()

        def make() -> None:
            try:
                done.set_result(call())
            except Exception as error:
                done.set_exception(error)

        self._submit(make)
        return done.result()

    def _submit(self, command: Callable[[], object]) -> None:
        self._commands.put(command)
        runtime = self._runtime
        if runtime is not None:
            runtime.links.ring()


def _names_of(runtime: StageRuntime) -> set[str]:
    """Return the parameters and buffers of its stages."""
    return {name for stage in runtime.stages.values() for name in (*stage.versions.parameters, *stage.buffers)}
