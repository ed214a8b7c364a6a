"""The deployment of a plan: which process is which worker of it, in which epoch, from which state.

deploy: assign ─▶ every worker has its endpoint ─▶ connect ─▶ processes without a worker stand by
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ropewalk.errors import StageLost
from ropewalk.pipeline.plans import Plan, PlanWorker
from ropewalk.pipeline.schedules.schedule import Schedule
from ropewalk.pipeline.schedules.streams import Cut
from ropewalk.pipeline.tracing.model_graph import ModelGraph
from ropewalk.training.assignment import Assignment, FromSnapshots, FromTensors, Origin
from ropewalk.training.needs import Need, needs_of
from ropewalk.training.stage_fleet import SeatsLost, StageFleet


class StageDeployment:
    """The workers of a plan at their seats.

    Args:
        fleet: the processes.
        graph: the graph of the model.
        schedule: the order in which stages compute.
        takes_snapshots: whether workers take snapshots.
        folder: where they write them besides; None: nowhere.
    """

    def __init__(
        self, fleet: StageFleet, graph: ModelGraph, schedule: Schedule, *, takes_snapshots: bool, folder: str | None
    ) -> None:
        self.epoch = -1
        """Counts deployments."""
        self.seats: dict[PlanWorker, int] = {}
        self.needs: tuple[Need, ...] = ()
        """The inputs and tensors that each stage needs."""
        self._fleet = fleet
        self._graph = graph
        self._schedule = schedule
        self._takes_snapshots = takes_snapshots
        self._folder = folder
        self._stages_at: dict[int, tuple[int, ...]] = {}
        """By seat, the stages of the worker there. By the time one is lost, the plan may already be another one."""

    @property
    def least(self) -> int:
        """The fewest processes to run with: a snapshot is kept by another process than the one that took it."""
        return 2 if self._takes_snapshots else 1

    def begin(self, timeout_s: float) -> None:
        """Start the processes, and wait until all are there.

        Raises:
            StageLost: some did not start within `timeout_s` seconds after the last job had left the queue.
        """
        self._fleet.start()
        missing = self._fleet.take_seats(range(self._fleet.num), timeout_s, queues=True)
        if missing:
            raise StageLost(
                f"{len(missing)} of {self._fleet.num} processes did not start within {timeout_s:g} s; "
                f"the first is number {min(missing)}: {missing[min(missing)]}",
                cause=missing[min(missing)],
            )

    def make_seats(self, num: int, timeout_s: float) -> None:
        """Have at least `num` processes.

        Raises:
            StageLost: they did not start within `timeout_s` seconds; there are as many as before.
        """
        before = self._fleet.num
        if num <= before:
            return
        self._fleet.scale(num)
        missing = self._fleet.take_seats(range(num), timeout_s, enough=num)
        if len(self._fleet.present) < num:
            self._fleet.scale(before)
            raise StageLost(
                f"{num} processes are needed, and {len(missing)} did not start within {timeout_s:g} s "
                f"({next(iter(missing.values()), 'it is not known why')}); training stays as it was"
            )

    def deploy(self, plan: Plan, origin: Origin, start: Cut, seed: int, *, timeout_s: float) -> None:
        """Make the processes the workers of a plan.

        Args:
            plan: the plan.
            origin: the state that they start from.
            start: the position that they start at.
            seed: the seed of the run's random numbers.
            timeout_s: seconds to wait for processes that are starting.

        Raises:
            SeatsLost: there are too few processes, or one died meanwhile.
        """
        self.epoch += 1
        self._take_seats(plan, timeout_s)
        self.needs = needs_of(plan, self._graph)
        assigned = {
            worker: self.client(worker).assign.future(self._assigned(plan, worker, origin, start, seed))
            for worker in plan.workers
        }
        endpoints = self._fleet.answers(assigned, self.seats, "the deployment of the plan")
        connected = {worker: self.client(worker).connect.future(self.epoch, endpoints) for worker in plan.workers}
        self._fleet.answers(connected, self.seats, "the deployment of the plan")
        basis = (origin.epoch, origin.cut) if isinstance(origin, FromSnapshots) else None
        for seat in self._fleet.present.keys() - set(self.seats.values()):
            self._fleet.client(seat).stand_by.future(self.epoch, basis)  # no worker waits for it if it dies

    def client(self, worker: PlanWorker) -> Any:
        """Return the client of a worker's process."""
        return self._fleet.client(self.seats[worker])

    def stages_at(self, seat: int) -> tuple[int, ...]:
        """Return the stages of the worker that has, or had, this seat."""
        return self._stages_at.get(seat, ())

    def name_of(self, seat: int) -> str:
        """Return a description of the process at a seat."""
        stages = self.stages_at(seat)
        return f"the process of stage {', '.join(map(str, stages))}" if stages else f"process {seat}, of no stage,"

    def lost_workers(self, plan: Plan, lost: Mapping[int, str]) -> set[PlanWorker]:
        """Return the workers of a plan at the seats that were lost."""
        # The seats may belong to an earlier plan, if no worker had taken up this one.
        here = set(plan.workers)
        return {worker for worker, seat in self.seats.items() if seat in lost and worker in here}

    def _take_seats(self, plan: Plan, timeout_s: float) -> None:
        missing: dict[int, str] = {}
        if len(self._fleet.present) < len(plan.workers):  # new ones are starting
            missing = self._fleet.take_seats(
                range(self._fleet.num), timeout_s, enough=max(self.least, len(plan.workers))
            )
        seats = sorted(self._fleet.present)
        if len(seats) < len(plan.workers):
            raise SeatsLost(missing)
        self.seats = dict(zip(plan.workers, seats, strict=False))
        self._stages_at = {seat: tuple(plan.groups[worker.group]) for worker, seat in self.seats.items()}

    def _assigned(self, plan: Plan, worker: PlanWorker, origin: Origin, start: Cut, seed: int) -> Assignment:
        if isinstance(origin, FromTensors):
            names = [name for stage in plan.groups[worker.group] for name in self.needs[stage].names]
            origin = origin.only(dict.fromkeys(names))
        elif isinstance(origin, FromSnapshots):
            origin = origin.only(worker)
        return Assignment(
            self.epoch,
            plan,
            self._schedule,
            worker,
            seed,
            self.seats,
            origin,
            start,
            self._takes_snapshots,
            self._folder,
        )
