"""What a population shows of itself while it is evaluated, and afterwards. Pure.

table of the run, figures ──▶ facts, progress          algorithm.panels() ──▶ "archive", "schedules", "lineage", "tree"
                 rows ──▶ panel "fitness"
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ropewalk.control.columns import finite
from ropewalk.control.view import View
from ropewalk.html_table import html_box, html_headline, html_table
from ropewalk.population.algorithm import Algorithm, Panel
from ropewalk.population.panels.fitness import fitness_panel
from ropewalk.population.rows import RESERVED, Row

_SHOWN = ("generation", "evaluations", "mean", "median", "max", "best", "test", "failed", "dropped")
"""Columns of the table in a notebook."""
_SHOWN_ROWS = 10
_MOST_FIGURES = 12
"""Figures of the algorithm that the header has room for."""


@dataclass(frozen=True, slots=True)
class PopulationCounts:
    """What an evaluation has counted, besides its rows.

    Attributes:
        evaluations: told to the algorithm.
        failed: of those, evaluations without a fitness of their own.
        dropped: evaluations that were given up.
        under_way: evaluations that were asked for and neither told nor dropped; None if that cannot be known now.
        workers: that evaluate.
        seconds: of all rows.
    """

    evaluations: int
    failed: int
    dropped: int
    under_way: int | None
    workers: int
    seconds: float


def facts_of(
    rows: Sequence[Row], counts: PopulationCounts, generations: int | None, fitness: str
) -> dict[str, float | int | str]:
    """Return what stands in the header of a population.

    Args:
        rows: the table of the run.
        counts: what it has counted.
        generations: total number of generations; None for no limit.
        fitness: name of the fitness function.
    """
    facts: dict[str, float | int | str | None] = {"fitness": fitness}
    row = rows[-1] if rows else {}
    facts["generation"] = int(row.get("generation", 0))
    facts["generations"] = generations
    facts["evaluations"] = counts.evaluations
    facts["evaluations_per_s"] = finite(row.get("evaluations_per_s"))
    for name in ("best", "mean", "median"):
        facts[name] = finite(row.get(name))
    facts["test"] = next((finite(each["test"]) for each in reversed(rows) if "test" in each), None)
    facts |= {"under_way": counts.under_way, "failed": counts.failed, "dropped": counts.dropped}
    facts |= {"workers": counts.workers, "env_steps": int(row.get("steps", 0)) or None}
    figures = [name for name in row if name not in RESERVED][:_MOST_FIGURES]
    facts |= {name: finite(row[name]) for name in figures}
    return {name: value for name, value in facts.items() if value is not None}


def progress_of(algorithm: Algorithm[Any], rows: Sequence[Row], generations: int | None) -> float | None:
    """Return the share of the work that is done, 0 to 1; None if the run ends by something else than a number."""
    if generations is not None:
        return min(1.0, rows[-1]["generation"] / generations) if rows else 0.0
    return algorithm.progress


def time_left(progress: float | None, seconds: float, before: float = 0.0) -> float | None:
    """Return the expected seconds until the work is done; None if that cannot be known yet.

    Args:
        progress: share of the work that is done.
        seconds: that it took.
        before: share of the work that was done before these seconds.
    """
    return seconds * (1 - progress) / (progress - before) if progress and progress > before else None


def all_panels(rows: Sequence[Row], panels: Mapping[str, Panel]) -> dict[str, Panel]:
    """Return all panels of a population, by name.

    Args:
        rows: the table of the run.
        panels: those of the algorithm.
    """
    return {"fitness": lambda cursor: fitness_panel(rows, cursor), **panels}


def wanted(panels: Mapping[str, Panel], asked: Mapping[str, int]) -> dict[str, Any]:
    """Return the data of the panels that are asked for, with the cursors of their last data; unknown ones are left out.

    Args:
        panels: those that there are.
        asked: cursors by name of the panel.
    """
    return {name: panels[name](cursor) for name, cursor in asked.items() if name in panels}


def ended_view(
    algorithm: Algorithm[Any],
    rows: Sequence[Row],
    evaluations: int,
    seconds: float,
    fitness: str,
    asked: Mapping[str, int] | None,
) -> View:
    """Return the view of a run that has ended.

    Args:
        algorithm: the algorithm.
        rows: the table of the run.
        evaluations: told to the algorithm.
        seconds: of all rows.
        fitness: name of the fitness function.
        asked: cursors by name of the panel; None: all panels.
    """
    workers = int(rows[-1]["workers"]) if rows else 0
    failed, dropped = (int(sum(row[name] for row in rows)) for name in ("failed", "dropped"))
    panels, now = all_panels(rows, algorithm.panels()), time.time()
    return View(
        kind="population",
        name=type(algorithm).__name__,
        id="ended",
        pid=os.getpid(),
        state="completed",
        started=now - seconds,
        at=now,
        progress=1.0,
        left_s=0.0,
        facts=facts_of(rows, PopulationCounts(evaluations, failed, dropped, 0, workers, seconds), None, fitness),
        panels=wanted(panels, dict.fromkeys(panels, 0) if asked is None else asked),
        offers=tuple(panels),
    )


def html_of_rows(name: str, words: str, rows: Sequence[Row]) -> str:
    """Return a run as HTML: a line with its results, and its last generations.

    Args:
        name: of the algorithm.
        words: its results, which begin with that name.
        rows: the table of the run.
    """
    names = [column for column in _SHOWN if any(column in row for row in rows[-_SHOWN_ROWS:])]
    cells = [[f"{row[column]:.6g}" if column in row else "" for column in names] for row in rows[-_SHOWN_ROWS:]]
    table = html_table(names, cells, right=range(len(names))) if names else ""
    return html_box(html_headline(name, "", [("", words.removeprefix(f"{name}: "))]), table)


__all__ = [
    "PopulationCounts",
    "all_panels",
    "ended_view",
    "facts_of",
    "html_of_rows",
    "progress_of",
    "time_left",
    "wanted",
]
