"""GPipe: all forwards, then all backwards in reverse; one update (Huang et al. 2019, arXiv 1811.06965, section 2.2).

    worker 0 | F0 F1 F2 F3 .. .. .. .. .. .. B3 B3 B2 B2 B1 B1 B0 B0
    worker 1 | .. F0 F1 F2 F3 .. .. .. B3 B3 B2 B2 B1 B1 B0 B0 .. ..
    worker 2 | .. .. F0 F1 F2 F3 B3 B3 B2 B2 B1 B1 B0 B0 .. .. .. ..

Idle (p-1)(t_F + t_B + t_W). All micro-batches are in flight at once, so GPipe recomputes.
"""

from __future__ import annotations

from collections.abc import Iterator

from ropewalk.pipeline.actions import ActionKind
from ropewalk.pipeline.plans import Plan, PlanWorker
from ropewalk.pipeline.schedules.schedule import Schedule, Task, turns


class GPipe(Schedule):
    """All forwards, then all backwards; needs memory for every micro-batch."""

    name = "gpipe"

    def order(self, plan: Plan, worker: PlanWorker) -> Iterator[Task]:
        (stage,) = plan.groups[worker.group]
        own = turns(plan, stage, worker.replica)
        for b in own:
            yield Task(ActionKind.FORWARD, stage, b)
        for b in reversed(own):
            yield Task(ActionKind.BACKWARD, stage, b)

    def in_flight(self, workers_after: int, replicas: int, micro_batches: int) -> int:
        return -(-micro_batches // replicas)
