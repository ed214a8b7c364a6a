"""Progress of a search on standard error: a live table in a terminal, else a line when a trial ends or pauses."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any, Self

from ropewalk.escaping import escaped
from ropewalk.progress_stream import ProgressStream
from ropewalk.quantities import counted, shown_duration
from ropewalk.search.book import SearchBook
from ropewalk.search.results import shown
from ropewalk.search.trial_facts import TrialFacts, TrialState

_REFRESH_S = 0.25
_ROWS = 12


class SearchProgress:
    """Shows what a search does.

    Args:
        book: the search.
        name: its name.
        total: number of trials that it is limited to; None: none.
        shown: whether to show anything; None: a table in a terminal, and lines elsewhere: one for each trial that
            ends, or that has used its budget.
    """

    def __init__(self, book: SearchBook, name: str, total: int | None, shown: bool | None) -> None:
        self._book, self._name, self._total = book, escaped(name), total
        self._stream = ProgressStream(shown)
        self._began = self._last = time.monotonic()
        self._told: set[tuple[int, float, TrialState]] = set(map(_place, filter(_is_remarkable, book.trials)))

    def __enter__(self) -> Self:
        self._stream.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.update(now=True)
        self._stream.__exit__(kind, error, traceback)

    def note(self, text: str) -> None:
        """Print a sentence about the search."""
        self._stream.line(f"{self._name}: {escaped(text)}")

    def update(self, *, now: bool = False) -> None:
        """Show changes, at most four times a second."""
        if not self._stream.is_shown or (time.monotonic() - self._last < _REFRESH_S and not now):
            return
        self._last = time.monotonic()
        if self._stream.has_picture:
            self._stream.draw(self._table())
            return
        for trial in self._book.trials:
            if _is_remarkable(trial) and _place(trial) not in self._told:
                self._told.add(_place(trial))
                self._stream.line(f"{self._name}: {line_of(trial, self._book)}")

    def summary(self) -> str:
        """Return the counts, the best and the time in one line."""
        trials = self._book.trials
        counts = [
            f"{number} {state.value}"
            for state in TrialState
            if (number := sum(trial.state is state for trial in trials))
        ]
        of = f" of {self._total}" if self._total is not None else ""
        parts = [f"{self._name}: {counted(len(trials), 'trial')}{of}", ", ".join(counts)]
        if (best := self._book.best) is not None:
            parts.append(f"best {self._book.metrics[0]} {best.best:.5g} (trial {best.number})")
        parts.append(shown_duration(time.monotonic() - self._began))
        return "  ".join(part for part in parts if part)

    def _table(self) -> Any:
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False)
        chosen = self._chosen()
        names = list(dict.fromkeys(name for trial in chosen for name in trial.hyperparameters))[:6]
        for head in ("trial", "state", "step", self._book.metrics[0], "best", *names):
            justify = "left" if head == "state" else "right"
            table.add_column(Text(escaped(head)), justify=justify, no_wrap=True)  # a plain text would be markup
        for trial in chosen:
            now = "" if trial.values is None else f"{trial.values[0]:.5g}"
            best = "" if trial.best is None else f"{trial.best:.5g}"
            values = [shown(trial.hyperparameters.get(name, "")) for name in names]
            style = "bold" if trial is self._book.best else "red" if trial.state is TrialState.FAILED else ""
            cells = (str(trial.number), trial.state.value, f"{trial.step:g}", now, best, *values)
            table.add_row(*(Text(cell) for cell in cells), style=style)
        return Group(Text(self.summary()), table)

    def _chosen(self) -> list[TrialFacts]:
        """Return the trials that run, then the best ones."""
        running = [trial for trial in self._book.trials if trial.state is TrialState.RUNNING]
        others = [trial for trial in self._book.trials if trial.state is not TrialState.RUNNING]
        others.sort(key=lambda trial: -self._book.score(trial.best))
        return [*running, *others][:_ROWS]


def _is_remarkable(trial: TrialFacts) -> bool:
    """Whether a trial has ended, or has used the budget that its scheduler gave it."""
    return trial.state.is_final or trial.state is TrialState.PAUSED


def _place(trial: TrialFacts) -> tuple[int, float, TrialState]:
    return trial.number, trial.step, trial.state


def line_of(trial: TrialFacts, book: SearchBook) -> str:
    """Return the end, or the pause, of a trial as one line."""
    parts = [f"trial {trial.number} {trial.state.value} at step {trial.step:g}"]
    if trial.best is not None:
        parts.append(f"best {book.metrics[0]} {trial.best:.5g}")
    if trial.values is not None:
        parts += [
            f"{escaped(name)} {value:.5g}" for name, value in zip(book.metrics[1:], trial.values[1:], strict=True)
        ]
    parts += [f"{escaped(name)}={shown(value)}" for name, value in trial.hyperparameters.items()]
    if trial.why:
        parts.append(f"({escaped(trial.why)})")
    return "  ".join(parts)
