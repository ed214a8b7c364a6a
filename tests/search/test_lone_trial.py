"""Trials that are forked, continued and run again, by the command of their search: here, by the same `Search`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ropewalk.errors import SearchInvalid, SettingsError
from ropewalk.population.hyperparameters import Uniform
from ropewalk.search.results import SearchResults
from ropewalk.search.schedulers import ASHA, PopulationTraining
from ropewalk.search.search import Search
from ropewalk.search.trial_result import TrialResult
from ropewalk.tracking.current import current_run
from ropewalk.tracking.relaunch import Relaunch
from ropewalk.tracking.store.opening import open_store
from ropewalk.tracking.store.store import RunStore
from tests.search import functions

pytestmark = pytest.mark.usefixtures("shared_session")


def search_of(folder: Path, train: Callable[..., Any] = functions.climb, **settings: Any) -> Search:
    settings = {"space": {"x": Uniform(0, 1)}, "scheduler": ASHA(R=9, eta=3), "trials": 3, "name": "hill"} | settings
    return Search(train, metric="score", max_concurrent=2, store=folder / "runs.db", progress=False, **settings)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lone")


@pytest.fixture(scope="module")
def found(folder: Path, shared_session: object) -> SearchResults:
    """A search that is complete; some of its trials are paused for ever, at their first rung."""
    return search_of(folder).run()


@pytest.fixture
def store(folder: Path, found: SearchResults) -> Iterator[RunStore]:
    with open_store(folder / "runs.db") as opened:
        yield opened


@pytest.fixture
def again(monkeypatch: pytest.MonkeyPatch) -> Callable[[Search, Relaunch], None]:
    """Runs a search as its command does that `ropewalk runs` has started."""

    def run(search: Search, relaunch: Relaunch) -> None:
        for name, value in relaunch.to_environment().items():
            monkeypatch.setenv(name, value)
        with pytest.raises(SystemExit) as ended:
            search.run()
        assert ended.value.code == 0
        assert not [name for name in os.environ if name.startswith(("ROPEWALK_TRIAL", "ROPEWALK_FORK"))]

    return run


def paused_one(found: SearchResults) -> TrialResult:
    return next(trial for trial in found if trial.state == "paused" and trial.step == 1)


def test_a_fork_of_a_trial_is_a_run_of_its_own_from_its_checkpoint_with_other_hyperparameters(
    folder: Path, found: SearchResults, store: RunStore, again: Callable[[Search, Relaunch], None]
) -> None:
    trial = paused_one(found)
    before = store.run(trial.run), store.events(found.run)
    again(search_of(folder), Relaunch(forks=trial.run, settings={"x": 8.0}, trial=trial.run))
    fork = store.run(f"hill-{trial.number}-fork")
    assert (fork.kind, fork.state, fork.parent, fork.parent_step) == ("script", "done", trial.run, 1)
    assert fork.config == {"x": 8.0}
    steps, values = store.points(fork.id, "score").steps, store.points(fork.id, "score").values
    assert steps.tolist() == list(range(2, 10))
    first = trial.hyperparameters["x"] / 2
    assert values[-1] == pytest.approx(first + 8.0 * (0.5 - 0.5**9))
    assert (store.run(trial.run), store.events(found.run)) == before, "the search does not change"
    assert store.facts(fork.id)["trial"] == trial.run
    assert current_run() is None


def test_a_trial_that_its_scheduler_has_paused_for_ever_goes_on_to_its_end(
    folder: Path, found: SearchResults, store: RunStore, again: Callable[[Search, Relaunch], None]
) -> None:
    trial = paused_one(found)
    again(search_of(folder), Relaunch(continues=trial.run, trial=trial.run))
    assert store.run(trial.run).state == "done"
    assert store.points(trial.run, "score").steps.tolist() == list(range(1, 10))
    assert [(each.number, each.from_step, each.outcome) for each in store.attempts(trial.run)] == [
        (1, 0, "paused"),
        (2, 1, "done"),
    ]


def test_a_trial_is_run_again_from_its_first_step(
    folder: Path, found: SearchResults, store: RunStore, again: Callable[[Search, Relaunch], None]
) -> None:
    again(search_of(folder), Relaunch(trial=found[0].run))
    assert store.points(store.run("hill-0-rerun").id, "score").steps.tolist() == list(range(1, 10))


def test_a_function_that_asks_for_hyperparameters_gets_those_of_the_trial_and_draws_new_ones(
    tmp_path: Path, again: Callable[[Search, Relaunch], None]
) -> None:
    def search() -> Search:
        settings: dict[str, Any] = {"space": None, "scheduler": "none", "trials": 2, "name": "asks", "seed": 1}
        return search_of(tmp_path, functions.asks, **settings)

    trial = next(each for each in search().run() if each.hyperparameters["kind"] == "line")
    again(search(), Relaunch(forks=trial.run, settings={"kind": "square"}, trial=trial.run))
    with open_store(tmp_path / "runs.db") as store:
        fork = store.run(f"asks-{trial.number}-fork")
        (score,) = store.points(fork.id, "score").values
    x, power = trial.hyperparameters["x"], fork.config["power"]
    assert fork.config == {"kind": "square", "x": x, "power": power}
    assert 2 <= power <= 4 and score == x**power


def test_what_is_not_the_trials_is_refused(folder: Path, found: SearchResults, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(search: Search, error: type[Exception], words: str, **settings: Any) -> None:
        for name, value in Relaunch(forks=found[0].run, trial=found[0].run, settings=settings).to_environment().items():
            monkeypatch.setenv(name, value)
        with pytest.raises(error, match=words):
            search.run()

    refused(search_of(folder), SettingsError, "the configuration of the trial has no 'y'; it has x", y=1)
    other = search_of(folder, name="other")
    refused(other, SearchInvalid, r"runs the search 'other' .* Run the function with these hyperparameters .*'x'")
    members = search_of(folder, scheduler=PopulationTraining(steps=2, population=3), trials=None)
    refused(members, SearchInvalid, "is a member of a population")
