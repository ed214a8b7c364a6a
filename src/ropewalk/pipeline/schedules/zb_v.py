"""ZB-V: two stages on each worker, laid out as a V, and no idle time (Qi et al., Zero Bubble, 2401.10241, section 6).

    stage 0 ▼        stage 2p-1 ▲        The first worker starts and ends each micro-batch, so it has the
    stage 1 ▼        stage 2p-2 ▲        loss at once; memory is balanced: each worker holds 2p halves of a
    stage 2 ▼──────▶ stage 2p-3 ▲        micro-batch, as much as the first worker under 1F1B.

    worker 0 | F0:0 F0:1 F0:2 F3:0 I3:0 W3:0 F3:1 I3:1 W3:1 F0:3 I0:0 W0:0 F3:2 I3:2 W3:2 I0:1 W0:1 ...
    worker 1 | .... F1:0 F2:0 F1:1 F2:1 I2:0 W2:0 F1:2 I1:0 W1:0 F2:2 I2:1 W2:1 F1:3 I1:1 W1:1 F2:3 ...

Worker d of p runs these parts: 2(p-d)-1 forwards down; d times forward up, forward down; p-d
times forward, I, W up; then forward, I, W down and up in turn. No idle time if t_F = t_B = t_W.
The order is that of the paper's figure, as in torch.distributed.pipelining.
"""

from __future__ import annotations

from collections.abc import Iterator

from ropewalk.errors import ScheduleInvalid
from ropewalk.pipeline.actions import ActionKind
from ropewalk.pipeline.plans import Plan, PlanWorker
from ropewalk.pipeline.schedules.schedule import Schedule, Task, turns
from ropewalk.pipeline.versions import warm_up


class ZeroBubbleV(Schedule):
    """Runs two stages on each worker, one down and one up the V; no idle time, and equal memory on all workers."""

    name = "zb_v"
    splits_backward = True
    uniform_replicas = True
    refuses_norm = True

    @property
    def stages_per_worker(self) -> int:
        return 2

    def group_of(self, stage: int, num_groups: int) -> int:
        return stage if stage < num_groups else 2 * num_groups - 1 - stage

    def in_flight(self, workers_after: int, replicas: int, micro_batches: int) -> int:
        return max(1, 2 * warm_up(workers_after, replicas))

    def between_halves(self, workers_after: int, replicas: int, micro_batches: int, num_stages: int) -> int:
        return max(1, warm_up(workers_after, replicas))

    def in_flight_at(self, plan: Plan, stage: int) -> int:
        return len(plan.stages) - stage

    def held_at(self, plan: Plan, stage: int) -> int:
        return len(plan.stages) - stage

    def held_by(self, plan: Plan, group: int) -> int:
        return len(plan.stages)

    def check(self, plan: Plan) -> None:
        super().check(plan)
        num_groups, replicas = len(plan.groups), plan.stages[0].replicas
        needed = 2 * num_groups * replicas
        if plan.micro_batches < needed:
            raise ScheduleInvalid(
                f"zb_v needs at least 2p = {2 * num_groups} micro-batches for each of {replicas} replica(s) of its "
                f"{num_groups} groups of devices, and the plan has {plan.micro_batches}; use micro_batches >= "
                f"{needed}, or zb_h1, which takes any number"
            )

    def order(self, plan: Plan, worker: PlanWorker) -> Iterator[Task]:
        down, up = plan.groups[worker.group]
        num_groups, rank = len(plan.groups), worker.group
        own = turns(plan, down, worker.replica)
        forward, input_gradient, weight_gradient = (
            {stage: iter([Task(kind, stage, b) for b in own]) for stage in (down, up)}
            for kind in (ActionKind.FORWARD, ActionKind.INPUT_GRADIENT, ActionKind.WEIGHT_GRADIENT)
        )
        for _ in range(2 * (num_groups - rank) - 1):
            yield next(forward[down])
        for _ in range(rank):
            yield next(forward[up])
            yield next(forward[down])
        for _ in range(num_groups - rank):
            yield next(forward[up])
            yield next(input_gradient[up])
            yield next(weight_gradient[up])
        for _ in range(len(own) - (num_groups - rank) - rank):
            yield from _at_most_one(forward[down])
            yield next(input_gradient[down])
            yield next(weight_gradient[down])
            yield next(forward[up])
            yield next(input_gradient[up])
            yield next(weight_gradient[up])
        for _ in range(rank):
            yield next(input_gradient[down])
            yield next(input_gradient[up])
        for _ in range(num_groups - rank):
            yield next(input_gradient[down])
            yield next(weight_gradient[down])
        yield from weight_gradient[up]
        yield from weight_gradient[down]


def _at_most_one(tasks: Iterator[Task]) -> Iterator[Task]:
    task = next(tasks, None)
    if task is not None:
        yield task
