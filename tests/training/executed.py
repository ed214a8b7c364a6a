"""Holds what workers did against what the schedule says they do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

from ropewalk.errors import ScheduleInvalid
from ropewalk.pipeline.actions import Action, ActionKind
from ropewalk.pipeline.plans import Plan, PlanWorker
from ropewalk.pipeline.schedules import Schedule, make_schedule
from ropewalk.pipeline.verifier import verify
from ropewalk.training.recorder import WorkerRecord

#: What was admitted, in order: a number of micro-batches, or a drain.
Admitted = Sequence[int | Literal["drain"]]


def executed_matches(
    plan: Plan,
    schedule: str | Schedule,
    records: Mapping[PlanWorker, WorkerRecord],
    *,
    admitted: Admitted | None = None,
    whole: bool = True,
) -> None:
    """Check that each worker did exactly what the schedule says, in that order, and that this keeps every law.

    Args:
        plan: what ran, with all edges that were played.
        schedule: which one it ran.
        records: what each worker did since micro-batch 0; of a ring that has forgotten some, the rest is compared.
        admitted: what was; None: as many steps of `plan.micro_batches` as the records show, and then a drain.
        whole: whether all of it was carried out; False: the records may end earlier.

    Raises:
        ScheduleInvalid: a worker did something else; names the first such action and where it stands. Or the schedule
            itself breaks a law.
    """
    schedule = make_schedule(schedule)
    if admitted is None:
        admitted = _shown(plan, schedule, records)
    expected = _expected(plan, schedule, admitted)
    for worker in plan.workers:
        record = records.get(worker)
        executed = () if record is None else record.actions
        start = 0 if record is None else record.num_forgotten
        _compare(worker, executed, expected[worker], start, whole)


def _shown(plan: Plan, schedule: Schedule, records: Mapping[PlanWorker, WorkerRecord]) -> Admitted:
    """The admissions that records which end with a drain must come from, if all steps were of one size."""
    if schedule.flushes:
        made = [
            action.version or 0
            for record in records.values()
            for action in record.actions
            if action.kind is ActionKind.STEP
        ]
        return [plan.micro_batches] * max(made, default=0)
    pieces = [
        action.micro_batch
        for record in records.values()
        for action in record.actions
        if action.kind is ActionKind.FORWARD and action.micro_batch is not None
    ]
    num, rest = divmod(max(pieces, default=-1) + 1, plan.micro_batches)
    return [*[plan.micro_batches] * num, *([rest] if rest else []), "drain"]


def _expected(plan: Plan, schedule: Schedule, admitted: Admitted) -> dict[PlanWorker, list[Action]]:
    """What each worker does for these admissions; proven."""
    expected: dict[PlanWorker, list[Action]] = {worker: [] for worker in plan.workers}
    if schedule.flushes:
        made: dict[int, dict[PlanWorker, list[Action]]] = {}
        for step, num in enumerate(num for num in admitted if num != "drain"):
            if num not in made:
                of_step = replace(plan, micro_batches=num)
                made[num] = schedule.actions(of_step)
                verify(of_step, made[num], schedule)
            for worker, actions in made[num].items():
                expected[worker] += [_later(action, step) for action in actions]
        return expected
    stream = schedule.stream(plan)
    num_since_empty = 0
    is_first = True
    for num in admitted:
        found = stream.drain() if num == "drain" else stream.admit(num)
        for worker, actions in found.items():
            expected[worker] += actions
        if num != "drain":
            num_since_empty += num
        elif is_first and num_since_empty:  # the laws speak of numbers that count from an empty pipeline
            verify(plan, expected, schedule, num_micro_batches=num_since_empty)
            is_first = False
    return expected


def _compare(
    worker: PlanWorker, executed: Sequence[Action], expected: Sequence[Action], start: int, whole: bool
) -> None:
    for place, action in enumerate(executed, start):
        wanted = expected[place] if place < len(expected) else None
        if action != wanted:
            raise ScheduleInvalid(
                f"worker {worker} did {action} as its action {place} (the first is 0), and the schedule says "
                f"{'nothing more' if wanted is None else wanted}; before it did "
                f"{' '.join(map(str, executed[max(0, place - start - 5) : place - start])) or 'nothing'}",
                action=str(action),
                worker=str(worker),
            )
    done = start + len(executed)
    if whole and done < len(expected):
        raise ScheduleInvalid(
            f"worker {worker} did {done} actions of {len(expected)}, and not yet {expected[done]}; drain before the "
            f"records are taken, or compare with whole=False",
            action=str(expected[done]),
            worker=str(worker),
        )


def _later(action: Action, num_steps: int) -> Action:
    """The action of a later step: versions count up, one a step."""
    return action if action.version is None or not num_steps else replace(action, version=action.version + num_steps)
