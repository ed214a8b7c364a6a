"""The pictures and the table of a search, in reports."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ropewalk.html_table import Cell, StateCell
from ropewalk.page.pictures.history import history
from ropewalk.page.pictures.importance import importance
from ropewalk.page.pictures.parallel import parallel
from ropewalk.page.pictures.pareto import pareto
from ropewalk.page.pictures.rungs import rungs
from ropewalk.page.report_document import ReportChart, ReportTable
from ropewalk.page.runs.search_data import history_data, parallel_data, pareto_data, rungs_data
from ropewalk.page.style import Option, Style
from ropewalk.page.view_report import panel_charts
from ropewalk.search.book import Line
from ropewalk.search.importance import importances
from ropewalk.search.results import SearchResults

_MOST_TRIALS = 2000

_Drawing = Callable[[Mapping[str, Any], Style], Option]


def search_charts(results: SearchResults, lines: Iterable[Line] = ()) -> list[ReportChart]:
    """Return the pictures of a search.

    Args:
        results: its trials.
        lines: of its book, for the rungs of its scheduler.
    """
    shares = importances(results)
    configurations, _ = parallel_data(results, shares)
    drawn: list[tuple[str, _Drawing, Mapping[str, Any], str]] = [
        ("History", history, history_data(results), "the value of each trial, and the best until then"),
        ("Importance", importance, {"shares": shares}, "of hyperparameters, by PED-ANOVA"),
        ("Rungs", rungs, rungs_data(results, lines), "of the scheduler: the trials on each, and the promoted ones"),
        ("Pareto front", pareto, pareto_data(results), "of the two objectives"),
    ]
    view = results.view()
    charts = [*(_chart(*one) for one in drawn), *panel_charts(view.offers, view.panels)]
    if configurations["names"]:
        help = "a line for each trial; drag along an axis to choose a part of it"
        charts.append(_chart("Configurations", parallel, configurations, help, height=340, wide=True))
    return charts


def trial_table(results: SearchResults) -> ReportTable:
    """Return the trials, the best one first."""
    names = list(dict.fromkeys(name for trial in results for name in trial.hyperparameters))
    rows: list[list[Cell]] = []
    ranked = results.ranked()
    for one in ranked[:_MOST_TRIALS]:
        best = "" if one.best is None else f"{one.best:.6g}"
        values = [_shown(one.hyperparameters.get(name, "")) for name in names]
        rows.append([str(one.number), StateCell(one.state), f"{one.step:g}", str(one.attempts), best, *values, one.why])
    head = ("trial", "state", "step", "attempts", f"best {results.metrics[0]}", *names, "why")
    more = f"; the best {_MOST_TRIALS} of {len(ranked)}" if len(ranked) > _MOST_TRIALS else ""
    return ReportTable("Trials", head, rows, frozenset(range(2, 5 + len(names))) | {0}, help=f"the best first{more}")


def _chart(
    title: str, draw: _Drawing, data: Mapping[str, Any], help: str, *, height: int = 300, wide: bool = False
) -> ReportChart:
    return ReportChart(title, lambda style: draw(data, style) if data else {}, height, help, wide)


def _shown(value: object) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value)


__all__ = ["search_charts", "trial_table"]
