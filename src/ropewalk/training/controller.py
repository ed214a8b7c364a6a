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

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, NoReturn, TypeVar

from torch import Tensor

from ropewalk.errors import StageLost, TrainerFailed
from ropewalk.pipeline.plan_table import plan_in_words
from ropewalk.pipeline.plans import Plan, PlanWorker
from ropewalk.pipeline.schedules.schedule import Schedule
from ropewalk.pipeline.schedules.streams import Cut
from ropewalk.pipeline.stages.micro_batches import MiniBatch
from ropewalk.pipeline.step_metrics import StepMetrics
from ropewalk.pipeline.tracing.model_graph import ModelGraph
from ropewalk.pipeline.tracing.trees import map_tensors
from ropewalk.quantities import counted
from ropewalk.training.assignment import Admission, FromSnapshots, Origin, Place
from ropewalk.training.further_copies import FurtherCopies
from ropewalk.training.history import TrainingHistory
from ropewalk.training.needs import Need, shares_of
from ropewalk.training.plan_choice import NoPlanLeft, PlanChoice
from ropewalk.training.positions import behind, is_empty
from ropewalk.training.recovery_points import RecoveryPoints
from ropewalk.training.retained_steps import Retained, RetainedSteps
from ropewalk.training.snapshot_pace import SnapshotPace
from ropewalk.training.snapshot_places import WholeCut, missing_groups, one_per_group
from ropewalk.training.stage_deployment import StageDeployment
from ropewalk.training.stage_fleet import STAGES, SeatsLost, StageFleet
from ropewalk.training.step_losses import StepLosses
from ropewalk.training.timeouts import TrainerTimeouts

logger = logging.getLogger(__name__)

T = TypeVar("T")

_NOBODY = SeatsLost({})
"""A recovery in which no process was lost."""


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
        self.num_steps = 0
        """The number of admitted steps of the run, those of a loaded state included."""
        self.events: list[str] = []
        """Events that a user should know of, oldest first."""
        self.history = TrainingHistory()
        self._fleet = fleet
        self._origin: Origin | None = origin
        """What training goes on from; None: it is not needed, as there are snapshots."""
        self._timeouts = timeouts
        self._points = RecoveryPoints(fleet, pace, copies, self.history)
        self._deployment = StageDeployment(
            fleet, graph, schedule, takes_snapshots=pace is not None, folder=copies.folder
        )
        self._choice = PlanChoice(fleet, self._deployment, schedule, timeouts)
        self._retained = RetainedSteps()
        self._number = 0
        self._position = Cut.start(plan)
        """The position after everything that was admitted."""
        self._losses = StepLosses(flushes=schedule.flushes)
        self._done_at = 0.0
        self._num_deaths = 0
        self._failure: BaseException | None = None
        self._is_interrupted = False

    # --- life cycle ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the processes and deploy the plan."""
        self._deployment.begin(self._timeouts.start_s)
        self._guarded(lambda: self._deploy(Cut.start(self.plan)))
        self.history.note("plan", plan_in_words(self.plan, self.schedule.name))

    def close(self, grace_s: float | None = None) -> None:
        """End all processes; may be called twice."""
        self._fleet.close(grace_s)
        self._points.copies.close()

    # --- steps --------------------------------------------------------------------------------------------------------

    def admit(self, num: int, batch: MiniBatch | None, metrics: StepMetrics) -> None:
        """Hand a mini-batch to the stages; waits only while too many steps are under way.

        Args:
            num: the number of its micro-batches.
            batch: all of them; None if stages read the data by themselves.
            metrics: receives the losses.
        """
        self._check()
        # A short mini-batch must not share its update with the next one's pieces.
        drains = not self.schedule.flushes and num < self.plan.micro_batches
        self._guarded(self._make_room)
        if batch is not None and self._points.pace is not None:  # it may be sent again after the caller has changed it
            batch = replace(batch, inputs=map_tensors(_copied, batch.inputs), labels=map_tensors(_copied, batch.labels))
        one = Retained(self.num_steps, num, batch, metrics, drains)
        self._retained.add(one)
        try:
            self._guarded(lambda: self._send(one))
        except KeyboardInterrupt:  # the step is not admitted, and the caller may try again
            self._retained.remove(one)
            raise
        self.num_steps += 1

    def drain(self) -> None:
        """Finish everything that was admitted."""
        self._check()
        if not is_empty(self._position):
            self._admit_and_finish(Retained(0, 0, None, None, drains=True))
        self._guarded(lambda: self._finish(lambda: not self._retained.num_under_way))

    def _admit_and_finish(self, one: Retained) -> None:
        self._retained.add(one)
        self._guarded(lambda: self._send(one))
        self._guarded(lambda: self._finish(lambda: not self._retained.num_under_way))

    def wait_until(self, done: Callable[[], bool]) -> None:
        """Wait until a condition that admitted steps bring about is true; drains if nothing less makes it true."""
        self._check()
        self._guarded(lambda: self._finish(lambda: done() or not self._retained.num_under_way))
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
                return self._fleet.answers(futures, self._deployment.seats, what)
            except SeatsLost as lost:
                self._guarded(lambda lost=lost: self._recover(lost))
            except BaseException as error:  # a stage that raised has dropped its state
                self._break_off(error)
                raise

    def redeploy(self, plan: Plan, origin: Origin, *, num_steps: int | None = None, seed: int | None = None) -> None:
        """Go on with another plan or from another state; nothing is in flight.

        Args:
            plan: the plan to go on with.
            origin: the state to go on from.
            num_steps: the number of steps that the state is of; None: unchanged.
            seed: the seed of the run's random numbers; None: unchanged.

        Raises:
            StageLost: the processes for it did not start; nothing has changed.
        """
        self._check()
        self._deployment.make_seats(len(plan.workers), self._timeouts.start_s)
        self._retained.clear()
        self.plan, self._origin = plan, origin
        self._points.clear()
        # With all that the next call goes on with if this one is interrupted from here on.
        self.seed = self.seed if seed is None else seed
        self.num_steps = self.num_steps if num_steps is None else num_steps
        self._guarded(lambda: self._deploy(Cut.start(plan)))
        self.history.note("plan", plan_in_words(self.plan, self.schedule.name))

    # --- admissions ---------------------------------------------------------------------------------------------------

    def _make_room(self) -> None:
        self._finish(lambda: self._retained.num_under_way < self.schedule.steps_ahead(self.plan))

    def _finish(self, is_enough: Callable[[], bool]) -> None:
        while not is_enough():
            self._settle(self._retained.first_under_way)

    def _send(self, one: Retained) -> None:
        """Send an admission to the workers of this epoch; after a recovery it has been sent in an earlier one."""
        if one.futures is not None:
            return
        first, plan = self._position.next_micro_batch, self.plan
        self._losses.expect(one.metrics, first, one.num)
        shares = shares_of(plan, self.needs, one.batch, first)
        one.position = self._position = behind(plan, self.schedule, self._position, one.num, drains=one.drains)
        keepers = self._points.keepers_after(one, plan, self.schedule)
        number, self._number = self._number, self._number + 1
        one.futures, one.sent_s = {}, time.monotonic()
        self._retained.sent(one)
        for worker in plan.workers:
            admission = Admission(
                self.epoch,
                number,
                one.num,
                tuple(shares[worker].whole),
                tuple(shares[worker].pieces),
                one.step,
                drains=one.drains,
                keeper=keepers.get(self._deployment.seats[worker]),
            )
            one.futures[worker] = self.client(worker).work.future(admission)

    def _settle(self, one: Retained) -> None:
        """Wait for an admission, and process its outcome."""
        assert one.futures is not None
        outcomes = self._fleet.answers(one.futures, self._deployment.seats, "a step")
        for worker, outcome in outcomes.items():
            self._losses.arrived(one.metrics, outcome)
            if outcome.lost_snapshots and self._points.pace is not None:
                self._points.pace.restarted()  # the next snapshot gets a keeper that lives
                for event in outcome.lost_snapshots:
                    if event not in self.events:
                        self._note(event)
            self._points.arrived(worker, outcome.kept)
        self._note_done(one)
        self._forget()
        self._fleet.look_for(range(self._fleet.num))
        self._points.secure_if_changed(self.plan, self._deployment.seats)

    def _note_done(self, one: Retained) -> None:
        is_first = self._retained.done(one)
        self._done_at, before = time.monotonic(), self._done_at
        if self._points.pace is not None and before and one.num:
            self._points.pace.step_took(self._done_at - before)
        if one.num:
            self.history.step_done(one.sent_s, self._done_at, is_repeated=not is_first)
        if is_first:  # repeating one is not progress if a death follows each time
            self._num_deaths = 0

    def _forget(self) -> None:
        """Drop what precedes the newest cut of which all snapshots are kept."""
        if self._points.pace is None:  # without snapshots no step is repeated
            self._retained.drop_done()
            self._origin = None
            return
        newest = self._points.newest_whole(self.plan, self._retained.positions, self.epoch)
        if newest is not None:
            self._retained.drop(newest + 1)
            self._origin = None

    # --- deployment and recovery --------------------------------------------------------------------------------------

    def _deploy(self, start: Cut) -> None:
        """Make the processes the workers of the plan, and admit the retained steps again."""
        self._number = 0
        self._losses.clear()
        self._points.restarted()
        self._done_at = 0.0
        self._position = start
        assert self._origin is not None
        self._deployment.deploy(self.plan, self._origin, start, self.seed, timeout_s=self._timeouts.replace_s)
        self._points.secure(self.plan, self._deployment.seats, self._timeouts.copy_s)
        for one in self._retained.restart():
            self._make_room()
            self._send(one)

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
        self._is_interrupted = self._points.pace is not None
        self._failure = None if self._is_interrupted else error

    def _recover(self, lost: SeatsLost) -> None:
        """After deaths, choose the plan to go on with, and deploy it from the newest available cut."""
        self._count_deaths(lost)
        self._fleet.abort(self._deployment.seats.values(), self.epoch)
        self._points.secure(self.plan, self._deployment.seats, 0.0)  # while the lost processes are replaced
        plan = self._plan_after(lost)
        if plan is not self.plan:
            self._note(f"training goes on with {counted(len(plan.workers), 'worker')}")
            self.history.note("plan", plan_in_words(plan, self.schedule.name))
            self.plan = plan
        start = Cut.start(plan)
        if (newest := self._points.newest) is not None:
            same_plan = newest.plan is plan
            start = newest.cut if same_plan else start
            places = self._places(lost, newest, same_plan=same_plan)
            self._origin = FromSnapshots(newest.cut, newest.epoch, places, same_plan)
        words = str(self._retained)
        self._deploy(start)
        self.history.note("restart", words)

    def _count_deaths(self, lost: SeatsLost) -> None:
        self._num_deaths += lost is not _NOBODY
        goes_on = self._num_deaths <= self._timeouts.max_deaths and self._points.pace is not None
        for seat, cause in lost.seats.items():
            is_last = seat == next(reversed(lost.seats))
            follows = f"; {self._retained}" if goes_on and is_last else ""
            self._note(f"{self._deployment.name_of(seat)} was lost: {cause}{follows}")
            self.history.death(self.events[-1], f"{STAGES}.{seat}")
        if self._num_deaths > self._timeouts.max_deaths:
            self._end(lost, f"{self._num_deaths} losses came in a row without a step done between them")
        if self._points.pace is None:
            self._end(lost, "no snapshots are taken (snapshots=None); a checkpoint is what it can go on from")

    def _places(self, lost: SeatsLost, newest: WholeCut, *, same_plan: bool) -> dict[PlanWorker, Place]:
        """Return where the snapshots of the newest whole cut are."""
        found = self._points.places(self._deployment.seats)
        if missing := missing_groups(newest.plan, found, same_plan=same_plan):
            stages = ", ".join(str(stage) for group in missing for stage in newest.plan.groups[group])
            self._end(
                lost,
                f"the snapshot of stage {stages} was kept by processes that are gone as well; load the last "
                f"checkpoint, and see Snapshots(copy=) for a copy that outlives all processes",
            )
        return found if same_plan else {worker: found[worker] for worker in one_per_group(found)}

    def _plan_after(self, lost: SeatsLost) -> Plan:
        try:
            return self._choice.after(self.plan, lost)
        except NoPlanLeft as error:
            left = error
        self._end(SeatsLost(left.missing), f"no process came in its place, and {left.why}")

    def _note(self, event: str) -> None:
        self.events.append(event)
        logger.warning(event)

    def _end(self, lost: SeatsLost, why: str) -> NoReturn:
        seat, cause = next(iter(lost.seats.items()), (-1, "it is not known"))
        raise StageLost(
            f"{self._deployment.name_of(seat)} was lost ({cause}), and training cannot go on: {why}",
            stages=self._deployment.stages_at(seat),
            cause=cause,
        )

    # --- looking at it, from any thread -------------------------------------------------------------------------------

    @property
    def seats(self) -> dict[PlanWorker, int]:
        """The seat of each worker."""
        return self._deployment.seats.copy()

    @property
    def epoch(self) -> int:
        """As in `StageDeployment`."""
        return self._deployment.epoch

    @property
    def needs(self) -> tuple[Need, ...]:
        """As in `StageDeployment`."""
        return self._deployment.needs

    @property
    def has_exchange(self) -> bool:
        """Whether an exchange averages the gradients of replicas."""
        return self._fleet.has_exchange

    def snapshots_panel(self) -> dict[str, Any] | None:
        """Return the data of the panel "snapshots"; None if none are taken."""
        return self._points.panel()

    def client(self, worker: PlanWorker) -> Any:
        """Return the client of a worker's process."""
        return self._deployment.client(worker)

    def _check(self) -> None:
        if self._failure is not None:
            raise TrainerFailed(
                f"this trainer failed before with {type(self._failure).__name__}: {self._failure}; make a new one, and "
                f"load the last checkpoint"
            ) from self._failure


def _copied(tensor: Tensor) -> Tensor:
    return tensor.detach().clone()
