"""PipeDream-2BW: no flush, one update a mini-batch, two versions of the weights (Narayanan et al., 2006.09503, 3.1).

    worker 0 | F0 F1 .. .. B0 B0 F2 B1 B1 F3 B2 B2 F4 B3 B3 F5 B4 ...
    worker 1 | .. F0 B0 B0 F1 B1 B1 F2 B2 B2 F3 B3 B3 F4 B4 B4 F5 ...

With mini-batches of m = 2 pieces the updates come after B1, B3, B5. Mini-batch t uses version
max(t - 1, 0) at every stage, so W(t+1) = W(t) - lr * gradient at W(t-1): the gradient is one
update late at all stages. That needs m >= p: when the first piece of mini-batch t + 1 comes,
mini-batch t - 1 must be done.
"""

from __future__ import annotations

from ropewalk.errors import ScheduleInvalid
from ropewalk.pipeline.plans import Plan
from ropewalk.pipeline.schedules.pipedream import PipeDream
from ropewalk.pipeline.versions import double_buffered, warm_up


class PipeDream2BW(PipeDream):
    """Alternates forwards and backwards without end; updates once a mini-batch, with weights one update old."""

    name = "pipedream_2bw"

    def __init__(self, *, norm: bool = False, accumulate: int = 1) -> None:
        super().__init__(norm=norm, accumulate=accumulate)

    def extra_versions(self, workers_after: int, replicas: int, num_stages: int) -> int:
        return 1

    def lag(self, plan: Plan, stage: int) -> int:
        return 1

    def version(self, plan: Plan, stage: int, micro_batch: int) -> int:
        return double_buffered(micro_batch, micro_batches=plan.micro_batches)

    def update_size(self, replicas: int, micro_batches: int) -> int:
        return micro_batches

    def check(self, plan: Plan) -> None:
        super().check(plan)
        for stage in plan.stages:
            needed = warm_up(plan.workers_after(stage.id), stage.replicas) + 1
            if plan.micro_batches // stage.replicas < needed:
                raise ScheduleInvalid(
                    f"pipedream_2bw needs at least {needed} micro-batches for each of {stage.replicas} replica(s) of "
                    f"stage {stage.id}, so that two versions of the weights are enough, and the plan has "
                    f"{plan.micro_batches}; use micro_batches >= {needed * stage.replicas}"
                )
