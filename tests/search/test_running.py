"""Searches are seen by other terminals while they run, and show what their books and populations know."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ropewalk.control.view import View
from ropewalk.population.hyperparameters import Uniform
from ropewalk.search.population_search import PopulationSearch
from ropewalk.search.running import RunningSearch
from ropewalk.search.schedulers import ASHA, PopulationTraining
from ropewalk.search.search import Search
from ropewalk.search.trial_facts import TrialFacts, TrialState
from ropewalk.search.view import Objective
from tests.control.looking import ask_for, looks, within
from tests.patience import PATIENCE_S
from tests.search import functions

pytestmark = pytest.mark.usefixtures("shared_session")

PANELS = {"trials": 0, "schedules": 0, "lineage": 0, "fitness": 0}


@pytest.fixture
def made(tmp_path: Path) -> Callable[..., Search]:
    """Makes searches whose store is in the folder of the test."""

    def make(train: Callable[..., Any], **settings: Any) -> Search:
        settings = {"metric": "score", "max_concurrent": 1, "progress": False} | settings
        return Search(train, {"x": Uniform(0, 1)}, store=tmp_path / "runs.db", **settings)

    return make


def run_and_look(search: Search, enough: Callable[[View], bool]) -> tuple[Any, View]:
    """Run a search in a thread, and look at it until a view is enough; its results, and that view."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(search.run()))
    seen: list[View] = []

    def is_seen() -> bool:
        seen.extend(view for view in looks("search", PANELS) if enough(view))
        return bool(seen) or not thread.is_alive()

    thread.start()
    try:
        assert within(PATIENCE_S, is_seen) and seen, "it ended before anybody saw it"
    finally:
        thread.join()
    return results[0], seen[0]


def test_trials_are_counted_and_shown_with_their_curves(made: Callable[..., Search]) -> None:
    search = made(functions.slow_climb, trials=4)
    results, view = run_and_look(search, lambda view: int(view.facts["done"]) >= 2)
    facts = view.facts
    assert (view.name, view.run, view.state) == ("slow_climb", results.run, "running")
    assert facts["trials_in_all"] == 4 and facts["metric"] == "score" and facts["pool"] == f"search-{results.run}"
    rows = view.panels["trials"]["trials"]
    assert [row["number"] for row in rows] == list(range(int(facts["trials"])))
    done = [row for row in rows if row["state"] == "done"]
    assert len(done) == facts["done"] and view.progress == int(facts["done"]) / 4
    for row in done:
        trial = results[row["number"]]
        assert row["hyperparameters"] == dict(trial.hyperparameters) and row["best"] == trial.best
        assert row["curve"] == [[step, score] for step, score in sorted(trial.scores.items())]
    assert facts["best"] == max(row["best"] for row in rows if row["best"] is not None)
    assert view.offers == ("trials",) and view.processes == ()
    assert "trial 0 begins" in view.events[0].text and any(event.text == "trial 0 has ended" for event in view.events)


def test_the_time_left_is_that_of_the_trials_that_are_done_now_by_a_clock_that_nobody_sets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A search that had gone on at 90 % was said to end in a second, and one whose clock was set ended in hours."""
    clock = SimpleNamespace(monotonic=lambda: now, time=lambda: wall)
    now, wall = 1000.0, 5000.0
    monkeypatch.setattr("ropewalk.search.running.time", clock)
    trials = [TrialFacts(number, {}, None, state=TrialState.DONE) for number in range(90)]
    shown = RunningSearch("s", "r1", "", Objective("score", "max"), 100, lambda: trials, lambda _text: None)
    assert shown.view({}).left_s is None, "nothing is known yet"
    now, wall = 1060.0, 9000.0
    trials += [TrialFacts(number, {}, None, state=TrialState.DONE) for number in range(90, 95)]
    view = shown.view({})
    assert view.progress == 0.95 and view.left_s == pytest.approx(60.0)


def test_rungs_show_how_many_trials_came_and_went_on(made: Callable[..., Search]) -> None:
    search = made(functions.slow_climb, scheduler=ASHA(R=9, eta=3), trials=9)
    _, view = run_and_look(search, lambda view: any("promoted" in event.text for event in view.events))
    rungs = view.panels["trials"]["rungs"]
    assert [rung["budget"] for rung in rungs] == [1, 3, 9]
    assert rungs[0]["entered"] >= 3 and rungs[0]["promoted"] >= 1
    assert view.panels["trials"]["mode"] == "max"


def test_a_trial_that_dies_is_an_event_with_its_cause(made: Callable[..., Search]) -> None:
    search = made(functions.kills_itself, trials=2, max_restarts=1)
    results, view = run_and_look(search, lambda view: any(event.kind == "death" for event in view.events))
    assert "SIGKILL" in view.last_failure
    assert any(event.kind == "retry" for event in view.events) or results[0].attempts == 1


def test_a_search_by_population_shows_its_population_and_is_shown_once(
    made: Callable[..., Search], monkeypatch: pytest.MonkeyPatch
) -> None:
    views: list[View] = []

    def look(self: PopulationSearch, generation: int, **row: float) -> None:
        views.extend(looks("search", PANELS))
        assert looks("population") == []

    monkeypatch.setattr(PopulationSearch, "_row", look)
    training = PopulationTraining(steps=4, population=4, synchronous=True)
    results = made(functions.adds_up, scheduler=training, seed=1).run()
    assert [view.facts["generation"] for view in views] == [1, 2, 3, 4]
    view = views[2]
    assert view.kind == "search" and view.offers == ("trials", "fitness", "schedules", "lineage")
    assert view.panels["schedules"]["cursor"] == view.facts["evaluations"] == 12 and view.progress == 0.75
    rows = view.panels["trials"]["trials"]
    assert [(row["number"], row["step"]) for row in rows] == [(number, 3.0) for number in range(4)]
    assert view.facts["best"] == max(row["best"] for row in rows) < results.best.best
    assert sum("copies member" in event.text for event in view.events) == int(view.facts["exploits"]) > 0
    assert "checkpoint" in {event.kind for event in view.events}


def test_it_pauses_when_another_terminal_asks_for_it(made: Callable[..., Search]) -> None:
    asked: list[str] = []

    def enough(view: View) -> bool:
        if not asked and int(view.facts["done"]) >= 1:
            asked.append(ask_for("search", "pause"))
        return bool(asked) and view.state == "stopping"

    results, view = run_and_look(made(functions.slow_climb, trials=50), enough)
    assert "the same command goes on" in asked[0] and len(results) < 50
    assert view.actions == ("pause", "stop")


def test_an_action_that_there_is_not_is_refused(made: Callable[..., Search]) -> None:
    refused: list[str] = []

    def enough(view: View) -> bool:
        try:
            ask_for("search", "kill")
        except Exception as error:
            refused.append(str(error))
        return True

    run_and_look(made(functions.slow_climb, trials=2), enough)
    assert "asked to pause or to stop" in refused[0]


def test_results_show_the_trials_of_a_search_that_has_ended(made: Callable[..., Search]) -> None:
    search = made(functions.value, trials=3)
    results = search.run()
    view = search.view()
    assert view.has_ended and view.facts["done"] == 3 and view.facts["best"] == results.best.best
    assert len(view.panels["trials"]["trials"]) == 3 and results.view({}).panels == {}
