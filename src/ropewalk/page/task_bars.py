"""Bars of a task stream: what is narrower than a pixel is drawn as one bar, whatever number of tasks there are.

task      ▐▌▐▌▐▌ ▐████▌    ▐▌▐▌        gaps that can be seen stay gaps
bars      ▐████▌ ▐████▌    ▐███▌
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

MOST_BARS = 6000
"""Bars that a browser draws again every second without delay."""

Task = Sequence[Any]
"""`[worker, function, begin, end, number of tasks, "ok" | "failed" | "died"]`, with Unix times in seconds."""


@dataclass(frozen=True, slots=True)
class Bar:
    """Tasks of one worker that are drawn as one.

    Attributes:
        worker: its name.
        function: of most of the time.
        begin: Unix time in seconds.
        end: Unix time in seconds.
        tasks: number of them.
        busy_s: seconds in which tasks ran.
        failed: number that raised an exception.
        died: number whose worker died.
    """

    worker: str
    function: str
    begin: float
    end: float
    tasks: int
    busy_s: float
    failed: int
    died: int


def bars(tasks: Iterable[Task], narrow_s: float) -> list[Bar]:
    """Return the bars of tasks, by worker and begin.

    Neighbouring tasks that are shorter than `narrow_s` are joined, as long as all of them together are not longer than
    that. So two bars in a row cover more than `narrow_s`, and a worker has at most `2 * window / narrow_s + 1` bars.

    Args:
        tasks: in any order.
        narrow_s: seconds of a pixel; 0 joins nothing.
    """
    by_worker: dict[str, list[Task]] = defaultdict(list)
    for task in tasks:
        by_worker[str(task[0])].append(task)
    found: list[Bar] = []
    for worker, mine in by_worker.items():
        mine.sort(key=_begin)
        group: list[Task] = []
        for task in mine:
            if group and (narrow_s <= 0 or task[3] - group[0][2] > narrow_s):
                found.append(_joined(worker, group))
                group = []
            group.append(task)
        found.append(_joined(worker, group))
    return found


def fitting_bars(tasks: Sequence[Task], narrow_s: float, most: int = MOST_BARS) -> tuple[list[Bar], float]:
    """Return at most `most` bars, unless there are more workers, and the seconds below which tasks were joined."""
    found = bars(tasks, narrow_s)
    num_workers = len({bar.worker for bar in found})
    while len(found) > max(most, num_workers):
        narrow_s = max(2 * narrow_s, 1e-3)
        found = bars(tasks, narrow_s)
    return found, narrow_s


def within(tasks: Iterable[Task], begin: float, end: float) -> list[Task]:
    """Return the tasks of which a part is in a window of time."""
    return [task for task in tasks if task[3] >= begin and task[2] <= end]


def main_functions(tasks: Iterable[Task], most: int) -> list[str]:
    """Return the functions with the most time, the first that was seen first."""
    seconds: dict[str, float] = defaultdict(float)
    for task in tasks:
        seconds[str(task[1])] += max(0.0, task[3] - task[2])
    chosen = sorted(seconds, key=seconds.__getitem__, reverse=True)[:most]
    return [function for function in seconds if function in chosen]


def _begin(task: Task) -> float:
    return float(task[2])


def _joined(worker: str, group: Sequence[Task]) -> Bar:
    seconds: dict[str, float] = defaultdict(float)
    for task in group:
        seconds[str(task[1])] += task[3] - task[2]
    return Bar(
        worker=worker,
        function=max(seconds, key=seconds.__getitem__),
        begin=float(group[0][2]),
        end=max(float(task[3]) for task in group),
        tasks=sum(int(task[4]) for task in group),
        busy_s=sum(task[3] - task[2] for task in group),
        failed=sum(int(task[4]) for task in group if task[5] == "failed"),
        died=sum(int(task[4]) for task in group if task[5] == "died"),
    )


__all__ = ["MOST_BARS", "Bar", "Task", "bars", "fitting_bars", "main_functions", "within"]
