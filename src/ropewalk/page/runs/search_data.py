"""The data of the pictures of a search, from its trials and the lines of its book; pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ropewalk.escaping import escaped
from ropewalk.last_line import last_line
from ropewalk.page.pictures.parallel import ABSENT
from ropewalk.page.runs.row_selection import is_number
from ropewalk.search.book import Line
from ropewalk.search.results import SearchResults
from ropewalk.search.trial_result import TrialResult

_MOST_AXES = 12
"""How many hyperparameters parallel coordinates show."""


@dataclass(slots=True)
class _Rung:
    budget: float
    bracket: int
    trials: dict[int, float | None] = field(default_factory=dict[int, "float | None"])
    promoted: set[int] = field(default_factory=set[int])


def shown_state(state: str, *, is_over: bool) -> str:
    """Return the state of a trial as it is shown: one that a scheduler left paused in a search that is over is done.

    Args:
        state: of the trial.
        is_over: whether the search is complete.
    """
    return "not promoted" if is_over and state == "paused" else state


def history_data(results: SearchResults, *, is_over: bool = False) -> dict[str, Any]:
    """Return the data of `pictures.history`; see `shown_state`."""
    trials = [[trial.number, trial.best, shown_state(trial.state, is_over=is_over)] for trial in results]
    return {"metric": results.metrics[0], "mode": results.modes[0], "trials": trials}


def parallel_data(results: SearchResults, shares: Mapping[str, float]) -> tuple[dict[str, Any], list[int]]:
    """Return the data of `pictures.parallel`, and the number of the trial of each row.

    Args:
        results: the trials.
        shares: importance of each hyperparameter; the most important ones come first.
    """
    trials = [trial for trial in results if trial.best is not None and math.isfinite(trial.best)]
    names = [name for name in dict.fromkeys(name for trial in trials for name in trial.hyperparameters)
             if len({str(trial.hyperparameters.get(name)) for trial in trials}) > 1]  # fmt: skip
    names = sorted(names, key=lambda name: -shares.get(name, 0.0))[:_MOST_AXES]
    rows = [[*(trial.hyperparameters.get(name, ABSENT) for name in names), trial.best] for trial in trials]
    return {"metric": results.metrics[0], "names": names, "rows": rows}, [trial.number for trial in trials]


def pareto_data(results: SearchResults) -> dict[str, Any]:
    """Return the data of `pictures.pareto`; empty unless there are two objectives."""
    if len(results.metrics) != 2:
        return {}
    trials = [[trial.number, *(trial.values[name] for name in results.metrics)]
              for trial in results if len(trial.values) == 2]  # fmt: skip
    return {"metrics": list(results.metrics), "trials": trials, "front": [one.number for one in results.pareto_front]}


def rungs_data(results: SearchResults, lines: Iterable[Line]) -> dict[str, Any]:
    """Return the data of `pictures.rungs`; empty if no trial has a budget.

    Args:
        results: the trials.
        lines: the book of the search, of which "start", "promote" and "pause" count.
    """
    rungs: dict[tuple[int, float], _Rung] = {}
    bracket_of: dict[int, int] = {}
    for line in lines:
        match line:
            case ["start", int(trial), _, int() | float() as budget, int(bracket)]:
                bracket_of[trial] = bracket
                rungs.setdefault((bracket, float(budget)), _Rung(float(budget), bracket)).trials[trial] = None
            case ["promote", int(trial), int() | float() as budget]:
                bracket = bracket_of.get(trial, 0)
                before = [rung for rung in rungs.values() if rung.bracket == bracket and trial in rung.trials]
                if before:
                    max(before, key=lambda rung: rung.budget).promoted.add(trial)
                rungs.setdefault((bracket, float(budget)), _Rung(float(budget), bracket)).trials[trial] = None
            case _:
                pass
    sign = 1 if results.modes[0] == "max" else -1
    by_number = {trial.number: trial for trial in results}
    found = [
        {"bracket": rung.bracket, "budget": rung.budget,
         "trials": [[number, _value_at(by_number.get(number), rung.budget, sign), number in rung.promoted]
                    for number in rung.trials]}
        for _, rung in sorted(rungs.items())
    ]  # fmt: skip
    return {"metric": results.metrics[0], "mode": results.modes[0], "rungs": found} if found else {}


def _value_at(trial: TrialResult | None, budget: float, sign: int) -> float | None:
    """Return the last value of a trial up to a budget; None if it has not reported one."""
    steps = [] if trial is None else [step for step in trial.scores if step <= budget]
    return None if trial is None or not steps else sign * trial.scores[max(steps)]


def trial_columns(results: SearchResults) -> list[dict[str, Any]]:
    """Return the columns of the table of `trial_rows`, as AG Grid has them; the best trial comes first."""
    names = list(dict.fromkeys(name for trial in results for name in trial.hyperparameters))
    numeric = {name for name in names if all(is_number(trial.hyperparameters.get(name, 0)) for trial in results)}
    best = _number("best", f"best {escaped(results.metrics[0])}", 150)
    columns = [
        {"field": "number", "headerName": "trial", "width": 90, "pinned": "left",
         ":cellRenderer": "p => ropewalkTable.trial(p)"},
        {"field": "state", "headerName": "state", "width": 130, ":cellRenderer": "p => ropewalkTable.state(p)"},
        {**best, "sort": "desc" if results.modes[0] == "max" else "asc"},
        *(_number(f"metric.{name}", f"last {escaped(name)}", 140) for name in results.metrics),
        _number("step", "step", 90),
        _number("attempts", "attempts", 100),
        {**_number("bracket", "bracket", 100), "hide": not any(trial.bracket for trial in results)},
        *(_number(f"config.{name}", escaped(name), 110) if name in numeric
          else {"field": f"config.{name}", "headerName": escaped(name), "width": 110} for name in names),
        {"field": "why", "headerName": "why it ended", "width": 260},
    ]  # fmt: skip
    return [{"filter": True, "cellDataType": False, **column} for column in columns]


def _number(field: str, name: str, width: int) -> dict[str, Any]:
    return {"field": field, "headerName": name, "width": width, "type": "rightAligned",
            ":valueFormatter": "p => ropewalkTable.number(p)"}  # fmt: skip


def trial_rows(results: SearchResults, *, is_over: bool = False) -> list[dict[str, Any]]:
    """Return a row for each trial for a table; names of hyperparameters and metrics begin with a word of ours.

    Args:
        results: the trials.
        is_over: see `shown_state`.
    """
    return [
        {
            "id": str(trial.number),
            "number": trial.number,
            "run": trial.run,
            "state": shown_state(trial.state, is_over=is_over),
            "best": _plain(trial.best),
            "step": trial.step,
            "attempts": trial.attempts,
            "bracket": trial.bracket,
            "why": last_line(trial.why),
            **{f"metric.{name}": _plain(value) for name, value in trial.values.items()},
            **{f"config.{name}": _plain(value) for name, value in trial.hyperparameters.items()},
        }
        for trial in results
    ]


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if value is None or isinstance(value, int | float | str) else str(value)


def state_counts(states: Sequence[str], *, is_over: bool = False) -> str:
    """Return how many trials are in each state, as "3 running, 40 done"; see `shown_state`."""
    counts: dict[str, int] = {}
    for state in (shown_state(state, is_over=is_over) for state in states):
        counts[state] = counts.get(state, 0) + 1
    order = ("running", "waiting", "queued", "paused", "done", "not promoted", "stopped", "failed", "lost")
    return ", ".join(f"{counts[state]} {state}" for state in order if state in counts)


__all__ = ["history_data", "parallel_data", "pareto_data", "rungs_data", "state_counts", "trial_columns", "trial_rows"]
