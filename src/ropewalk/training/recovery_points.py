"""The cuts from which training can go on after a death: which snapshots are kept, where, and which must be copied.

    a snapshot is due ─▶ asked ─▶ arrived at the keepers of all workers ─▶ whole: the newest recovery point
                                                                             │
    a process that keeps a part of it is lost, or has come ─▶ secure: copies ┘

`SnapshotPace` decides when a snapshot is due, and `snapshot_places` where it is kept and copied.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from ropewalk.pipeline.plans import Plan, PlanWorker
from ropewalk.pipeline.resuming import can_cut
from ropewalk.pipeline.schedules.schedule import Schedule
from ropewalk.pipeline.schedules.streams import Cut
from ropewalk.pipeline.stages.snapshots import WorkerSnapshot
from ropewalk.training.assignment import PeerSnapshot, Place, Presence
from ropewalk.training.further_copies import FurtherCopies
from ropewalk.training.history import TrainingHistory
from ropewalk.training.panels.snapshots import snapshots_panel
from ropewalk.training.retained_steps import Retained
from ropewalk.training.snapshot_pace import SnapshotPace
from ropewalk.training.snapshot_places import Copy, WholeCut, copies_of, holders_of, keepers_of, nearest
from ropewalk.training.stage_fleet import STAGES, StageFleet

logger = logging.getLogger(__name__)


class RecoveryPoints:
    """The snapshots of one trainer.

    Args:
        fleet: the processes that keep them.
        pace: says when one is due; None: none are taken.
        copies: further copies of the newest ones.
        history: is told of each snapshot.
    """

    def __init__(
        self, fleet: StageFleet, pace: SnapshotPace | None, copies: FurtherCopies, history: TrainingHistory
    ) -> None:
        self.pace = pace
        self.copies = copies
        self.newest: WholeCut | None = None
        """The newest cut of which all snapshots are kept; None: training goes on from its origin."""
        self._fleet = fleet
        self._history = history
        self._kept: dict[Cut, dict[PlanWorker, PeerSnapshot]] = {}
        """By cut, the workers whose snapshots of it have reached their keepers."""
        self._secured: dict[int, Presence] = {}
        """The processes present when it was last ensured that every snapshot of the cut is kept by two processes."""

    # --- while training goes on ---------------------------------------------------------------------------------------

    def keepers_after(self, one: Retained, plan: Plan, schedule: Schedule) -> dict[int, int]:
        """Return, by seat, the keeper of the snapshot that is taken after an admission; empty if none is due."""
        # Not at a drain: stages may have passed it already, and a cut without their snapshots can never become whole.
        if self.pace is None or one.num == 0 or one.drains or one.position is None:
            return {}
        if not self.pace.admitted(one.size_bytes, can_cut=can_cut(plan, schedule, one.position)):
            return {}
        keepers = keepers_of(self._fleet.hosts)
        self._history.snapshots.asked(one.step + 1, one.position, plan.workers, self._history.now())
        return keepers

    def arrived(self, worker: PlanWorker, kept: Sequence[PeerSnapshot]) -> None:
        """Note snapshots of a worker that have reached their keepers."""
        for one in kept:
            self._kept.setdefault(one.cut, {})[worker] = one
            self._history.snapshots.arrived(worker, one)

    def newest_whole(self, plan: Plan, positions: Sequence[Cut | None], epoch: int) -> int | None:
        """Go on from the newest of these positions, after a death, of which all snapshots are kept.

        Args:
            plan: the present plan.
            positions: the positions after the admissions that are retained.
            epoch: the present epoch.

        Returns:
            The index of that position; None if there is none yet.
        """
        if not self._kept:
            return None
        wanted = set(plan.workers)
        whole = [
            index
            for index, position in enumerate(positions)
            if position is not None and self._kept.get(position, {}).keys() >= wanted
        ]
        if not whole:
            return None
        newest = positions[whole[-1]]
        assert newest is not None
        if not self._has_copies(newest, epoch):
            return None
        self._became_whole(WholeCut(newest, epoch, plan))
        self._kept = {cut: workers for cut, workers in self._kept.items() if cut in positions[whole[-1] + 1 :]}
        return whole[-1]

    def _has_copies(self, cut: Cut, epoch: int) -> bool:
        def fetch(seat: int, worker: PlanWorker) -> Future[WorkerSnapshot]:
            return self._fleet.client(seat).snapshot.future(worker, cut, epoch)

        return self.copies.are_here(cut, self._kept[cut], fetch, is_alone=len(self._fleet.present) < 2)

    def _became_whole(self, newest: WholeCut) -> None:
        assert self.pace is not None
        kept = self._kept[newest.cut]
        self.copies.became_whole(newest.cut, kept)
        self.newest = newest
        self._history.snapshots.became_whole(newest.cut, self._history.now())
        self.pace.whole(max(one.took_s for one in kept.values()))

    # --- after deaths -------------------------------------------------------------------------------------------------

    def restarted(self) -> None:
        """Note that training goes on from the newest whole cut; others will not become whole."""
        self._kept.clear()
        self.copies.restarted()
        self._history.snapshots.restarted()
        if self.pace is not None:
            self.pace.restarted()

    def clear(self) -> None:
        """Forget all: training goes on from another state."""
        self.newest = None
        self.copies.clear()
        self._history.snapshots.clear()

    def places(self, own_seats: Mapping[PlanWorker, int]) -> dict[PlanWorker, Place]:
        """Return where the snapshots of the newest whole cut are, as near as possible to the seats of the workers."""
        assert self.newest is not None
        holders = holders_of(self._fleet.kept(), self.newest.epoch, self.newest.cut)
        return {**self.copies.newest, **nearest(holders, own_seats)}

    def secure_if_changed(self, plan: Plan, seats: Mapping[PlanWorker, int]) -> None:
        """Secure the newest whole cut if a process that only keeps snapshots was lost, or has started."""
        if self.newest is not None and self._fleet.present != self._secured:
            self.secure(plan, seats, 0.0)

    def secure(self, plan: Plan, seats: Mapping[PlanWorker, int], timeout_s: float) -> None:
        """Copy snapshots of the newest whole cut that only one process keeps to another process.

        Args:
            plan: the present plan.
            seats: the seats of its workers.
            timeout_s: seconds to wait for the copies; if they take longer, training goes on meanwhile.
        """
        newest = self.newest
        if newest is None:
            return
        self._secured, hosts = dict(self._fleet.present), self._fleet.hosts
        same_plan = newest.plan is plan
        holders = holders_of(self._fleet.kept(), newest.epoch, newest.cut)
        copies = copies_of(newest.plan, holders, hosts, seats if same_plan else {}, same_plan=same_plan)
        futures = {
            copy: self._fleet.client(copy.target).copy.future(copy.source, copy.worker, newest.cut, newest.epoch)
            for copy in copies
        }
        for copy, future in futures.items():
            future.add_done_callback(functools.partial(_copied_to, copy))
        if timeout_s:
            self._fleet.wait_at_most(futures, {copy: copy.target for copy in copies}, timeout_s)

    # --- looking at it, from any thread -------------------------------------------------------------------------------

    def panel(self) -> dict[str, Any] | None:
        """Return the data of the panel "snapshots"; None if none are taken."""
        if self.pace is None:
            return None
        return snapshots_panel(self._history.snapshots, self.pace, self._fleet.hosts, self.copies.place, STAGES)


def _copied_to(copy: Copy, future: Future[None]) -> None:
    if not future.cancelled() and (error := future.exception()) is not None:
        # A process that the copy needs is gone, so there will be another recovery, and other copies.
        logger.info("the snapshot of worker %s was not copied to seat %s: %s", copy.worker, copy.target, error)
