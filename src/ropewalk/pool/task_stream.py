"""The task stream of a pool: which worker ran which function when, while somebody looks. Pure.

The launcher knows when a batch of results arrives and how long the worker took for it; a row is such a batch, or the
part of it that is of one function. Times are Unix times of the launcher's clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Literal

from ropewalk.pool.task_table import Finished

KEPT_S = 10.0
"""Seconds after the last look for which rows are still recorded."""
_MOST_ROWS = 20_000

StreamPart = tuple[str, int, bool]
"""Function, number of tasks, and whether one of them failed."""
StreamRow = tuple[str, str, float, float, int, Literal["ok", "failed", "died"]]
"""Worker, function, begin and end as Unix times, number of tasks, and how they ended."""


class TaskStream:
    """The last rows of the stream, numbered from 1."""

    def __init__(self) -> None:
        self.until = 0.0
        """Unix time after which nobody looks any more."""
        self._rows: deque[StreamRow] = deque(maxlen=_MOST_ROWS)
        self._num_rows = 0
        self._ends: dict[str, float] = {}
        """When the last row of each worker ended: its next one begins then, or later."""

    def since(self, cursor: int, now: float) -> dict[str, Any]:
        """Return the rows after a cursor, as the panel "stream" does, and note that somebody looks.

        Args:
            cursor: the one of the last answer, or 0.
            now: Unix time.
        """
        self.until = now + KEPT_S
        num_new = min(max(0, self._num_rows - cursor), len(self._rows))
        rows = list(self._rows)[len(self._rows) - num_new :]
        return {"cursor": self._num_rows, "now": now, "tasks": [list(row) for row in rows]}

    def finished(self, worker: str, parts: Sequence[StreamPart], elapsed_s: float, end: float) -> None:
        """Record a batch of tasks; the time is divided among its parts by their numbers.

        Args:
            worker: its name.
            parts: what it consists of, in order.
            elapsed_s: seconds that the worker took; 0 if that is not known: since its last batch.
            end: Unix time at which they ended.
        """
        last = self._ends.get(worker, 0.0)
        begin = max(last, end - elapsed_s) if elapsed_s else (last or end)
        begin = min(begin, end)
        num_tasks = sum(count for _, count, _ in parts)
        for function, count, failed in parts:
            stop = begin + (end - begin) * count / num_tasks
            self._add((worker, function, begin, stop, count, "failed" if failed else "ok"))
            begin, num_tasks = stop, num_tasks - count
        self._ends[worker] = end

    def died(self, worker: str, function: str, running_s: float, end: float) -> None:
        """Record a task that ended with its worker, after `running_s` seconds."""
        begin = min(end, max(self._ends.pop(worker, 0.0), end - running_s))
        self._add((worker, function, begin, end, 1, "died"))

    def _add(self, row: StreamRow) -> None:
        self._rows.append(row)
        self._num_rows += 1


def parts_of_stream(finished: Sequence[Finished], errors: Sequence[int]) -> list[StreamPart]:
    """Return the parts of a batch: neighbours of one function are one part, as most batches are.

    Args:
        finished: spans with their offsets in the batch.
        errors: the positions in the batch of tasks that raised.
    """
    parts: list[StreamPart] = []
    code, count, failed, function = "", 0, False, ""
    for (unit, start, stop), offset in finished:
        if unit.code is not code:
            if count:
                parts.append((function, count, failed))
            code, count, failed, function = unit.code, 0, False, unit.content.function
        count += stop - start
        if errors and not failed:
            failed = any(offset <= at < offset + stop - start for at in errors)
    parts.append((function, count, failed))
    return parts
