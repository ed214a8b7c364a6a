"""Cuts of a run: where snapshots of all workers fit together although no worker stops, and where a run can go on.

A cut comes after a number of micro-batches. Workers do not stop there together: each worker
is at the cut right after its own step for the last round before it, wherever the others are.

    worker 0   F0 F1 F2 B0 U1 F3 B1 U2 ╎ F4 B2 U3 F5 B3 U4       cut 2: the actions left of the line, and
    worker 1      F0 F1 B0 U1 F2 B1 U2 ╎ F3 B2 U3 F4 B3 U4       the state of each worker at the line
    worker 2         F0 B0 U1 F1 B1 U2 ╎ F2 B2 U3 F3 B3 U4

Every value and gradient of the micro-batches before the cut was used left of the line,
because a step needs them all, so messages between workers need not be kept. Forwards left of
the line for micro-batches after the cut (F2 and F3 of worker 0) lose their graphs. They run
again with the same versions of the weights, since a version is a function of the micro-batch
alone. An earlier stage has forwarded all that a later one has, so each repeated forward finds
its inputs. Repeated forwards must not count again in running statistics; snapshots list them.

The actions from a cut on are `schedule.stream(plan, start=cut)`. The argument in full: docs/theory.md, "Cut".
"""

from __future__ import annotations

from math import lcm

from ropewalk.pipeline.actions import Action, ActionKind
from ropewalk.pipeline.plans import Plan, PlanWorker
from ropewalk.pipeline.schedules.schedule import Schedule
from ropewalk.pipeline.schedules.streams import Cut


def round_of(plan: Plan, schedule: Schedule) -> int:
    """Return the number of micro-batches after which all stages end a round together; with a flush, those of a step."""
    return lcm(*(schedule.round_size(plan, stage.id) for stage in plan.stages))


def can_cut(plan: Plan, schedule: Schedule, position: Cut) -> bool:
    """Return whether a run can be cut at a position.

    Args:
        plan: the plan of the run.
        schedule: the schedule of the run.
        position: a position of its stream (`stream.position`).
    """
    if schedule.flushes:
        return not position.num_accumulated
    return position.num_since % round_of(plan, schedule) == 0


def newest(plan: Plan, schedule: Schedule, cut: Cut, stage: int) -> int:
    """Return the version of a stage's weights at a cut."""
    return cut.versions[stage] + cut.num_since // schedule.round_size(plan, stage)


def last_step(plan: Plan, schedule: Schedule, cut: Cut, worker: PlanWorker) -> Action:
    """Return the action after which a worker is at a cut.

    A worker that has been at the cut since the pipeline was last empty has no such action left to perform.

    Args:
        plan: the plan of the run.
        schedule: the schedule of the run.
        cut: the cut.
        worker: the worker.
    """
    stage = plan.groups[worker.group][-1]  # a worker steps its stages in their order
    return Action(ActionKind.STEP, stage, worker.replica, version=newest(plan, schedule, cut, stage))
