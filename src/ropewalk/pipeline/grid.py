"""Grids and lists of actions as text that people can read and that parses back.

A grid has a row for each worker and a column for each unit of time; it shows the computing
actions, as the figures of the papers do. `..` is an idle column, and an action that takes
two columns is in both. If workers have several stages, a cell also names the stage:

    worker 0 | F0 F1 F2 .. .. .. B0 B0          worker 0 | F0:0 F0:1 F3:0 ...
    worker 1 | .. F0 F1 .. B0 B0 F2 B1 B1       worker 1 | .... F1:0 F1:1 F2:0 ...

A list has all actions, including transfers and steps, as `Action` prints them:

    worker 0 | F0:0v0 S0:0>1/relu ...
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from ropewalk.errors import ScheduleInvalid
from ropewalk.pipeline.actions import Action, ActionKind
from ropewalk.pipeline.plans import Plan, PlanWorker
from ropewalk.pipeline.transfers import UNITS

Actions = Mapping[PlanWorker, Sequence[Action]]

_NUM_AROUND = 12
"""Columns that are drawn around a marked action."""


def draw_grid(
    plan: Plan,
    actions: Actions,
    *,
    units: Mapping[ActionKind, int] = UNITS,
    marked: tuple[PlanWorker, int] | None = None,
) -> str:
    """Draw what each worker computes at each time, if transfers take no time.

    Args:
        plan: the plan that the actions belong to.
        actions: the actions of each worker, in order.
        units: the columns that each kind of action takes; kinds that are missing here are not drawn.
        marked: a worker and an index in its list: only the columns around that action are drawn, and it is named below.
    """
    starts = _starts(actions, units)
    has_chunks = any(len(stages) > 1 for stages in plan.groups)
    spans = [
        (worker, start, units[action.kind], _cell(action, has_chunks))
        for worker, times in starts.items()
        for action, start in zip(actions[worker], times, strict=True)
        if units.get(action.kind)
    ]
    width = max((len(cell) for *_, cell in spans), default=2)
    num_columns = max((start + num for _, start, num, _ in spans), default=0)
    rows = {worker: ["." * width] * num_columns for worker in actions}
    for worker, start, num, cell in spans:
        rows[worker][start : start + num] = [cell.ljust(width)] * num
    first, last = 0, None
    if marked is not None:
        at = starts[marked[0]][marked[1]]
        first, last = max(0, at - _NUM_AROUND), at + _NUM_AROUND
    labels = _labels(actions)
    lines = [f"{labels[worker]} | {' '.join(row[first:last])}".rstrip() for worker, row in rows.items()]
    if marked is not None:
        gap = len(next(iter(labels.values()))) + 3 + (width + 1) * (starts[marked[0]][marked[1]] - first)
        lines.append(f"{' ' * gap}^ {actions[marked[0]][marked[1]]} of {labels[marked[0]].strip()}")
    return "\n".join(lines)


def parse_grid(text: str) -> dict[PlanWorker, list[Action]]:
    """Read a grid.

    Args:
        text: what `draw_grid` returned.

    Returns:
        The computing actions of each worker, in order, without versions.

    Raises:
        ScheduleInvalid: a row or a cell is malformed; the message quotes it.
    """
    found: dict[PlanWorker, list[Action]] = {}
    for worker, cells in _rows(text):
        row: list[Action] = []
        for cell in cells.split():
            if not cell.strip("."):
                continue
            match = re.fullmatch(r"([FBIWC])(?:(\d+):)?(\d+)", cell)
            if match is None:
                raise ScheduleInvalid(
                    f"{cell!r} is not a cell of a grid; they look like F0, B2:0 or ..", worker=str(worker)
                )
            kind, stage, micro_batch = match.groups()
            action = Action(ActionKind(kind), int(stage or worker.group), worker.replica, int(micro_batch))
            if not row or row[-1] != action:
                row.append(action)
        found[worker] = row
    return found


def show_actions(actions: Actions) -> str:
    """Return all actions of all workers as text, a line for each worker."""
    labels = _labels(actions)
    return "\n".join(f"{labels[worker]} | {' '.join(map(str, row))}".rstrip() for worker, row in actions.items())


def parse_actions(text: str) -> dict[PlanWorker, list[Action]]:
    """Read the lists of actions that `show_actions` returned.

    Raises:
        ScheduleInvalid: a line or a code is malformed; the message quotes it.
    """
    # A code ends where the next one begins, since names of tensors may have spaces.
    return {
        worker: [Action.parse(code, worker.replica) for code in re.split(r"\s+(?=[FBIWCSRAU]\d)", codes) if code]
        for worker, codes in _rows(text)
    }


def _rows(text: str) -> Iterator[tuple[PlanWorker, str]]:
    for line in text.splitlines():
        if not line.strip() or line.lstrip().startswith("^"):
            continue
        match = re.fullmatch(r"\s*worker (\d+)(?:\.(\d+))?\s*\|(.*)", line)
        if match is None:
            raise ScheduleInvalid(f"{line!r} is not a row of a worker; they look like 'worker 0 | F0 F1 ..'")
        yield PlanWorker(int(match[1]), int(match[2] or 0)), match[3].strip()


def _labels(actions: Actions) -> dict[PlanWorker, str]:
    has_replicas = any(worker.replica for worker in actions)
    names = {worker: f"worker {worker if has_replicas else worker.group}" for worker in actions}
    width = max(map(len, names.values()), default=0)
    return {worker: name.ljust(width) for worker, name in names.items()}


def _cell(action: Action, has_chunks: bool) -> str:
    return (
        f"{action.kind.value}{action.stage}:{action.micro_batch}"
        if has_chunks
        else f"{action.kind.value}{action.micro_batch}"
    )


def _starts(actions: Actions, units: Mapping[ActionKind, int]) -> dict[PlanWorker, list[int]]:
    """When each action begins if receives wait for their sends; a receive that would wait for ever does not wait."""
    starts: dict[PlanWorker, list[int]] = {worker: [] for worker in actions}
    free_at = dict.fromkeys(actions, 0)
    sent: dict[tuple[int, int | None, int | None, str | None], int] = {}
    patient = True
    while any(len(starts[worker]) < len(row) for worker, row in actions.items()):
        moved = False
        for worker, row in actions.items():
            while len(starts[worker]) < len(row):
                action = row[len(starts[worker])]
                if action.kind is ActionKind.RECEIVE:
                    message = (action.peer or 0, action.stage, action.micro_batch, action.edge)
                    if message not in sent and patient:
                        break
                    free_at[worker] = max(free_at[worker], sent.get(message, 0))
                starts[worker].append(free_at[worker])
                free_at[worker] += units.get(action.kind, 0)
                if action.kind is ActionKind.SEND:
                    sent[action.stage, action.peer, action.micro_batch, action.edge] = free_at[worker]
                moved = patient = True
        patient = moved
    return starts
