"""PipeDream: one forward, one backward without a flush, and versions of the weights (Narayanan et al., SOSP'19).

    worker 0 | F0 F1 F2 .. .. .. .. B0 B0 F3 B1 B1 F4 B2 B2 F5 B3 B3 ...
    worker 1 | .. F0 F1 .. .. B0 B0 F2 B1 B1 F3 B2 B2 F4 B3 B3 F5 B4 ...
    worker 2 | .. .. F0 B0 B0 F1 B1 B1 F2 B2 B2 F3 B3 B3 F4 B4 B4 F5 ...

Section 3.2: replica k of a stage with r replicas runs pieces k, k + r, ...; a stage updates
after each round of r pieces. Section 3.3: weight stashing (a piece's backward uses the
version of its forward) and vertical sync (all stages use the version of the first). Unlike
the repository, no learning rate is scaled here, and the pipeline is not drained at the end of
an epoch.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from ropewalk.errors import ScheduleInvalid
from ropewalk.pipeline.actions import ActionKind
from ropewalk.pipeline.plans import Plan, PlanWorker
from ropewalk.pipeline.schedules.schedule import Schedule, Task
from ropewalk.pipeline.versions import stashed, synchronised, warm_up


class PipeDream(Schedule):
    """Alternates forwards and backwards without end; has no idle time, and stale weights.

    Args:
        vertical_sync: whether every stage uses the version that the first stage has when it admits a piece; all stages
            then need equally many replicas.
        norm: refused; see `Schedule.refuses_norm`.
        accumulate: refused above 1, since stages update at different times.
    """

    name = "pipedream"
    flushes = False
    refuses_norm = True

    def __init__(self, *, vertical_sync: bool = False, norm: bool = False, accumulate: int = 1) -> None:
        super().__init__(norm=norm, accumulate=accumulate)
        self.vertical_sync = vertical_sync

    def order(self, plan: Plan, worker: PlanWorker) -> Iterator[Task]:
        (stage,) = plan.groups[worker.group]
        replicas = plan.stages[stage].replicas
        ahead = warm_up(plan.workers_after(stage), replicas)
        for j in count():
            yield Task(ActionKind.FORWARD, stage, j * replicas + worker.replica)
            if ahead <= j:
                yield Task(ActionKind.BACKWARD, stage, (j - ahead) * replicas + worker.replica)

    def in_flight(self, workers_after: int, replicas: int, micro_batches: int) -> int:
        return warm_up(workers_after, replicas) + 1

    def extra_versions(self, workers_after: int, replicas: int, num_stages: int) -> int:
        return num_stages - 1 if self.vertical_sync else warm_up(workers_after, replicas)

    def lag(self, plan: Plan, stage: int) -> int:
        return stage if self.vertical_sync else 0

    def version(self, plan: Plan, stage: int, micro_batch: int) -> int:
        replicas = plan.stages[stage].replicas
        if self.vertical_sync:
            return synchronised(micro_batch, num_stages=len(plan.stages), replicas=replicas)
        return stashed(micro_batch, workers_after=plan.workers_after(stage), replicas=replicas)

    def update_size(self, replicas: int, micro_batches: int) -> int:
        return replicas

    def check(self, plan: Plan) -> None:
        super().check(plan)
        replicas = [stage.replicas for stage in plan.stages]
        if self.vertical_sync and len(set(replicas)) > 1:
            raise ScheduleInvalid(
                f"pipedream with vertical sync needs equally many replicas of every stage, not {replicas}; without it, "
                f"weight stashing alone takes unequal ones"
            )
        for tie in plan.tied:
            if len({replicas[stage] for stage in tie.stages}) > 1:
                raise ScheduleInvalid(
                    f"pipedream updates a stage after as many pieces as it has replicas, and stages {tie.stages}, that "
                    f"share {tie.parameter!r}, have {[replicas[stage] for stage in tie.stages]}; give them equally "
                    f"many, or take pipedream_2bw or a schedule with a flush"
                )
