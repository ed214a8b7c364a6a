"""The controller: deploys a plan on stage processes, admits steps, and goes on after deaths.

    Trainer ── step, drain, ask ──▶ Controller ── calls ──▶ stage processes          in the thread of the caller
                                       ▲  │                       │
                                       │  └ retained: steps admitted since the newest cut of which all have snapshots
                                       └── answers: losses, failures, deaths

    a death ──▶ the others drop their work ──▶ the plan is deployed again, from the cut ──▶ snapshots that only one
                process keeps are copied to another one ──▶ the retained steps are admitted again

It has no thread of its own: the next call or wait acts upon a death.
"""

from __future__ import annotations

import functools
import logging
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, NoReturn, TypeVar

from torch import Tensor

from ropewalk.control.target import ControlTarget
from ropewalk.errors import PlanInvalid, ScheduleInvalid, StageLost, TrainerFailed
from ropewalk.pipeline.plan_table import plan_in_words
from ropewalk.pipeline.plans import Plan, PlanWorker
from ropewalk.pipeline.resuming import can_cut
from ropewalk.pipeline.schedules.schedule import Schedule
from ropewalk.pipeline.schedules.streams import Cut
from ropewalk.pipeline.stages.micro_batches import MiniBatch
from ropewalk.pipeline.stages.snapshots import WorkerSnapshot
from ropewalk.pipeline.step_metrics import StepMetrics
from ropewalk.pipeline.tracing.model_graph import ModelGraph
from ropewalk.pipeline.tracing.trees import map_tensors, tensors_of
from ropewalk.quantities import counted
from ropewalk.training.assignment import (
    Admission,
    AdmissionOutcome,
    Assignment,
    FromSnapshots,
    FromTensors,
    MicroBatchInput,
    Origin,
    PeerSnapshot,
    Place,
    Presence,
)
from ropewalk.training.further_copies import FurtherCopies
from ropewalk.training.history import TrainingHistory
from ropewalk.training.needs import Need, needs_of
from ropewalk.training.panels.snapshots import snapshots_panel
from ropewalk.training.plan_repair import merged, without_workers
from ropewalk.training.positions import behind, is_empty
from ropewalk.training.snapshot_pace import SnapshotPace
from ropewalk.training.snapshot_places import (
    Copy,
    WholeCut,
    copies_of,
    holders_of,
    keepers_of,
    missing_groups,
    nearest,
    one_per_group,
)
from ropewalk.training.stage_fleet import STAGES, SeatsLost, StageFleet
from ropewalk.training.timeouts import TrainerTimeouts

logger = logging.getLogger(__name__)

T = TypeVar("T")

_NOBODY = SeatsLost({})
"""A recovery in which no process was lost."""


@dataclass(slots=True, eq=False)
class Retained:
    """An admission, kept until all workers have a snapshot taken after it."""

    step: int
    num: int
    """The number of micro-batches."""
    batch: MiniBatch | None
    """None: there is no mini-batch, or the stages read it by themselves."""
    metrics: StepMetrics | None
    drains: bool
    position: Cut | None = None
    """The position of the pipeline after it, under the present plan."""
    futures: dict[PlanWorker, Future[AdmissionOutcome]] | None = None
    is_done: bool = False
    was_done: bool = False
    """Whether it was completed at least once, in this epoch or an earlier one."""
    sent_s: float = 0.0
    """When it was sent in this epoch."""

    @property
    def size_bytes(self) -> int:
        """The size of its tensors in bytes."""
        if self.batch is None:
            return 0
        return sum(tensor.nbytes for tensor in tensors_of((dict(self.batch.inputs), self.batch.labels)))


class Controller:
    """Drives the stage processes of one trainer."""

    def __init__(
        self,
        fleet: StageFleet,
        graph: ModelGraph,
        plan: Plan,
        schedule: Schedule,
        origin: Origin,
        *,
        seed: int,
        timeouts: TrainerTimeouts,
        pace: SnapshotPace | None,
        copies: FurtherCopies,
    ) -> None:
        self.plan: Plan = plan
        self.schedule = schedule
        self.seed = seed
        self.events: list[str] = []
        """Events that a user should know of, oldest first."""
        self.history = TrainingHistory()
        self._fleet = fleet
        self._graph = graph
        self._origin = origin
        self._timeouts = timeouts
        self._pace = pace
        self._copies = copies
        self.epoch = -1
        """Counts deployments."""
        self._number = 0
        self._position = Cut.start(plan)
        """The position after everything that was admitted."""
        self._retained: deque[Retained] = deque()
        """The admissions since the newest cut, and those of them that are not completed."""
        self._under_way: deque[Retained] = deque()
        self._losses: dict[int, tuple[StepMetrics, int]] = {}
        self._kept: dict[Cut, dict[PlanWorker, PeerSnapshot]] = {}
        """By cut, the workers whose snapshots of it have reached their keepers."""
        self._cut: WholeCut | None = None
        """The newest cut of which all snapshots are kept; None: training goes on from `_origin`."""
        self._secured: dict[int, Presence] = {}
        """The processes present when it was last ensured that every snapshot of the cut is kept by two processes."""
        self._done_at = 0.0
        self._num_deaths = 0
        self._failure: BaseException | None = None
        self._is_interrupted = False
        self._seats: dict[PlanWorker, int] = {}
        self._stages_at: dict[int, tuple[int, ...]] = {}
        """By seat, the stages of the worker there. By the time one is lost, `plan` may already be another one."""
        self.needs: tuple[Need, ...] = ()
        """The inputs and tensors that each stage needs."""

    # --- life cycle ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the processes and deploy the plan."""
        self._fleet.start()
        missing = self._fleet.take_seats(range(self._fleet.num), self._timeouts.start_s)
        if missing:
            raise StageLost(
                f"{len(missing)} of {self._fleet.num} processes did not come up within {self._timeouts.start_s:g} s; "
                f"the first is number {min(missing)}: {missing[min(missing)]}",
                cause=missing[min(missing)],
            )
        self._guarded(lambda: self._deploy(self._origin, Cut.start(self.plan)))
        self.history.note("plan", plan_in_words(self.plan, self.schedule.name))

    def close(self, grace_s: float | None = None) -> None:
        """End all processes; may be called twice."""
        self._fleet.close(grace_s)
        self._copies.close()

    # --- steps --------------------------------------------------------------------------------------------------------

    def admit(self, step: int, num: int, batch: MiniBatch | None, metrics: StepMetrics) -> None:
        """Hand a mini-batch to the stages; waits only while too many steps are under way.

        Args:
            step: the number of the step in the run.
            num: the number of its micro-batches.
            batch: all of them; None if stages read the data by themselves.
            metrics: receives the losses.
        """
        self._check()
        # A short mini-batch must not share its update with the next one's pieces.
        drains = not self.schedule.flushes and num < self.plan.micro_batches
        self._guarded(self._make_room)
        if batch is not None and self._pace is not None:  # it may be sent again after the caller has changed it
            batch = replace(batch, inputs=map_tensors(_copied, batch.inputs), labels=map_tensors(_copied, batch.labels))
        one = Retained(step, num, batch, metrics, drains)
        self._retained.append(one)
        try:
            self._guarded(lambda: self._send(one))
        except KeyboardInterrupt:  # the step is not admitted, and the caller may try again
            self._retained.remove(one)
            raise

    def drain(self) -> None:
        """Finish everything that was admitted."""
        self._check()
        if not is_empty(self._position):
            self._admit_and_finish(Retained(0, 0, None, None, drains=True))
        self._guarded(lambda: self._finish(lambda: not self._under_way))

    def _admit_and_finish(self, one: Retained) -> None:
        self._retained.append(one)
        self._guarded(lambda: self._send(one))
        self._guarded(lambda: self._finish(lambda: not self._under_way))

    def wait_until(self, done: Callable[[], bool]) -> None:
        """Wait until a condition that admitted steps bring about is true; drains if nothing less makes it true."""
        self._check()
        self._guarded(lambda: self._finish(lambda: done() or not self._under_way))
        if not done() and not self.schedule.flushes:  # stages go on with the admitted steps, without waiting
            self._admit_and_finish(Retained(0, 0, None, None, drains=False))
        if not done():
            self.drain()

    def ask(self, call: Callable[[Any, PlanWorker], Future[T]], what: str) -> dict[PlanWorker, T]:
        """Call each worker while nothing is in flight, and return the answers."""
        while True:
            self.drain()
            try:
                futures = {worker: call(self.client(worker), worker) for worker in self.plan.workers}
                return self._fleet.answers(futures, self._seats, what)
            except SeatsLost as lost:
                self._guarded(lambda lost=lost: self._recover(lost))
            except BaseException as error:  # a stage that raised has dropped its state
                self._break_off(error)
                raise

    def redeploy(self, plan: Plan, origin: Origin, *, seed: int | None = None) -> None:
        """Go on with another plan or from another state; nothing is in flight.

        Args:
            plan: the plan to go on with.
            origin: the state to go on from.
            seed: the seed of the run's random numbers; None: unchanged.

        Raises:
            StageLost: the processes for it did not start; nothing has changed.
        """
        self._check()
        self._make_seats(len(plan.workers))
        self._retained.clear()
        self.plan, self._origin, self._cut = plan, origin, None
        self._copies.clear()
        self.history.snapshots.clear()
        self.seed = self.seed if seed is None else seed
        self._guarded(lambda: self._deploy(origin, Cut.start(plan)))
        self.history.note("plan", plan_in_words(self.plan, self.schedule.name))

    def _make_seats(self, num: int) -> None:
        before = self._fleet.num
        if num <= before:
            return
        self._fleet.scale(num)
        missing = self._fleet.take_seats(range(num), self._timeouts.start_s, enough=num)
        if len(self._fleet.present) < num:
            self._fleet.scale(before)
            raise StageLost(
                f"{num} processes are needed, and {len(missing)} did not come up within {self._timeouts.start_s:g} s "
                f"({next(iter(missing.values()), 'it is not known why')}); training stays as it was"
            )

    # --- internals ----------------------------------------------------------------------------------------------------

    def _make_room(self) -> None:
        self._finish(lambda: len(self._under_way) < self.schedule.steps_ahead(self.plan))

    def _finish(self, is_enough: Callable[[], bool]) -> None:
        while not is_enough():
            self._settle(self._under_way[0])

    def _send(self, one: Retained) -> None:
        """Send an admission to the workers of this epoch; after a recovery it has been sent in an earlier one."""
        if one.futures is not None:
            return
        first = self._position.next_micro_batch
        given: dict[PlanWorker, list[MicroBatchInput]] = {worker: [] for worker in self.plan.workers}
        if not self.schedule.flushes and one.metrics is not None:
            self._losses |= {first + index: (one.metrics, index) for index in range(one.num)}
        whole: dict[PlanWorker, list[tuple[int, MiniBatch]]] = {worker: [] for worker in self.plan.workers}
        for stage, need in enumerate(self.needs):
            if one.batch is None or not need.of_piece:
                continue
            part = need.whole_of(one.batch)
            if self.plan.stages[stage].replicas == 1:
                whole[self.plan.worker_of(stage, first)].append((stage, part))
            else:
                for number, piece in enumerate(part.pieces(), first):
                    given[self.plan.worker_of(stage, number)].append(MicroBatchInput(stage, number, piece))
        one.position = self._position = behind(self.plan, self.schedule, self._position, one.num, drains=one.drains)
        # Not at a drain: stages may have passed it already, and a cut without their snapshots can never become whole.
        snapshot = (
            self._pace is not None
            and one.num > 0
            and not one.drains
            and self._pace.admitted(one.size_bytes, can_cut=can_cut(self.plan, self.schedule, one.position))
        )
        keepers = keepers_of(self._fleet.hosts) if snapshot else {}
        if snapshot:
            self.history.snapshots.asked(one.step + 1, one.position, self.plan.workers, self.history.now())
        number, self._number = self._number, self._number + 1
        one.futures, one.sent_s = {}, time.monotonic()
        self._under_way.append(one)
        for worker in self.plan.workers:
            admission = Admission(
                self.epoch,
                number,
                one.num,
                tuple(whole[worker]),
                tuple(given[worker]),
                one.step,
                drains=one.drains,
                keeper=keepers.get(self._seats[worker]),
            )
            one.futures[worker] = self.client(worker).work.future(admission)

    def _settle(self, one: Retained) -> None:
        """Wait for an admission, and process its outcome."""
        assert one.futures is not None
        outcomes = self._fleet.answers(one.futures, self._seats, "a step")
        for worker, outcome in outcomes.items():
            if outcome.values is not None:
                values = outcome.values.unbind()
                for number, value, weight in zip(outcome.micro_batches, values, outcome.weights, strict=True):
                    # With a flush, each step numbers its micro-batches anew, and collects its own losses.
                    metrics, index = self._losses.pop(number, (one.metrics, number))
                    assert metrics is not None
                    metrics.put(index, value, weight)
            if outcome.norm is not None and one.metrics is not None and self.schedule.flushes:
                one.metrics.gradient_norm, one.metrics.is_skipped = outcome.norm, outcome.is_skipped
            if outcome.lost_snapshots and self._pace is not None:
                self._pace.restarted()  # the next snapshot gets a keeper that lives
                self._note_once(*outcome.lost_snapshots)
            for kept in outcome.kept:
                self._kept.setdefault(kept.cut, {})[worker] = kept
                self.history.snapshots.arrived(worker, kept)
        one.is_done, one.futures = True, {}
        self._under_way.remove(one)
        self._done_at, before = time.monotonic(), self._done_at
        if self._pace is not None and before and one.num:
            self._pace.step_took(self._done_at - before)
        if one.num:
            self.history.step_done(one.sent_s, self._done_at, is_repeated=one.was_done)
        if not one.was_done:  # repeating one is no progress if a death follows each time
            self._num_deaths, one.was_done = 0, True
        self._forget()
        self._fleet.look_for(range(self._fleet.num))
        if self._cut is not None and self._fleet.present != self._secured:
            self._secure(self._cut, 0.0)  # a process that only keeps snapshots was lost, or has started

    def _forget(self) -> None:
        """Drop what precedes the newest cut of which all snapshots are kept."""
        if self._pace is None:  # without snapshots no step is repeated
            while self._retained and self._retained[0].is_done:
                self._retained.popleft()
            return
        if not self._kept:
            return
        wanted = set(self.plan.workers)
        positions = [one.position for one in self._retained]
        whole = [
            index
            for index, position in enumerate(positions)
            if position is not None and self._kept.get(position, {}).keys() >= wanted
        ]
        if not whole:
            return
        newest = positions[whole[-1]]
        assert newest is not None
        kept, epoch = self._kept[newest], self.epoch

        def fetch(seat: int, worker: PlanWorker) -> Future[WorkerSnapshot]:
            return self._fleet.client(seat).snapshot.future(worker, newest, epoch)

        if not self._copies.are_here(newest, kept, fetch, is_alone=len(self._fleet.present) < 2):
            return
        for _ in range(whole[-1] + 1):
            self._retained.popleft()
        self._copies.became_whole(newest, kept)
        self._cut = WholeCut(newest, self.epoch, self.plan)
        self.history.snapshots.became_whole(newest, self.history.now())
        self._pace.whole(max(one.took_s for one in kept.values()))
        self._kept = {cut: workers for cut, workers in self._kept.items() if cut in positions[whole[-1] + 1 :]}

    # --- deployment and recovery --------------------------------------------------------------------------------------

    def _deploy(self, origin: Origin, start: Cut) -> None:
        """Make the processes the workers of the plan, and admit the retained steps again."""
        self.epoch += 1
        self._number = 0
        self._losses.clear()
        self._kept.clear()
        self._copies.restarted()
        self.history.snapshots.restarted()
        self._done_at = 0.0
        if self._pace is not None:
            self._pace.restarted()
        self._position = start
        missing: dict[int, str] = {}
        if len(self._fleet.present) < len(self.plan.workers):  # new ones are starting
            missing = self._fleet.take_seats(
                range(self._fleet.num), self._timeouts.replace_s, enough=max(self._least, len(self.plan.workers))
            )
        seats = sorted(self._fleet.present)
        if len(seats) < len(self.plan.workers):
            raise SeatsLost(missing)
        self._seats = dict(zip(self.plan.workers, seats, strict=False))
        self._stages_at = {seat: tuple(self.plan.groups[worker.group]) for worker, seat in self._seats.items()}
        self.needs = needs_of(self.plan, self._graph)
        workers = self.plan.workers
        assigned = {
            worker: self.client(worker).assign.future(self._assigned(worker, origin, start)) for worker in workers
        }
        endpoints = self._fleet.answers(assigned, self._seats, "the deployment of the plan")
        connected = {worker: self.client(worker).connect.future(self.epoch, endpoints) for worker in workers}
        self._fleet.answers(connected, self._seats, "the deployment of the plan")
        basis = (origin.epoch, origin.cut) if isinstance(origin, FromSnapshots) else None
        for seat in self._fleet.present.keys() - set(self._seats.values()):
            self._fleet.client(seat).stand_by.future(self.epoch, basis)  # no worker waits for it if it dies
        if self._cut is not None:
            self._secure(self._cut, self._timeouts.copy_s)
        self._under_way.clear()
        for one in self._retained:
            one.futures, one.is_done = None, False
        for one in list(self._retained):
            self._make_room()
            self._send(one)

    def _assigned(self, worker: PlanWorker, origin: Origin, start: Cut) -> Assignment:
        if isinstance(origin, FromTensors):
            names = [name for stage in self.plan.groups[worker.group] for name in self.needs[stage].names]
            origin = origin.only(dict.fromkeys(names))
        elif isinstance(origin, FromSnapshots):
            origin = origin.only(worker)
        return Assignment(
            self.epoch,
            self.plan,
            self.schedule,
            worker,
            self.seed,
            self._seats,
            origin,
            start,
            self._pace is not None,
            self._copies.folder,
        )

    def _secure(self, cut: WholeCut, timeout_s: float) -> None:
        """Copy snapshots that only one process keeps to another process.

        Args:
            cut: the cut of the snapshots.
            timeout_s: seconds to wait for the copies; if they take longer, training goes on meanwhile.
        """
        self._secured, hosts = dict(self._fleet.present), self._fleet.hosts
        same_plan = cut.plan is self.plan
        own_seats = self._seats if same_plan else {}
        holders = holders_of(self._fleet.kept(), cut.epoch, cut.cut)
        copies = copies_of(cut.plan, holders, hosts, own_seats, same_plan=same_plan)
        futures = {
            copy: self._fleet.client(copy.target).copy.future(copy.source, copy.worker, cut.cut, cut.epoch)
            for copy in copies
        }
        for copy, future in futures.items():
            future.add_done_callback(functools.partial(_copied_to, copy))
        if timeout_s:
            self._fleet.wait_at_most(futures, {copy: copy.target for copy in copies}, timeout_s)

    def _guarded(self, do: Callable[[], object]) -> None:
        """Call a function; if processes die in it, recover and call it again. Other failures end the training."""
        lost = _NOBODY if self._is_interrupted else None
        self._is_interrupted = False
        while True:
            try:
                if lost is not None:
                    self._recover(lost)
                    lost = None
                do()
                return
            except SeatsLost as error:
                lost = error
            except Exception as error:
                self._failure = error
                self.history.failed(error)
                raise
            except BaseException as error:  # Ctrl-C
                self._break_off(error)
                raise

    def _break_off(self, error: BaseException) -> None:
        """Note that work may be half done: the next call repeats it from the last snapshots, if there are any."""
        self._is_interrupted = self._pace is not None
        self._failure = None if self._is_interrupted else error

    def _recover(self, lost: SeatsLost) -> None:
        """After deaths, choose the plan to go on with, and deploy it from the newest available cut."""
        self._num_deaths += lost is not _NOBODY
        for seat, cause in lost.seats.items():
            self._note(f"{self._who(seat)} was lost: {cause}")
            self.history.death(self.events[-1], f"{STAGES}.{seat}")
        if self._num_deaths > self._timeouts.max_deaths:
            self._end(lost, f"{self._num_deaths} losses came in a row without a step done between them")
        if self._pace is None:
            self._end(lost, "no snapshots are taken (snapshots=None); a checkpoint is what it can go on from")
        self._fleet.abort(self._seats.values(), self.epoch)
        if self._cut is not None:
            self._secure(self._cut, 0.0)  # while the lost processes are replaced
        plan = self._plan_after(lost)
        if plan is not self.plan:
            self._note(f"training goes on with {len(plan.workers)} workers")
            self.history.note("plan", plan_in_words(plan, self.schedule.name))
            self.plan = plan
        cut, start = self._cut, Cut.start(plan)
        if cut is not None:
            same_plan = cut.plan is plan
            start = cut.cut if same_plan else start
            self._origin = FromSnapshots(cut.cut, cut.epoch, self._places(lost, cut, same_plan=same_plan), same_plan)
        words = self._how_it_goes_on()
        self._deploy(self._origin, start)
        self.history.note("restart", words)

    def _how_it_goes_on(self) -> str:
        num = sum(one.was_done for one in self._retained if one.num)
        first = next((f"step {one.step}" for one in self._retained if one.num), "the next step")
        return f"training goes on with {first}; it repeats {counted(num, 'step')} that had been done"

    def _places(self, lost: SeatsLost, cut: WholeCut, *, same_plan: bool) -> dict[PlanWorker, Place]:
        """Return where the snapshots of the newest whole cut are."""
        kept = nearest(holders_of(self._fleet.kept(), cut.epoch, cut.cut), self._seats)
        found: dict[PlanWorker, Place] = {**self._copies.newest, **kept}
        if missing := missing_groups(cut.plan, found, same_plan=same_plan):
            stages = ", ".join(str(stage) for group in missing for stage in cut.plan.groups[group])
            self._end(
                lost,
                f"the snapshot of stage {stages} was kept by processes that are gone as well; load the last "
                f"checkpoint, and see Snapshots(copy=) for a copy that outlives all processes",
            )
        return found if same_plan else {worker: found[worker] for worker in one_per_group(found)}

    def _note(self, event: str) -> None:
        self.events.append(event)
        logger.warning(event)

    def _note_once(self, *events: str) -> None:
        for event in events:
            if event not in self.events:
                self._note(event)

    def _plan_after(self, lost: SeatsLost) -> Plan:
        """Return the plan to go on with: without lost replicas if others are left, else the same with new processes.

        If no new processes start in time, the plan has fewer workers.
        """
        # The seats may belong to an earlier plan, if no worker had taken up this one.
        here = set(self.plan.workers)
        gone = {worker for worker, seat in self._seats.items() if seat in lost.seats and worker in here}
        fewer = without_workers(self.plan, gone) if gone else None
        if fewer is not None and self._can_run(fewer):
            return fewer
        missing, why = {}, ""
        for patience_s in (self._timeouts.replace_s, self._timeouts.start_s):  # at last, wait as long as at the start
            missing = self._fleet.take_seats(
                range(self._fleet.num), patience_s, enough=max(self._least, len(self.plan.workers))
            )
            if len(self._fleet.present) >= len(self.plan.workers):
                return self.plan
            plan = fewer or self.plan
            try:
                for worker in sorted(gone or here, reverse=True):
                    if len(plan.workers) > len(self._fleet.present):
                        for stage in reversed(self.plan.groups[worker.group]):
                            plan = merged(plan, stage)
            except PlanInvalid as error:
                why = str(error)
                continue
            if self._can_run(plan):
                return plan
            why = f"{self.schedule.name} cannot run without"
        self._end(SeatsLost(missing), f"no process came in its place, and {why}")

    @property
    def _least(self) -> int:
        """The fewest processes to run with: a snapshot is kept by another process than the one that took it."""
        return 1 if self._pace is None else 2

    def _can_run(self, plan: Plan) -> bool:
        if self._fleet.data_is_sharded and any(plan.micro_batches % stage.replicas for stage in plan.stages):
            return False
        try:
            self.schedule.check(plan)
        except ScheduleInvalid:
            return False
        return True

    def _end(self, lost: SeatsLost, why: str) -> NoReturn:
        seat, cause = next(iter(lost.seats.items()), (-1, "it is not known"))
        raise StageLost(
            f"{self._who(seat)} was lost ({cause}), and training cannot go on: {why}",
            stages=self._stages_at.get(seat, ()),
            cause=cause,
        )

    def _who(self, seat: int) -> str:
        stages = self._stages_at.get(seat, ())
        return f"the process of stage {', '.join(map(str, stages))}" if stages else f"process {seat}, of no stage,"

    # --- looking at it, from any thread -------------------------------------------------------------------------------

    @property
    def processes(self) -> ControlTarget | None:
        """The program of the stage processes; None before it runs."""
        return self._fleet.running

    @property
    def seats(self) -> dict[PlanWorker, int]:
        """The seat of each worker."""
        return self._seats.copy()

    @property
    def has_exchange(self) -> bool:
        """Whether an exchange averages the gradients of replicas."""
        return self._fleet.has_exchange

    def snapshots_panel(self) -> dict[str, Any] | None:
        """Return the data of the panel "snapshots"; None if none are taken."""
        if self._pace is None:
            return None
        return snapshots_panel(self.history.snapshots, self._pace, self._fleet.hosts, self._copies.place, STAGES)

    def client(self, worker: PlanWorker) -> Any:
        """Return the client of a worker's process."""
        return self._fleet.client(self._seats[worker])

    def _check(self) -> None:
        if self._failure is not None:
            raise TrainerFailed(
                f"this trainer failed before with {type(self._failure).__name__}: {self._failure}; make a new one, and "
                f"load the last checkpoint"
            ) from self._failure


def _copied_to(copy: Copy, future: Future[None]) -> None:
    if not future.cancelled() and (error := future.exception()) is not None:
        # A process that the copy needs is gone, so there will be another recovery, and other copies.
        logger.info("the snapshot of worker %s was not copied to seat %s: %s", copy.worker, copy.target, error)


def _copied(tensor: Tensor) -> Tensor:
    return tensor.detach().clone()
