"""Interleaved 1F1B: v stages on each worker, and 1/v of the idle time (Narayanan et al., 2104.04473, section 2.2).

    worker 0 | F0:0 F0:1 F2:0 F2:1 F0:2 .... B2:0 B2:0 F0:3 B2:1 B2:1 F2:2 B0:0 B0:0 F2:3 B0:1 B0:1 ...
    worker 1 | .... F1:0 F1:1 F3:0 B3:0 B3:0 F3:1 B3:1 B3:1 F1:2 B1:0 B1:0 F1:3 B1:1 B1:1 F3:2 B3:2 ...

Worker d has stages d, p+d, 2p+d, ... Micro-batches go in groups of p: a worker runs p of
them through its first stage, then through its second, and so on; backwards go likewise from
its last stage. Worker d runs the first 2(p-d-1) + (v-1)p forwards of this sequence ahead,
then alternates. Idle (p-1)(t_F + t_B + t_W) / v, at the cost of v times the messages.
"""

from __future__ import annotations

from collections.abc import Iterator

from ropewalk.errors import ScheduleInvalid
from ropewalk.pipeline.actions import ActionKind
from ropewalk.pipeline.plans import Plan, PlanWorker
from ropewalk.pipeline.schedules.schedule import Schedule, Task, turns
from ropewalk.pipeline.versions import warm_up


class Interleaved(Schedule):
    """Alternates forwards and backwards on workers that have several stages each.

    Args:
        chunks: number of stages on each worker, at least 2.
        norm: whether steps wait for the global norm of the gradients.
        accumulate: number of steps for each update.

    Raises:
        ScheduleInvalid: `chunks` is below 2.
    """

    name = "interleaved"
    uniform_replicas = True

    def __init__(self, *, chunks: int = 2, norm: bool = False, accumulate: int = 1) -> None:
        super().__init__(norm=norm, accumulate=accumulate)
        if chunks < 2:
            raise ScheduleInvalid(
                f"interleaved needs at least 2 chunks on each worker, not {chunks}; for 1, use one_f_one_b"
            )
        self.chunks = chunks

    @property
    def stages_per_worker(self) -> int:
        return self.chunks

    def group_of(self, stage: int, num_groups: int) -> int:
        return stage % num_groups

    def order(self, plan: Plan, worker: PlanWorker) -> Iterator[Task]:
        own = turns(plan, worker.group, worker.replica)
        num_groups, num = len(plan.groups), len(own) * self.chunks
        ahead = self._ahead(num_groups, worker.group)
        for k in range(num + ahead):
            if k < num:
                chunk, j = self._place(k, num_groups)
                yield Task(ActionKind.FORWARD, worker.group + chunk * num_groups, own[j])
            if ahead <= k:
                chunk, j = self._place(k - ahead, num_groups)
                yield Task(ActionKind.BACKWARD, worker.group + (self.chunks - 1 - chunk) * num_groups, own[j])

    def in_flight(self, workers_after: int, replicas: int, micro_batches: int) -> int:
        return min(2 * warm_up(workers_after, replicas) + 1, -(-micro_batches // replicas))

    def in_flight_at(self, plan: Plan, stage: int) -> int:
        num_groups = len(plan.groups)
        chunk, group = divmod(stage, num_groups)
        # The last micro-batch of a group of p is in flight with the most others. In the worker's sequence, this number
        # of backwards comes before the next one of the stage; each round of p * v has p of the stage.
        behind = num_groups - 1 - 2 * (num_groups - 1 - group) - 2 * (self.chunks - 1 - chunk) * num_groups
        rounds, rest = divmod(behind, num_groups * self.chunks)
        most = num_groups - rounds * num_groups - min(rest, num_groups)
        return min(most, plan.micro_batches // plan.stages[stage].replicas)

    def held_at(self, plan: Plan, stage: int) -> int:
        return self.in_flight_at(plan, stage)

    def held_by(self, plan: Plan, group: int) -> int:
        num = plan.micro_batches // plan.stages[group].replicas * self.chunks
        return min(self._ahead(len(plan.groups), group) + 1, num)

    def check(self, plan: Plan) -> None:
        super().check(plan)
        num_groups, replicas = len(plan.groups), plan.stages[0].replicas
        if plan.micro_batches % (num_groups * replicas):
            raise ScheduleInvalid(
                f"interleaved runs as many micro-batches at a time as there are groups of devices, {num_groups}, on "
                f"each of {replicas} replica(s), and the plan has {plan.micro_batches} micro-batches; use a multiple "
                f"of {num_groups * replicas}"
            )

    def _ahead(self, num_groups: int, group: int) -> int:
        return 2 * (num_groups - group - 1) + (self.chunks - 1) * num_groups

    def _place(self, k: int, num_groups: int) -> tuple[int, int]:
        """The stage (of a worker, in the order of the data) and the micro-batch of the worker's k-th action."""
        several, rest = divmod(k, num_groups * self.chunks)
        chunk, place = divmod(rest, num_groups)
        return chunk, several * num_groups + place
