"""What a search shows of itself while it runs, and afterwards. Pure.

trials of a book, or members of a population ──▶ facts, progress, panel "trials"
lines of the book's log ──▶ events
"""

from __future__ import annotations

import math
import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ropewalk.control.columns import finite, places
from ropewalk.control.view import View
from ropewalk.population.panels.schedules import shown
from ropewalk.search.book import Line, Mode
from ropewalk.search.schedulers.scheduler import Scheduler
from ropewalk.search.trial_facts import TrialFacts, TrialState
from ropewalk.search.trial_result import TrialResult

_MOST_TRIALS, _MOST_CURVES = 500, 40
"""Trials in the panel, and those of them that have a curve."""
_MOST_POINTS = 100
"""Points of the curve of one trial."""
_DIED = "died: "
"""Beginning of the class of a failure that is the death of a process; see `PoolPlaces`."""
_STATES = ("running", "waiting", "paused", "done", "stopped", "failed")


@dataclass(frozen=True, slots=True)
class Objective:
    """What decides in a search.

    Attributes:
        metric: name of the metric.
        mode: whether it is maximised or minimised.
        scheduler: which trials get which budget; None: none, as in a population.
    """

    metric: str
    mode: Mode
    scheduler: Scheduler | None = None

    @property
    def sign(self) -> int:
        """1 if the metric is maximised, -1 if it is minimised."""
        return 1 if self.mode == "max" else -1

    def rank(self, trial: TrialFacts | TrialResult) -> tuple[bool, float, int]:
        """Return what sorts trials: those that run first, then the best ones."""
        best = finite(trial.best)
        return state_of(trial) != "running", math.inf if best is None else -self.sign * best, trial.number


def state_of(trial: TrialFacts | TrialResult) -> str:
    """Return the state of a trial as a word."""
    return trial.state.value if isinstance(trial.state, TrialState) else trial.state


def facts_of(
    trials: Sequence[TrialFacts | TrialResult], states: Sequence[str], total: int | None, objective: Objective
) -> dict[str, float | int | str]:
    """Return what stands in the header of a search.

    Args:
        trials: the trials, by number.
        states: states of the trials.
        total: number of trials that it is limited to; None: none.
        objective: what decides.
    """
    counts = Counter(states)
    facts: dict[str, float | int | str] = {"metric": objective.metric, "trials": len(states)}
    if total is not None:
        facts["trials_in_all"] = total
    facts |= {state: counts[state] for state in _STATES if counts[state] or state in ("running", "done")}
    scored = [(objective.sign * best, -trial.number) for trial in trials if (best := finite(trial.best)) is not None]
    if scored:
        score, number = max(scored)
        facts |= {"best": objective.sign * score, "best_trial": -number}
    return facts


def progress_of(states: Sequence[str], total: int | None) -> float | None:
    """Return the share of the trials that do not run any more, 0 to 1; None if their number is not known.

    A trial that has used its budget, and may be promoted, counts as one that does not run.
    """
    if not total:
        return None
    return min(1.0, sum(state not in ("running", "waiting") for state in states) / total)


def trials_panel(trials: Sequence[TrialFacts | TrialResult], objective: Objective) -> dict[str, Any]:
    """Return the trials and the rungs as they are now.

    The form is `{"metric": text, "mode": "max" or "min", "trials": [{"number", "state", "step", "budget", "bracket",
    "attempts", "value", "best", "why", "hyperparameters": {name: value}, "curve": [[step, value]]}], "rungs":
    [{"bracket", "budget", "entered", "promotable", "promoted"}]}`. `value` is the last one of the metric, `best` the
    best at any step; None if there is none. `budget` is None without a limit. Of a rung, `entered` trials have trained
    for its budget, of which `promoted` went on, and `promotable` may still. Of more than 500 trials, those that run and
    the best ones are given, by number; the 40 first of these have a curve, of at most 100 points, and the others none.

    Args:
        trials: the trials, by number.
        objective: what decides.
    """
    ranked = sorted(trials, key=objective.rank)[:_MOST_TRIALS]
    curves = {trial.number for trial in ranked[:_MOST_CURVES]}
    brackets = objective.scheduler.brackets if objective.scheduler else ()
    return {
        "metric": objective.metric,
        "mode": objective.mode,
        "trials": [
            _row(trial) | {"curve": _curve(trial, objective.sign) if trial.number in curves else []}
            for trial in sorted(ranked, key=lambda trial: trial.number)
        ],
        "rungs": [
            {
                "bracket": number,
                "budget": finite(rung.budget),
                "entered": len(rung.ranking),
                "promotable": len(rung.promotable),
                "promoted": rung.num_promoted,
            }
            for number, bracket in enumerate(brackets)
            for rung in bracket.rungs
        ],
    }


def _row(trial: TrialFacts | TrialResult) -> dict[str, Any]:
    if isinstance(trial, TrialFacts):
        budget, value = trial.budget, trial.values[0] if trial.values else None
    else:
        budget, value = None, next(iter(trial.values.values()), None)
    return {
        "number": trial.number,
        "state": state_of(trial),
        "step": finite(trial.step),
        "budget": finite(budget),
        "bracket": trial.bracket,
        "attempts": trial.attempts,
        "value": finite(value),
        "best": finite(trial.best),
        "why": trial.why,
        "hyperparameters": {name: shown(each) for name, each in dict(trial.hyperparameters).items()},
    }


def _curve(trial: TrialFacts | TrialResult, sign: int) -> list[list[float | None]]:
    history = trial.history if isinstance(trial, TrialFacts) else trial.scores
    points = sorted(dict(history).items())
    chosen = [points[at] for at in places(0, len(points), _MOST_POINTS)]
    return [[step, None if (known := finite(score)) is None else sign * known] for step, score in chosen]


def ended_view(
    name: str, run: str, trials: Sequence[TrialResult], objective: Objective, asked: Mapping[str, int] | None
) -> View:
    """Return the view of a search that has ended.

    Args:
        name: name of the search.
        run: id of its run.
        trials: the trials, by number.
        objective: what decides.
        asked: cursors by name of the panel; None: all panels.
    """
    states, now = list(map(state_of, trials)), time.time()
    return View(
        kind="search",
        name=name,
        id=run or "ended",
        pid=os.getpid(),
        state="completed",
        started=now,
        at=now,
        run=run,
        progress=1.0,
        left_s=0.0,
        facts=facts_of(trials, states, None, objective),
        panels={"trials": trials_panel(trials, objective)} if asked is None or "trials" in asked else {},
        offers=("trials",),
    )


def event_of(line: Line) -> tuple[str, str] | None:
    """Return a line of the log of a search as the kind and the text of an event; None if it is not an event to show."""
    match line:
        case ["start", number, dict(), budget, _]:
            until = "" if budget is None else f", until step {budget:g}"
            return "", f"trial {number} begins{until}"
        case ["promote", trial, budget]:
            return "", f"trial {trial} is promoted" + ("" if budget is None else f", until step {budget:g}")
        case ["retry", trial]:
            return "retry", f"trial {trial} is begun again"
        case ["fail", trial, str(failure_class), why, _] if failure_class.startswith(_DIED):
            return "death", f"trial {trial} {failure_class.removeprefix(_DIED)}: {why}"
        case ["fail", trial, _, why, _]:
            return "", f"trial {trial} failed: {why}"
        case ["end", trial]:
            return "", f"trial {trial} has ended"
        case ["drop", trial, why]:
            return "", f"trial {trial} is stopped: {why}"
        case ["report", trial, step, _, "stop"]:
            return "", f"trial {trial} is stopped by the scheduler at step {step:g}"
        case _:
            return None


__all__ = ["Objective", "ended_view", "event_of", "facts_of", "progress_of", "state_of", "trials_panel"]
