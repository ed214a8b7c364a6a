"""Attempts in workers of a pool: what is asked of one before a process works on it."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from ropewalk.search.book import SearchBook
from ropewalk.search.loading import _NoSampler as NoneSampler
from ropewalk.search.places import (
    AttemptBegun,
    AttemptDied,
    AttemptEvent,
    AttemptReturned,
    AttemptSuggested,
    PoolPlaces,
    TrialRecords,
)
from ropewalk.search.progress import SearchProgress, line_of
from ropewalk.search.schedulers.no_scheduler import NoScheduler
from ropewalk.search.trial_facts import TrialFacts
from ropewalk.search.trial_pool import TrialWorkers
from ropewalk.search.trial_task import SUGGESTED, Request, TrialTask
from ropewalk.tracking.checkpoints import CheckpointPolicy
from ropewalk.tracking.records import EventHappened
from tests.patience import PATIENCE_S, wait_until
from tests.search import functions

pytestmark = pytest.mark.usefixtures("shared_session")


class Nowhere:
    """A sink that keeps nothing."""

    def put(self, run: str, record: Any) -> None: ...

    def flush(self, timeout_s: float) -> bool:
        return True

    settle = flush


@pytest.fixture
def places() -> Iterator[PoolPlaces]:
    """One worker, which waits in trials for a file."""
    made = PoolPlaces(functions.waits_for_a_file, Nowhere(), TrialWorkers(1, "search-places"))
    yield made
    made.close()


@pytest.fixture
def task(tmp_path: Path) -> Callable[[int], TrialTask]:
    """Makes tasks; the tokens are their trials and one."""

    def make(trial: int) -> TrialTask:
        values, policy = {"file": str(tmp_path / "go")}, CheckpointPolicy()
        folder = tmp_path / str(trial)
        return TrialTask(trial, str(trial), 1, trial + 1, values, ("score",), None, None, "", "", folder, 0, policy)

    return make


def events(places: PoolPlaces, number: int) -> list[AttemptEvent]:
    """That many events, as they come."""
    found: list[AttemptEvent] = []
    while len(found) < number:
        places.wait(60.0)
        found += [event] if (event := places.next_event()) else []
    return found


def test_an_attempt_that_is_killed_before_it_begins_never_ends_in_another_way(
    places: PoolPlaces, task: Callable[[int], TrialTask], tmp_path: Path
) -> None:
    places.begin(task(0))
    assert isinstance(events(places, 1)[0], AttemptBegun)
    places.begin(task(1))
    places.kill(task(1))
    places.request(task(1), Request.PAUSE)  # comes too late
    (tmp_path / "go").touch()
    assert {(type(event), event.trial) for event in events(places, 3)} == {
        (AttemptReturned, 0),
        (AttemptBegun, 1),
        (AttemptDied, 1),
    }


def test_a_kill_that_comes_after_the_attempt_has_ended_does_not_hit_the_next_one_of_its_worker(
    places: PoolPlaces, task: Callable[[int], TrialTask], tmp_path: Path
) -> None:
    """The end of an attempt is noted by the pool's callbacks, which lag on a busy host, and the next one had begun."""
    places.begin(task(0))
    events(places, 1)
    places.begin(task(1))
    over = threading.Event()

    def lag() -> None:
        over.wait(PATIENCE_S)

    places._workers.pool._call_back(lag)
    try:
        (tmp_path / "go").touch()
        (begun,) = events(places, 1)
        assert isinstance(begun, AttemptBegun) and begun.trial == 1
        places.kill(task(0))
    finally:
        over.set()
    places.request(task(1), Request.STOP)
    ended = events(places, 2)
    assert [(type(event), event.trial) for event in ended] == [(AttemptReturned, 0), (AttemptReturned, 1)]


def test_a_late_kill_does_not_hit_the_next_attempt_before_it_has_said_that_it_begins(
    places: PoolPlaces, task: Callable[[int], TrialTask], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places.begin(task(0))
    events(places, 1)
    places.begin(task(1))
    over, asked, held = threading.Event(), threading.Event(), list[tuple[TrialTask, str]]()
    tell = places._trials._tell_began
    monkeypatch.setattr(places._trials, "_tell_began", lambda *facts: held.append(facts))

    def lag() -> None:
        over.wait(PATIENCE_S)

    places._workers.pool._call_back(lag)
    try:
        (tmp_path / "go").touch()
        wait_until(lambda: held, "the next attempt to begin in the worker")
        places.kill(task(0))
        places._workers.session.loop.call_soon(asked.set)
        assert asked.wait(PATIENCE_S)
    finally:
        over.set()
        tell(*held[0])
    places.request(task(1), Request.STOP)
    assert {(type(event), event.trial) for event in events(places, 3)} == {
        (AttemptBegun, 1),
        (AttemptReturned, 0),
        (AttemptReturned, 1),
    }


def test_what_is_asked_before_an_attempt_begins_is_asked_when_it_does(
    places: PoolPlaces, task: Callable[[int], TrialTask], tmp_path: Path
) -> None:
    places.begin(task(0))
    events(places, 1)
    places.begin(task(1))
    places.request(task(1), Request.STOP)
    (tmp_path / "go").touch()
    returned = [event for event in events(places, 3) if isinstance(event, AttemptReturned)]
    assert {event.trial: event.outcome.outcome for event in returned} == {0: "done", 1: "stopped"}


def test_an_event_of_the_user_that_is_called_like_ours_does_no_harm(task: Callable[[int], TrialTask]) -> None:
    found: list[AttemptEvent] = []
    records = TrialRecords(Nowhere(), "search", lambda task, process: None, found.append)
    records.expect(task(0))
    records.put("0", EventHappened(SUGGESTED, "take this", 0.0))
    y = {"uniform": [0.0, 1.0]}
    records.put("0", EventHappened(SUGGESTED, "y", 0.0, {"values": {"y": 0.5}, "distributions": {"y": y}, "more": 1}))
    assert found == [AttemptSuggested(0, 1, {"y": 0.5}, {"y": y})]


@pytest.mark.parametrize(
    ("values", "distributions"),
    [
        ({"y": 1}, {}),
        ({"y": 1}, {"y": {}}),
        ({"y": 1}, {"y": 7}),
        ({"y": 1}, {"y": ["uniform"]}),
        ({"y": 7}, {"y": {"uniform": [0.0, 1.0]}}),
        ({"y": "0.5"}, {"y": {"uniform": [0.0, 1.0]}}),
        ({"y": [1]}, {"y": {"choice": [1, 2]}}),
        ({"y": 1}, {"y": {"uniform": [0.0, 1.0, 2.0]}}),
        ({"": 0.5}, {"": {"uniform": [0.0, 1.0]}}),
    ],
)
def test_what_are_no_hyperparameters_does_not_get_into_the_book_of_the_search(
    values: dict[str, Any], distributions: dict[str, Any], task: Callable[[int], TrialTask]
) -> None:
    """One trial whose process says this ended the search with a KeyError, and no other launcher could go on with it."""
    found: list[AttemptEvent] = []
    records = TrialRecords(Nowhere(), "search", lambda task, process: None, found.append)
    records.expect(task(0))
    records.put("0", EventHappened(SUGGESTED, "y", 0.0, {"values": values, "distributions": distributions}))
    assert found == []


def test_names_of_hyperparameters_act_on_no_terminal() -> None:
    """A bracket in one was markup of the table, and a wrong one ended the search with an error of rich."""
    book = SearchBook(NoScheduler(), NoneSampler(), metrics=["score"], modes=["max"], max_trials=None)
    book.trials.append(TrialFacts(0, {"[/bold]x\x1b[2J": 1}, None))
    progress = SearchProgress(book, "s", None, shown=False)
    shown = io.StringIO()
    Console(file=shown, width=100).print(progress._table())
    assert "[/bold]x\\x1b[2J" in shown.getvalue()
    assert line_of(book.trials[0], book) == "trial 0 running at step 0  [/bold]x\\x1b[2J=1"
