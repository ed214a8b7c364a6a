"""`ProgressLog`: makes rows of progress from the counts of a learner, with rates."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping

from ropewalk.rl.counters import Counters
from ropewalk.rl.logs.logger import Logger, LogRow
from ropewalk.rl.result import EvaluationScores
from ropewalk.rl.view import NumberedEvaluation, NumberedRow

logger = logging.getLogger(__name__)

_MOST_ROWS = 10_000
"""Rows that are kept; a run of a week has millions."""


class ProgressLog:
    """Hands rows to a logger, and keeps them for the result; an error of the logger is told, and ends nothing.

    Args:
        logger: where they go.
        total_steps: number of steps of the whole experiment.
        clock: returns the time in seconds; tests give their own.
    """

    def __init__(self, logger: Logger, total_steps: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._logger, self._total_steps, self._clock = logger, total_steps, clock
        self._began = clock()
        self._first_steps: int | None = None
        self._failures = 0
        self._told: set[type[Exception]] = set()
        """Errors of the logger whose traceback was shown."""
        self._kept: list[LogRow] = []
        self._every, self._num_rows = 1, 0
        self._last: LogRow | None = None
        self._lock = threading.Lock()
        """Held while rows are kept: other threads read them."""
        self._telling = threading.Lock()
        """Held while the logger has a row: a thread that watches tells some."""
        self.evaluations: list[EvaluationScores] = []
        self._rows_before: list[int] = []
        """Of each evaluation, the number of rows before it."""

    @property
    def rows(self) -> tuple[LogRow, ...]:
        """Of the whole run, at most about 10,000: of more, every second is kept, then every fourth, and the last."""
        last = () if self._last is None or self._last is self._kept[-1] else (self._last,)
        return (*self._kept, *last)

    def rows_from(self, number: int) -> list[NumberedRow]:
        """Return the rows from a number on that are kept; may be called by other threads."""
        with self._lock:
            first = -(-number // self._every)
            kept = [NumberedRow(place * self._every, self._kept[place]) for place in range(first, len(self._kept))]
            if self._last is not None and self._num_rows > number and self._last is not self._kept[-1]:
                kept.append(NumberedRow(self._num_rows - 1, self._last))
            return kept

    def newest(self, num: int) -> list[LogRow]:
        """Return about `num` of the newest rows that are kept, and the last; may be called by other threads."""
        with self._lock:
            return [*self._kept[-num:], *([] if self._last is None or self._last is self._kept[-1] else [self._last])]

    @property
    def first(self) -> LogRow | None:
        """The first row; None before it."""
        return self._kept[0] if self._kept else None

    def row_before(self, number: int) -> NumberedRow | None:
        """Return the last row before a number that is kept; None if there is none. May be called by other threads."""
        with self._lock:
            place = min((number - 1) // self._every, len(self._kept) - 1)
            return NumberedRow(place * self._every, self._kept[place]) if place >= 0 else None

    @property
    def numbered_evaluations(self) -> list[NumberedEvaluation]:
        """All evaluations, with the number of rows before each; may be called by other threads."""
        with self._lock:
            return list(map(NumberedEvaluation, self._rows_before, self.evaluations))

    @property
    def seconds(self) -> float:
        """Since this was made."""
        return self._clock() - self._began

    def progress(
        self, counters: Counters, metrics: Mapping[str, float], bound: str = "", lag: str = "", label: str = "progress"
    ) -> None:
        """Log what was done so far.

        Args:
            counters: counters of the experiment.
            metrics: metrics of the last update.
            bound: which side limits the other, in words.
            lag: how old the blocks of actors are, in words, where that is remarkable.
            label: label of the row.
        """
        if self._first_steps is None:
            self._first_steps = counters.steps
        seconds = self.seconds
        row: dict[str, float | int | str | None] = {
            "steps": counters.steps,
            "total_steps": self._total_steps,
            "seconds": seconds,
            "steps_per_s": (counters.steps - self._first_steps) / seconds if seconds > 0 else None,
            "score": counters.score,
            "episodes": counters.episodes,
            "updates": counters.updates,
            **{f"episode.{name}": value for name, value in counters.facts().items()},
            **metrics,
            "lag": lag or None,
            "bound": bound or None,
        }
        self._keep(row)
        self._tell(label, row)

    def _keep(self, row: LogRow) -> None:
        with self._lock:
            if self._num_rows % self._every == 0:
                self._kept.append(row)
            self._num_rows += 1
            self._last = row
            if len(self._kept) > _MOST_ROWS:
                self._kept, self._every = self._kept[::2], 2 * self._every

    def evaluation(self, scores: EvaluationScores, *, is_new: bool = True) -> None:
        """Log an evaluation; one that is not new, as an earlier run has logged it, is only kept for the result."""
        row: LogRow = {
            "steps": scores.steps,
            "version": scores.version,
            "score": scores.mean,
            "worst": min(scores.scores),
            "best": max(scores.scores),
            "episodes": len(scores.scores),
        }
        with self._lock:
            self.evaluations.append(scores)
            self._rows_before.append(self._num_rows)
        if is_new:
            self._tell("evaluation", row)

    def _tell(self, label: str, row: LogRow) -> None:
        try:
            with self._telling:
                self._logger(label, row)
        except Exception as error:
            self._failures += 1
            is_told = type(error) in self._told
            self._told.add(type(error))
            logger.warning(
                "the logger failed for the %d. time, with %s: %s; training goes on",
                self._failures,
                type(error).__name__,
                error,
                exc_info=None if is_told else error,
            )


__all__ = ["ProgressLog"]
