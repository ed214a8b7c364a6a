"""Cuts of a run: where the state of each worker can be taken while all go on, and how a run goes on from there.

A cut lies behind so many micro-batches. Nobody stops there together: each worker is at the
cut right after its own step for the last round before it, wherever others are then.

    worker 0   F0 F1 F2 B0 U1 F3 B1 U2 ╎ F4 B2 U3 F5 B3 U4       cut 2: what is left of the line, and
    worker 1      F0 F1 B0 U1 F2 B1 U2 ╎ F3 B2 U3 F4 B3 U4       the state of each worker on the line
    worker 2         F0 B0 U1 F1 B1 U2 ╎ F2 B2 U3 F3 B3 U4

Every value and gradient of the micro-batches before the cut was used on the left, because
a step needs them all, so nothing that is under way between workers has to be kept. What
was forwarded on the left for micro-batches behind the cut (F2 and F3 of worker 0) loses its
graph; those forwards run again, with the versions of the weights they had, for a version is
a function of the micro-batch alone. Upstream has forwarded all that downstream has, so
each finds its inputs. They must not count again in statistics: snapshots say which they are.

The stream of actions from a cut on is `schedule.stream(plan, start=cut)`. The argument in full: docs/theory.md, "Cut".
"""

from __future__ import annotations

from math import lcm

from ropewalk.pipeline.actions import Action, ActionKind
from ropewalk.pipeline.plans import Plan, PlanWorker
from ropewalk.pipeline.schedules.schedule import Schedule
from ropewalk.pipeline.schedules.streams import Cut


def round_of(plan: Plan, schedule: Schedule) -> int:
    """After how many micro-batches all stages end a round together; a schedule with a flush ends them with its step."""
    return lcm(*(schedule.round_size(plan, stage.id) for stage in plan.stages))


def can_cut(plan: Plan, schedule: Schedule, position: Cut) -> bool:
    """Whether a run can be cut behind what a stream has admitted so far (`stream.position`)."""
    if schedule.flushes:
        return not position.num_accumulated
    return position.num_since % round_of(plan, schedule) == 0


def newest(plan: Plan, schedule: Schedule, cut: Cut, stage: int) -> int:
    """The version of a stage's weights at a cut."""
    return cut.versions[stage] + cut.num_since // schedule.round_size(plan, stage)


def last_step(plan: Plan, schedule: Schedule, cut: Cut, worker: PlanWorker) -> Action:
    """The action of a worker after which it is at a cut, if it has not been there since the pipeline was empty."""
    stage = plan.groups[worker.group][-1]  # the steps of one worker follow each other by stage
    return Action(ActionKind.STEP, stage, worker.replica, version=newest(plan, schedule, cut, stage))
