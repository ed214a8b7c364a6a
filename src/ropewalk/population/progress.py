"""Progress of a run on standard error: a live line in a terminal, else one line per generation if requested."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any

from ropewalk.escaping import escaped

_SHOWN = ("mean", "max", "test", "best")


class ProgressPrinter:
    """Shows the rows of a run as they are completed.

    Args:
        title: name of the run.
        generations: total number of generations, if that is known.
        shown: whether to show anything; None shows it only if standard error is a terminal.
    """

    def __init__(self, title: str, generations: int | None, *, shown: bool | None) -> None:
        self._title = title
        self._generations = generations
        self._is_terminal = sys.stderr.isatty()
        self._shown = self._is_terminal if shown is None else shown
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
        if self._shown:
            print(f"{self._title}: {escaped(text)}", file=sys.stderr, flush=True)

    def row(self, row: dict[str, float]) -> None:
        """Show a row."""
        if not self._shown:
            return
        line = line_of(self._title, row, self._generations)
        if self._live is None:
            print(line, file=sys.stderr, flush=True)
        else:
            self._maxima.append(row["max"])
            self._live.update(f"{line}\n{curve(self._maxima[-80:])}")


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


def curve(values: list[float]) -> str:
    """Format values as a line of block characters, scaled from the least to the greatest."""
    finite = [value for value in values if value - value == 0]
    if not finite:
        return ""
    least, span = min(finite), max(finite) - min(finite)
    return "".join("▁▂▃▄▅▆▇█"[int(7 * (value - least) / span) if span else 0] for value in finite)
