"""What a search shows, from its book: counts, the best, events of its log, and never too many trials."""

from __future__ import annotations

import math

import pytest

from ropewalk.search.book import Mode, TrialFacts, TrialState
from ropewalk.search.schedulers import ASHA
from ropewalk.search.schedulers.scheduler import StartTrial
from ropewalk.search.view import Objective, event_of, facts_of, progress_of, state_of, trials_panel


def trial(number: int, state: TrialState, best: float | None = None, **history: float) -> TrialFacts:
    facts = TrialFacts(number, {"rate": 0.1, "kind": "<b>"}, None, state=state, best=best)
    facts.history.update({float(step.removeprefix("at")): score for step, score in history.items()})
    return facts


@pytest.mark.parametrize(("mode", "best", "number"), [("max", 0.9, 1), ("min", 0.1, 2)])
def test_the_best_trial_is_that_of_the_mode_and_not_one_without_a_number(mode: Mode, best: float, number: int) -> None:
    trials = [
        trial(0, TrialState.DONE, math.nan),
        trial(1, TrialState.RUNNING, 0.9),
        trial(2, TrialState.FAILED, 0.1),
        trial(3, TrialState.PAUSED, 0.9),
    ]
    facts = facts_of(trials, list(map(state_of, trials)), 10, Objective("loss", mode))
    assert (facts["best"], facts["best_trial"]) == (best, number)
    assert (facts["trials"], facts["trials_in_all"], facts["metric"]) == (4, 10, "loss")
    assert (facts["done"], facts["running"], facts["failed"], facts["paused"]) == (1, 1, 1, 1)
    assert "waiting" not in facts


def test_a_search_has_progress_once_its_number_of_trials_is_known() -> None:
    assert progress_of(["done", "running", "waiting", "paused"], 8) == 0.25
    assert progress_of(["done"], None) is None and progress_of([], 4) == 0.0


def test_scores_are_shown_as_the_metric_was_logged() -> None:
    facts = trial(0, TrialState.DONE, 0.5, at1=-0.7, at2=-math.inf, at10=-0.5)
    facts.values = (0.5,)
    (row,) = trials_panel([facts], Objective("loss", "min"))["trials"]
    assert row["curve"] == [[1.0, 0.7], [2.0, None], [10.0, 0.5]]
    assert (row["best"], row["value"], row["state"]) == (0.5, 0.5, "done")
    assert row["hyperparameters"] == {"rate": 0.1, "kind": "<b>"}


def test_of_many_trials_those_that_run_and_the_best_are_shown_by_number() -> None:
    trials = [trial(number, TrialState.DONE, float(number), at1=1.0) for number in range(900)]
    trials.append(trial(900, TrialState.RUNNING))
    rows = trials_panel(trials, Objective("score", "max"))["trials"]
    assert [row["number"] for row in rows] == [*range(401, 900), 900]
    assert [row["number"] for row in rows if row["curve"]] == list(range(861, 900))


def test_rungs_tell_how_many_trials_came_and_went_on() -> None:
    scheduler = ASHA(R=9, eta=3)
    for number in range(3):
        scheduler.started(number, StartTrial(1.0))
        scheduler.reported(number, 1.0, float(number))
        scheduler.paused(number, 1.0)
    scheduler.promoted(scheduler.next())  # type: ignore[arg-type]
    rungs = trials_panel([], Objective("score", "max", scheduler))["rungs"]
    assert [tuple(rung.values()) for rung in rungs] == [(0, 1, 3, 2, 1), (0, 3, 0, 0, 0), (0, 9, 0, 0, 0)]


@pytest.mark.parametrize(
    ("line", "event"),
    [
        (["start", 3, {"x": 1}, 9, 0], ("", "trial 3 begins, until step 9")),
        (["start", 3, {"x": 1}, None, 0], ("", "trial 3 begins")),
        (["promote", 3, 27], ("", "trial 3 is promoted, until step 27")),
        (["retry", 3], ("retry", "trial 3 is begun again")),
        (["fail", 3, "died: was killed by SIGKILL", "<b>", "always"], ("death", "trial 3 was killed by SIGKILL: <b>")),
        (["fail", 3, "ValueError", "no data", "never"], ("", "trial 3 failed: no data")),
        (["end", 3], ("", "trial 3 has ended")),
        (["drop", 3, "a user stopped it"], ("", "trial 3 is stopped: a user stopped it")),
        (["report", 3, 9.0, [0.5], "stop"], ("", "trial 3 is stopped by the scheduler at step 9")),
        (["report", 3, 9.0, [0.5]], None),
        (["suspend"], None),
    ],
)
def test_lines_of_the_log_are_events(line: list[object], event: tuple[str, str] | None) -> None:
    assert event_of(line) == event
