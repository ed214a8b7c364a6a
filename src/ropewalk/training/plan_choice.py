"""The plan to go on with after deaths: waits for new processes, and decides for fewer workers if none come."""

from __future__ import annotations

from ropewalk.errors import PlanInvalid, ScheduleInvalid
from ropewalk.pipeline.plans import Plan
from ropewalk.pipeline.schedules.schedule import Schedule
from ropewalk.training.plan_repair import for_fewer, without_workers
from ropewalk.training.stage_deployment import StageDeployment
from ropewalk.training.stage_fleet import SeatsLost, StageFleet
from ropewalk.training.timeouts import TrainerTimeouts


class NoPlanLeft(Exception):
    """Training cannot go on with the processes that are left.

    Attributes:
        missing: the seats without a process, and why.
        why: why no plan can do without them.
    """

    def __init__(self, missing: dict[int, str], why: str) -> None:
        super().__init__(why)
        self.missing = missing
        self.why = why


class PlanChoice:
    """Chooses the plan to go on with.

    Args:
        fleet: the processes.
        deployment: says which worker was at which seat.
        schedule: has to be able to run the plan.
        timeouts: how long to wait for new processes.
    """

    def __init__(
        self, fleet: StageFleet, deployment: StageDeployment, schedule: Schedule, timeouts: TrainerTimeouts
    ) -> None:
        self._fleet = fleet
        self._deployment = deployment
        self._schedule = schedule
        self._timeouts = timeouts

    def after(self, plan: Plan, lost: SeatsLost) -> Plan:
        """Return the plan without lost replicas if others are left, else the same with new processes.

        If no new processes start in time, the plan has fewer workers.

        Raises:
            NoPlanLeft: no plan can do with the processes that are left.
        """
        gone = self._deployment.lost_workers(plan, lost.seats)
        fewer = without_workers(plan, gone) if gone else None
        if fewer is not None and self._can_run(fewer):
            return fewer
        missing, why = {}, ""
        least = max(self._deployment.least, len(plan.workers))
        for timeout_s, queues in ((self._timeouts.replace_s, False), (self._timeouts.start_s, True)):
            # At last, wait as long as at the start.
            missing = self._fleet.take_seats(range(self._fleet.num), timeout_s, enough=least, queues=queues)
            num = len(self._fleet.present)
            if num >= len(plan.workers):
                return plan
            try:
                smaller = for_fewer(fewer or plan, plan, gone or set(plan.workers), num)
            except PlanInvalid as error:
                why = str(error)
                continue
            if self._can_run(smaller):
                return smaller
            why = f"{self._schedule.name} cannot run without"
        raise NoPlanLeft(missing, why)

    def _can_run(self, plan: Plan) -> bool:
        if self._fleet.data_is_sharded and any(plan.micro_batches % stage.replicas for stage in plan.stages):
            return False
        try:
            self._schedule.check(plan)
        except ScheduleInvalid:
            return False
        return True
