"""What a search shows of itself while it runs, and afterwards. Pure.

trials of a book, or members of a population ──▶ facts, progress, panel "trials"
lines of the book's log ──▶ events
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from ropewalk.control.columns import finite, places
from ropewalk.population.panels.schedules import shown
from ropewalk.search.book import Line, Mode, TrialFacts, TrialState
from ropewalk.search.results import TrialResult
from ropewalk.search.schedulers.scheduler import Scheduler

_MOST_POINTS = 200
"""Points of the curve of one trial."""
_STATES = ("running", "waiting", "paused", "done", "stopped", "failed")


class RowChanges:
    """Numbers the changes of rows, so that each viewer is given the rows that have changed since it looked last."""

    def __init__(self) -> None:
        self._keys: list[Hashable] = []
        self._changed: list[int] = []
        self._num = 0

    def since(self, cursor: int, keys: Sequence[Hashable]) -> tuple[list[int], int]:
        """Return the indices of the rows that have changed after a cursor, and the cursor for the next look.

        Args:
            cursor: that of the last look, or 0 for all rows.
            keys: of each row, something that is another when the row has changed.
        """
        self._num += 1
        new = len(keys) - len(self._keys)
        self._keys += [None] * new
        self._changed += [0] * new
        for row, key in enumerate(keys):
            if key != self._keys[row]:
                self._keys[row], self._changed[row] = key, self._num
        return [row for row, changed in enumerate(self._changed) if changed > cursor], self._num


def _key_of(trial: TrialFacts | TrialResult) -> Hashable:
    """Return what is another when something of a trial has changed that is shown."""
    return trial.state, trial.step, trial.attempts, trial.best, trial.why, len(trial.hyperparameters)


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


def states_of(trials: Sequence[TrialFacts | TrialResult]) -> list[str]:
    """Return the state of each trial, as a word."""
    return [trial.state.value if isinstance(trial.state, TrialState) else trial.state for trial in trials]


def facts_of(
    trials: Sequence[TrialFacts | TrialResult], states: Sequence[str], total: int | None, objective: Objective
) -> dict[str, float | int | str]:
    """Return what stands in the header of a search.

    Args:
        trials: by number.
        states: of the trials.
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


def trials_panel(
    trials: Sequence[TrialFacts | TrialResult], changes: RowChanges, cursor: int, objective: Objective
) -> dict[str, Any]:
    """Return the trials that have changed after a cursor, and the rungs as they are now.

    The form is `{"cursor": number, "metric": text, "mode": "max" or "min", "trials": [{"number", "state", "step",
    "budget", "bracket", "attempts", "value", "best", "why", "hyperparameters": {name: value}, "curve": [[step,
    value]]}], "rungs": [{"bracket", "budget", "entered", "promotable", "promoted"}]}`. A trial replaces that of the
    same number in earlier answers. `value` is the last one of the metric, `best` the best at any step; None if there is
    none. A curve has at most 200 points. `budget` is None without a limit. Of a rung, `entered` trials have trained for
    its budget, of which `promoted` went on, and `promotable` may still.

    Args:
        trials: by number.
        changes: those of the search, for all viewers.
        cursor: that of the last answer, or 0.
        objective: what decides.
    """
    changed, end = changes.since(cursor, [_key_of(trial) for trial in trials])
    brackets = objective.scheduler.brackets if objective.scheduler else ()
    return {
        "cursor": end,
        "metric": objective.metric,
        "mode": objective.mode,
        "trials": [_row(trials[number], objective.sign) for number in changed],
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


def _row(trial: TrialFacts | TrialResult, sign: int) -> dict[str, Any]:
    if isinstance(trial, TrialFacts):
        state, history, budget = trial.state.value, trial.history.copy(), trial.budget
        value = trial.values[0] if trial.values else None
    else:
        state, history, budget = trial.state, dict(trial.scores), None
        value = next(iter(trial.values.values()), None)
    points = sorted(history.items())
    return {
        "number": trial.number,
        "state": state,
        "step": finite(trial.step),
        "budget": finite(budget),
        "bracket": trial.bracket,
        "attempts": trial.attempts,
        "value": finite(value),
        "best": finite(trial.best),
        "why": trial.why,
        "hyperparameters": {name: shown(each) for name, each in dict(trial.hyperparameters).items()},
        "curve": [
            [points[at][0], None if (score := finite(points[at][1])) is None else sign * score]
            for at in places(0, len(points), _MOST_POINTS)
        ],
    }


def event_of(line: Line) -> tuple[str, str] | None:
    """Return a line of the log of a search as the kind and the text of an event; None if it is no event to show."""
    match line:
        case ["start", number, dict(), budget, _]:
            until = "" if budget is None else f", until step {budget:g}"
            return "", f"trial {number} begins{until}"
        case ["promote", trial, budget]:
            return "", f"trial {trial} is promoted" + ("" if budget is None else f", until step {budget:g}")
        case ["retry", trial]:
            return "retry", f"trial {trial} is begun again"
        case ["fail", trial, str(failure_class), why, _]:
            return "death" if failure_class.startswith("died") else "", f"trial {trial} failed: {why}"
        case ["end", trial]:
            return "", f"trial {trial} has ended"
        case ["drop", trial, why]:
            return "", f"trial {trial} is stopped: {why}"
        case ["report", trial, step, _, "stop"]:
            return "", f"trial {trial} is stopped by the scheduler at step {step:g}"
        case _:
            return None


__all__ = ["Objective", "RowChanges", "event_of", "facts_of", "progress_of", "states_of", "trials_panel"]
