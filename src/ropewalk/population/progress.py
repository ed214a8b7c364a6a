"""Progress of a run on standard error: a live line in a terminal, else one line a minute, or per generation."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

from ropewalk.escaping import escaped
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
        self._is_terminal = sys.stderr.isatty()
        self._shown = shown is not False
        self._every_s = 0.0 if shown or self._is_terminal else _QUIET_S
        self._clock, self._printed = clock, clock()
        self._live: Any = None
        self._maxima: list[float] = []

    def __enter__(self) -> ProgressPrinter:
        if self._shown and self._is_terminal:
            from rich.console import Console  # imported here: without a terminal, it is not needed
            from rich.live import Live

            self._live = Live("", console=Console(stderr=True, highlight=False), refresh_per_second=8)
            self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.__exit__(kind, error, traceback)
            self._live = None

    def note(self, text: str) -> None:
        """Print a message that is not a row."""
        if self._shown and not self._every_s:
            print(f"{self._title}: {escaped(text)}", file=sys.stderr, flush=True)

    def row(self, row: dict[str, float]) -> None:
        """Show a row."""
        if not self._shown or self._clock() - self._printed < self._every_s:
            return
        self._printed = self._clock()
        line = line_of(self._title, row, self._generations)
        if self._live is None:
            print(line, file=sys.stderr, flush=True)
        else:
            self._maxima.append(row["max"])
            self._live.update(f"{line}\n{sparkline(self._maxima[-80:], 80)}")


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
