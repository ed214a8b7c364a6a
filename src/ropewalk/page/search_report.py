"""The pictures and the table of a search, in reports."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ropewalk.html_table import Cell, StateCell
from ropewalk.page.pictures.curves import curves
from ropewalk.page.pictures.history import history
from ropewalk.page.pictures.importance import importance
from ropewalk.page.pictures.parallel import parallel
from ropewalk.page.pictures.pareto import pareto
from ropewalk.page.report_document import ReportChart, ReportTable
from ropewalk.page.style import Option, Style
from ropewalk.search.importance import importances
from ropewalk.search.results import SearchResults

_MOST_TRIALS = 2000
_MOST_CURVES = 100
_MOST_AXES = 12

_Drawing = Callable[[Mapping[str, Any], Style], Option]


def search_charts(results: SearchResults) -> list[ReportChart]:
    """Return the pictures of a search: history, importance, configurations, steps, and the front of two objectives."""
    metric, mode = results.metrics[0], results.modes[0]
    weights = importances(results)
    names = sorted(_varied(results), key=lambda name: -weights.get(name, 0.0))[:_MOST_AXES]
    rows = [[*(trial.hyperparameters.get(name) for name in names), trial.best] for trial in results]
    past = {"metric": metric, "mode": mode, "trials": [[one.number, one.best, one.state] for one in results]}
    charts = [
        _chart("History", history, past, help="the value of each trial, and the best until then"),
        _chart("Importance", importance, {"shares": weights}, help="of hyperparameters, by PED-ANOVA"),
        _chart("Steps", curves, _steps(results), help="the curve of each trial; where many end, there is a rung"),
    ]
    if names:
        data = {"metric": metric, "names": names, "rows": rows}
        charts.append(_chart("Configurations", parallel, data, 340, "a line for each trial; axes can be brushed", True))
    if len(results.metrics) == 2:
        charts.append(_chart("Pareto front", pareto, _front(results)))
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
    title: str, draw: _Drawing, data: Mapping[str, Any], height: int = 300, help: str = "", wide: bool = False
) -> ReportChart:
    return ReportChart(title, lambda style: draw(data, style), height, help, wide)


def _steps(results: SearchResults) -> dict[str, Any]:
    """Return the data of the curves of the best trials."""
    sign = 1 if results.modes[0] == "max" else -1
    lines = [
        {"name": f"trial {one.number}", "color": at, "raw": None,
         "points": [[step, sign * score] for step, score in sorted(one.scores.items())]}
        for at, one in enumerate(results.ranked()[:_MOST_CURVES])
    ]  # fmt: skip
    lines = [line for line in lines if line["points"]]
    return {"metric": results.metrics[0], "x": "step", "log_x": False, "log_y": False, "range": None, "lines": lines,
            "legend": False}  # fmt: skip


def _front(results: SearchResults) -> dict[str, Any]:
    names = results.metrics
    measured = [one for one in results if all(name in one.values for name in names)]
    trials = [[one.number, *(one.values[name] for name in names)] for one in measured]
    return {"metrics": list(names), "trials": trials, "front": [one.number for one in results.pareto_front]}


def _varied(results: SearchResults) -> list[str]:
    names = dict.fromkeys(name for trial in results for name in trial.hyperparameters)
    return [name for name in names if len({str(trial.hyperparameters.get(name)) for trial in results}) > 1]


def _shown(value: object) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value)


__all__ = ["search_charts", "trial_table"]
