"""`RunResult`: what `evaluate` returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from ropewalk.control.view import View
from ropewalk.population.algorithm import Algorithm
from ropewalk.population.decisions import Decisions
from ropewalk.population.evaluation import own
from ropewalk.population.rows import Row
from ropewalk.population.run import EvaluationLoop
from ropewalk.population.view import ended_view, html_of_rows

A = TypeVar("A", bound=Algorithm[Any])


@dataclass(slots=True)
class RunResult(Generic[A]):
    """The result of a run."""

    algorithm: A
    """The algorithm after the last tell; for an object of another library, the algorithm that `adapt` returned."""
    table: list[Row]
    """One row per generation: fitness, tests, figures of the algorithm, times."""
    best: Any
    """The solution to use: the incumbent with the best test; without tests, the last incumbent."""
    best_test: float
    """The mean fitness of the best test; NaN without tests."""
    best_fitness: float
    """The best fitness of any single evaluation, as in the column "best"; often the result of chance."""
    decisions: Decisions
    """The log of decisions, in order: `evaluate(..., replay=run.decisions)` repeats the run."""
    evaluations: int
    steps: int
    """Number of environment steps, as far as outcomes report them."""
    seconds: float
    launcher_ms: float
    """CPU time of this process per evaluation, over all its threads, in ms; NaN if this process ran the evaluations."""
    checkpoint_failures: list[str]
    """Error messages of checkpoints that could not be written."""
    fitness: str = ""
    """Name of the fitness function."""

    def view(self, panels: dict[str, int] | None = None) -> View:
        """Return what the page and reports show about the run, now that it has ended.

        Args:
            panels: names of the panels whose data is wanted, with cursors; see `ropewalk.control.view.Observable`.
                None: all of them.
        """
        return ended_view(self.algorithm, self.table, self.evaluations, self.seconds, self.fitness, panels)

    def _repr_html_(self) -> str:
        return html_of_rows(type(self.algorithm).__name__, str(self), self.table)

    def __str__(self) -> str:
        rate = self.evaluations / self.seconds if self.seconds else 0.0
        test = "" if self.best_test != self.best_test else f"best test {self.best_test:.6g}, "
        own = "" if self.launcher_ms != self.launcher_ms else f", {self.launcher_ms:.3f} ms of the launcher for each"
        return (
            f"{type(self.algorithm).__name__}: {test}best evaluation {self.best_fitness:.6g}, "
            f"{self.algorithm.generation} generations, {self.evaluations} evaluations in {self.seconds:.1f} s "
            f"({rate:.4g}/s{own})"
        )


def result_of(
    method: Algorithm[Any],
    loop: EvaluationLoop,
    decisions: Decisions,
    checkpoint_failures: list[str],
    *,
    fitness: str,
    shares_process: bool,
) -> RunResult[Any]:
    """Return what a loop has found.

    Args:
        method: the algorithm.
        loop: has evaluated it.
        decisions: the log of the run.
        checkpoint_failures: messages of checkpoints that could not be written.
        fitness: name of the fitness function.
        shares_process: whether this process ran the evaluations.
    """
    tested = loop.best_tested is not None
    return RunResult(
        algorithm=method,
        table=loop.rows,
        best=own(loop.best_tested if tested else method.incumbent()),
        best_test=loop.best_test if tested else float("nan"),
        best_fitness=loop.best_fitness,
        decisions=decisions,
        fitness=fitness,
        evaluations=loop.num_evaluations,
        steps=loop.num_steps,
        seconds=loop.seconds,
        launcher_ms=float("nan") if shares_process else 1e3 * loop.cpu_s / max(1, loop.num_evaluations),
        checkpoint_failures=checkpoint_failures,
    )
