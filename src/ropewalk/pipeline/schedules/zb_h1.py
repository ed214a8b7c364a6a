"""ZB-H1: backwards in two halves, and no more memory than 1F1B (Qi et al., Zero Bubble, 2401.10241, section 2.1).

    worker 0 | F0 F1 F2 .. .. I0 W0 F3 I1 W1 I2 W2 I3 W3
    worker 1 | .. F0 F1 .. I0 F2 I1 W0 F3 I2 W1 I3 W2 W3
    worker 2 | .. .. F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3

The preceding stage waits only for I; W fills gaps. Stage s of p runs W s micro-batches after
I, so that every stage holds p. Idle (p-1)(t_F + t_B - t_W), if m >= p and W takes no longer
than F and no longer than I.
"""

from __future__ import annotations

from collections.abc import Iterator

from ropewalk.pipeline.actions import ActionKind
from ropewalk.pipeline.plans import Plan, PlanWorker
from ropewalk.pipeline.schedules.schedule import Schedule, Task, turns
from ropewalk.pipeline.versions import warm_up


class ZeroBubbleH1(Schedule):
    """Runs F, I and W in turn; has a third of 1F1B's idle time if all three take equally long."""

    name = "zb_h1"
    splits_backward = True
    uniform_replicas = True
    _slope = 1
    """Forwards before the first I for each later stage, and micro-batches from I to W for each earlier stage."""

    def order(self, plan: Plan, worker: PlanWorker) -> Iterator[Task]:
        (stage,) = plan.groups[worker.group]
        own = turns(plan, stage, worker.replica)
        ahead = self._slope * (len(plan.stages) - 1 - stage)
        late = self._slope * stage
        for j in range(len(own) + ahead + late):
            if j < len(own):
                yield Task(ActionKind.FORWARD, stage, own[j])
            if ahead <= j < len(own) + ahead:
                yield Task(ActionKind.INPUT_GRADIENT, stage, own[j - ahead])
            if ahead + late <= j:
                yield Task(ActionKind.WEIGHT_GRADIENT, stage, own[j - ahead - late])

    def in_flight(self, workers_after: int, replicas: int, micro_batches: int) -> int:
        return min(self._slope * warm_up(workers_after, replicas) + 1, -(-micro_batches // replicas))

    def held(self, workers_after: int, replicas: int, micro_batches: int, num_stages: int) -> int:
        return min(self._slope * (num_stages - 1) + 1, -(-micro_batches // replicas))

    def between_halves(self, workers_after: int, replicas: int, micro_batches: int, num_stages: int) -> int:
        late = self._slope * (num_stages - 1 - warm_up(workers_after, replicas))
        return min(late + 1, -(-micro_batches // replicas))
