"""Progress of a run on standard error: a live line in a terminal, else one line a minute, or per generation."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from ropewalk.escaping import escaped
from ropewalk.progress_stream import ProgressStream
from ropewalk.sparkline import sparkline

_QUIET_S = 60.0
"""Seconds between lines where there is no terminal: enough for the log of a job, and nothing for a short run."""
_SHOWN = ("mean", "max", "test", "best")


class ProgressPrinter:
    """Shows the rows of a run as they are completed.

    Args:
        title: name of the run.
        generations: total number of generations, if that is known.
        shown: whether to show anything; None: where standard error is not a terminal, a line a minute instead of one
            for each row.
        clock: seconds, for tests.
    """

    def __init__(
        self,
        title: str,
        generations: int | None,
        *,
        shown: bool | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._title = title
        self._generations = generations
        self._stream = ProgressStream(shown)
        self._every_s = 0.0 if shown or self._stream.is_terminal else _QUIET_S
        self._clock, self._printed = clock, clock()
        self._maxima: list[float] = []

    def __enter__(self) -> Self:
        self._stream.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stream.__exit__(kind, error, traceback)

    def note(self, text: str) -> None:
        """Print a message that is not a row."""
        if not self._every_s:
            self._stream.line(f"{self._title}: {escaped(text)}")

    def row(self, row: dict[str, float]) -> None:
        """Show a row."""
        if not self._stream.is_shown or self._clock() - self._printed < self._every_s:
            return
        self._printed = self._clock()
        line = line_of(self._title, row, self._generations)
        if self._stream.has_picture:
            self._maxima.append(row["max"])
            self._stream.draw(f"{line}\n{sparkline(self._maxima[-80:], 80)}")
        else:
            self._stream.line(line)


def line_of(title: str, row: dict[str, float], generations: int | None) -> str:
    """Format a row as one line."""
    of = f" of {generations}" if generations else ""
    parts = [f"{title}: generation {row['generation']:.0f}{of}"]
    parts += [f"{name} {row[name]:.5g}" for name in _SHOWN if name in row]
    parts.append(f"{row['evaluations_per_s']:.4g} evaluations/s on {row['workers']:.0f} workers")
    parts += [f"{row[name]:.0f} {name}" for name in ("failed", "dropped") if row[name]]
    if generations and row["generation"]:
        left_s = row["seconds"] / row["generation"] * (generations - row["generation"])
        parts.append(f"{left_s:.0f} s left")
    return "  ".join(parts)
