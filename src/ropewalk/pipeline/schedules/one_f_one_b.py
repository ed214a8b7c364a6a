"""One forward, one backward, with a flush after each step (PipeDream-Flush in 2006.09503, section 3.2; DAPPLE).

    worker 0 | F0 F1 F2 .. .. .. .. B0 B0 F3 B1 B1 .. B2 B2 .. B3 B3
    worker 1 | .. F0 F1 .. .. B0 B0 F2 B1 B1 F3 B2 B2 .. B3 B3 .. ..
    worker 2 | .. .. F0 B0 B0 F1 B1 B1 F2 B2 B2 F3 B3 B3 .. .. .. ..

As idle as GPipe, but a stage holds only the micro-batches that it forwards until its first
one comes back: one more than its warm-up, ceil(workers after / replicas).
"""

from __future__ import annotations

from collections.abc import Iterator

from ropewalk.pipeline.actions import ActionKind
from ropewalk.pipeline.plans import Plan, PlanWorker
from ropewalk.pipeline.schedules.schedule import Schedule, Task, turns
from ropewalk.pipeline.versions import warm_up


class OneFOneB(Schedule):
    """Alternates forwards and backwards; has the least memory of the schedules that flush and keep backwards whole."""

    name = "one_f_one_b"

    def order(self, plan: Plan, worker: PlanWorker) -> Iterator[Task]:
        (stage,) = plan.groups[worker.group]
        own = turns(plan, stage, worker.replica)
        ahead = warm_up(plan.workers_after(stage), plan.stages[stage].replicas)
        for j in range(len(own) + ahead):
            if j < len(own):
                yield Task(ActionKind.FORWARD, stage, own[j])
            if ahead <= j:
                yield Task(ActionKind.BACKWARD, stage, own[j - ahead])

    def in_flight(self, workers_after: int, replicas: int, micro_batches: int) -> int:
        return min(warm_up(workers_after, replicas) + 1, -(-micro_batches // replicas))
