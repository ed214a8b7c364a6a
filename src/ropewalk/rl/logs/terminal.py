"""`TerminalLogger`: one line every few seconds.

21,120 of 80,000 steps   26 %    9,410 steps/s   score 187.3   loss 0.041   learner-bound: actors wait 61 %
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from typing import TextIO

_SHOWN = "loss", "entropy", "policy_lag", "epsilon", "worst", "best"
"""Metrics that are shown, where there are any; the others are for tables."""


class TerminalLogger:
    """Prints progress for a person.

    Args:
        every_s: seconds between lines; evaluations and the end are always printed.
        file: where lines go.
        clock: returns the time in seconds; tests give their own.
    """

    def __init__(
        self, every_s: float = 5.0, file: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._every_s, self._file, self._clock = every_s, file, clock
        self._printed = -float("inf")
        self._before: tuple[float, float] | None = None
        """Steps and seconds of the last line of progress, from which the rate of the next one is taken."""

    def __repr__(self) -> str:
        return f"TerminalLogger(every_s={self._every_s})"

    def __call__(self, label: str, row: Mapping[str, float | int | str | None]) -> None:
        """See `Logger`."""
        if label == "progress":
            if not (row.get("steps") or row.get("bound")):
                return  # nothing is known yet; an environment may hang before the first step
            now = self._clock()
            if now - self._printed < self._every_s:
                return
            self._printed = now
            row = {**row, "steps_per_s": self._rate_since_the_last_line(row)}
        print(line_of(label, row), file=self._file or sys.stderr, flush=True)

    def _rate_since_the_last_line(self, row: Mapping[str, float | int | str | None]) -> float | None:
        """Return the rate of now, and not of the whole run, which is slower by its start; None for the first line."""
        now = float(row["steps"] or 0), float(row.get("seconds") or 0)
        before, self._before = self._before, now
        return (now[0] - before[0]) / (now[1] - before[1]) if before and now[1] > before[1] else None


def line_of(label: str, row: Mapping[str, float | int | str | None]) -> str:
    """Return a row as a line of text."""
    steps, total = row.get("steps"), row.get("total_steps")
    if steps and total:  # the last block may go beyond the total
        parts = [f"{steps:,} of {total:,} steps  {min(100, 100 * steps / total):3.0f} %"]  # type: ignore[operator]
    else:
        parts = [f"{steps:,} steps"]
    if label != "progress":
        parts.insert(0, label)
    if (rate := row.get("steps_per_s")) is not None:
        parts.append(f"{rate:,.0f} steps/s")
    if (score := row.get("score")) is not None:
        parts.append(f"score {score:.1f}")
    parts += [f"{name} {value:.3g}" for name in _SHOWN if isinstance(value := row.get(name), float)]
    parts += [str(words) for words in (row.get("lag"), row.get("bound")) if words]
    return "   ".join(parts)


__all__ = ["TerminalLogger", "line_of"]
