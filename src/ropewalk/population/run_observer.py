"""`RunObserver`: what follows from each row: a line of the log and the display, a record of the run, a checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ropewalk.population.algorithm import Algorithm
from ropewalk.population.decisions import Decisions, Fail
from ropewalk.population.progress import ProgressPrinter
from ropewalk.population.rows import Row
from ropewalk.population.run import EvaluationLoop
from ropewalk.population.running import RunningEvaluation
from ropewalk.population.saved_run import SavedRun
from ropewalk.population.stop_condition import StopCondition
from ropewalk.tracking.observed_run import ObservedRun


class RunObserver:
    """Writes down, shows and saves what an evaluation loop does, and says when it is enough.

    Args:
        method: the algorithm.
        decisions: the log of the run.
        saved: its checkpoints.
        display: shows rows.
        report: called with each row; None for no call.
        stop: when it is enough.
    """

    def __init__(
        self,
        method: Algorithm[Any],
        decisions: Decisions,
        saved: SavedRun,
        display: ProgressPrinter,
        report: Callable[..., object] | None,
        stop: StopCondition,
    ) -> None:
        self._method, self._decisions, self._saved = method, decisions, saved
        self._display, self._report, self._stop = display, report, stop
        self._loop: EvaluationLoop
        self._watched: ObservedRun
        self._has_resumed = False
        self._running: RunningEvaluation

    def restore(self, loop: EvaluationLoop) -> bool:
        """Bring the loop to where the newest checkpoint ends; returns whether nothing is left to do."""
        self._loop = loop
        self._has_resumed = self._saved.restore(loop)
        if not self._has_resumed:
            return False
        self._display.note(f"going on after generation {self._method.generation}, from {self._saved.path}")
        return bool(loop.rows) and self._is_enough(loop.rows[-1])

    def begin(self, watched: ObservedRun, running: RunningEvaluation) -> None:
        """Set the run and the view that are told from now on."""
        self._watched, self._running = watched, running
        if self._has_resumed:
            watched.resumed_from(self._method.generation)

    def end_row(self, row: Row) -> bool:
        """Handle the end of a generation; returns whether it was the last one."""
        generation = self._method.generation
        self._decisions.flush()
        self._display.row(row)
        if self._report is not None:
            self._report(int(row["generation"]), **{name: row[name] for name in row if name != "generation"})
        self._watched.row(row, generation)
        path = self._saved.save(self._loop, generation)
        if path is not None:
            self._watched.checkpoint(generation, path)
            self._running.happened("checkpoint", f"generation {generation} is saved in {path}")
        is_over = self._is_enough(row)
        if not is_over:
            self._watched.interrupt(generation, is_saved=path is not None)
        return is_over

    def failed(self, failure: Fail) -> None:
        """Handle an evaluation that failed."""
        self._watched.event("evaluation failed", failure.why, ask=failure.ticket.ask)
        self._running.failed(failure)

    def _is_enough(self, row: Row) -> bool:
        return self._stop.is_met(self._method.generation, row)


__all__ = ["RunObserver"]
