"""Searches in real workers: what trials get and report, failures, deaths, other terminals, and going on."""

from __future__ import annotations

import contextlib
import json
import math
import os
import platform
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

import ropewalk as rw
from ropewalk.errors import PoolClosed, SearchFailed, SearchInvalid, StoreError
from ropewalk.launcher_claim import LauncherClaim
from ropewalk.population.hyperparameters import Choice, Uniform
from ropewalk.search.book import SearchBook
from ropewalk.search.loading import load_results
from ropewalk.search.schedulers import ASHA, MedianStopping, NoScheduler, StoppingASHA
from ropewalk.search.search import Search
from ropewalk.search.store_keeper import StoreKeeper, lines_of
from ropewalk.search.trial_task import Request, work_on
from ropewalk.tracking.log_policies import LogPolicy
from ropewalk.tracking.records import Metrics, RunRecord, StateIs
from ropewalk.tracking.store.opening import open_store
from ropewalk.tracking.store.store import RunStore
from tests.foreign_frames import foreign_frames
from tests.patience import wait_until
from tests.search import functions
from tests.search.named_hosts import session_of_named_hosts

pytestmark = pytest.mark.usefixtures("shared_session")

X = {"x": Uniform(0, 1)}


@pytest.fixture
def made(tmp_path: Path) -> Callable[..., Search]:
    """Makes searches whose store is in the folder of the test."""

    def make(train: Callable[..., Any], space: Any = X, **settings: Any) -> Search:
        settings = {"metric": "score", "trials": 4, "max_concurrent": 2, "progress": False} | settings
        return Search(train, space, store=tmp_path / "runs.db", **settings)

    return make


def test_every_trial_runs_and_the_best_is_found(made: Callable[..., Search]) -> None:
    search = made(functions.climb, trials=6)
    results = search.run()
    assert [trial.state for trial in results] == ["done"] * 6
    assert all(trial.step == 9 and trial.attempts == 1 for trial in results)
    assert search.best.hyperparameters["x"] == max(trial.hyperparameters["x"] for trial in results)
    assert list(search.best.scores) == list(range(1, 10))


def test_one_seed_gives_the_same_configurations_whatever_the_number_of_workers(made: Callable[..., Search]) -> None:
    one = made(functions.value, name="one", max_concurrent=1, seed=7).run()
    two = made(functions.value, name="two", max_concurrent=2, seed=7).run()
    other = made(functions.value, name="other", max_concurrent=2, seed=8).run()
    assert [each.hyperparameters for each in one] == [each.hyperparameters for each in two]
    assert [each.hyperparameters for each in one] != [each.hyperparameters for each in other]


def test_asha_pauses_trials_at_their_rungs_and_continues_the_best_from_their_checkpoints(
    made: Callable[..., Search],
) -> None:
    results = made(functions.climb, scheduler=ASHA(R=9, eta=3), trials=9, max_concurrent=1).run()
    assert sorted(trial.step for trial in results) == [1, 1, 1, 1, 1, 1, 3, 3, 9]
    best = results.best
    assert best.state == "done" and best.attempts == 3
    assert best.best == pytest.approx(best.hyperparameters["x"] * (1 - 0.5**9))  # no step was lost or repeated
    assert {trial.state for trial in results if trial is not best} == {"paused"}


def test_the_stopping_variant_ends_bad_trials_and_needs_no_checkpoints(made: Callable[..., Search]) -> None:
    results = made(functions.slow_climb, scheduler=StoppingASHA(R=9, eta=3), trials=6, max_concurrent=1).run()
    assert {trial.state for trial in results} <= {"done", "stopped"}
    assert all(trial.attempts == 1 for trial in results)
    assert results.best.step == 9


def test_a_function_may_return_its_metric_or_several(made: Callable[..., Search]) -> None:
    results = made(functions.two_objectives, metric=["gain", "cost"], mode=["max", "min"], trials=5).run()
    assert all(trial.values["cost"] == trial.values["gain"] ** 2 for trial in results)
    assert len(results.pareto_front) == 5  # each gain has its price


def test_a_metric_of_a_group_is_named_with_it_and_a_minimum_is_found(made: Callable[..., Search]) -> None:
    results = made(functions.validated, metric="validation/loss", mode="min").run()
    assert results.best.best == min(trial.hyperparameters["x"] for trial in results) / 2


def test_nested_and_constant_hyperparameters_arrive_as_they_are_written(made: Callable[..., Search]) -> None:
    space = {"model": {"width": Choice([1, 2])}, "seed": 40}
    results = made(functions.nested, space, sampler="grid", trials=None).run()
    assert sorted(trial.best or 0 for trial in results) == [41, 42]


def test_given_configurations_come_first(made: Callable[..., Search]) -> None:
    results = made(functions.value, start_with=[{"x": 0.25}], trials=2).run()
    assert results[0].best == 0.25


def test_configurations_cannot_be_given_without_a_space(made: Callable[..., Search]) -> None:
    """As one who comes from `study.enqueue_trial` tries it, for whom "there are none" said nothing."""
    with pytest.raises(
        SearchInvalid, match=r"start_with gives 'x', and the search has no space.* put them into a space"
    ):
        made(functions.suggests, None, start_with=[{"x": 0.5}])


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (lambda run, x: run.report(x, 1), r"'report', as Optuna's trial has it; write `for step in run\.steps"),
        (lambda run, x: run.should_prune(), r"'should_prune', .* ends the trial when the scheduler stops it"),
        (lambda run, x: run.lgo(value=x), r"the run of a trial has no attribute 'lgo'\n"),
    ],
)
def test_the_names_of_optuna_lead_to_ours(made: Callable[..., Search], ask: Callable[..., Any], says: str) -> None:
    with pytest.raises(SearchFailed, match=says):
        made(ask, trials_in="threads").run()


@pytest.mark.parametrize("sampler", ["random", pytest.param("tpe", marks=pytest.mark.soak)])
def test_a_function_may_ask_for_its_hyperparameters(made: Callable[..., Search], sampler: str) -> None:
    search = made(functions.suggests, None, sampler=sampler, trials=6, max_concurrent=1)
    results = search.run()
    assert all(trial.state == "done" and trial.attempts == 2 for trial in results)  # the second attempt had the same x
    for trial in results:
        has_power = trial.hyperparameters["kind"] == "square"
        assert list(trial.hyperparameters) == ["kind", "x", *(["power"] if has_power else [])]
        assert trial.best == trial.hyperparameters["x"] ** trial.hyperparameters.get("power", 1)
    assert len({trial.hyperparameters["x"] for trial in results}) == 6


def test_a_function_cannot_ask_for_more_than_the_space_has(made: Callable[..., Search]) -> None:
    with pytest.raises(SearchFailed, match="this search has a space, so its trials get their hyperparameters"):
        made(lambda run, x: run.suggest_float("y", 0, 1)).run()


def test_nan_is_the_worst(made: Callable[..., Search]) -> None:
    results = made(functions.is_nan, trials=8).run()
    assert all(trial.state == "done" for trial in results)
    assert results.best.best is not None and results.best.best >= 0.5
    assert results.ranked()[-1].hyperparameters["x"] < 0.5


# --- failures ---------------------------------------------------------------------------------------------------------


def test_a_trial_that_fails_goes_on_from_its_checkpoint(made: Callable[..., Search], tmp_path: Path) -> None:
    results = made(functions.raises_once, X | {"folder": str(tmp_path)}, trials=2).run()
    assert [(trial.state, trial.attempts, trial.step) for trial in results] == [("done", 2, 3)] * 2
    with open_store(tmp_path / "runs.db") as store:
        attempts = store.attempts(results[0].run)
    assert [(each.outcome, each.from_step) for each in attempts] == [("failed", 0), ("done", 2)]
    assert "ValueError: once" in attempts[0].cause and "in raises_once" in attempts[0].cause


def test_a_search_whose_trials_all_fail_in_the_same_way_ends_with_that(made: Callable[..., Search]) -> None:
    with pytest.raises(
        SearchFailed, match=r"3 trials have failed in the same way .*FileNotFoundError: no data for 0\."
    ) as failed:
        made(functions.raises, trials=100).run()
    assert "in raises\n" in str(failed.value.__cause__), "the user's line is shown above the error"
    assert foreign_frames(failed.value) == []


def test_a_complete_search_goes_on_if_more_trials_are_asked_for(
    made: Callable[..., Search], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = made(functions.value, trials=3).run()
    more = made(functions.value, trials=5, progress=True).run()
    assert more.run == first.run and [trial.number for trial in more] == list(range(5))
    assert [trial.hyperparameters for trial in more][:3] == [trial.hyperparameters for trial in first]
    assert "goes on after 3 trials" in capsys.readouterr().err
    again = made(functions.value, trials=5, progress=True).run()
    assert again.run != first.run
    assert f"({first.run}) is complete with 5 trials, so a new one begins" in capsys.readouterr().err
    other = made(functions.value, trials=9, seed=3, progress=True).run()
    assert other.run not in (first.run, again.run)
    assert "has other settings, so a new one begins" in capsys.readouterr().err


def test_a_complete_search_with_rungs_goes_on_too(made: Callable[..., Search]) -> None:
    made(functions.climb, scheduler=ASHA(R=9, eta=3), trials=3, max_concurrent=1).run()
    results = made(functions.climb, scheduler=ASHA(R=9, eta=3), trials=9, max_concurrent=1).run()
    assert sorted(trial.step for trial in results) == [1, 1, 1, 1, 1, 1, 3, 3, 9]


def test_a_trial_that_got_to_the_last_step_is_done_in_the_store_too(
    made: Callable[..., Search], tmp_path: Path
) -> None:
    # Its scheduler stopped it there; for `load_results` and the page it had been stopped early.
    results = made(functions.value, scheduler=StoppingASHA(R=1, eta=3), trials=4, max_concurrent=1).run()
    assert [trial.state for trial in results] == ["done"] * 4
    loaded = load_results(results.run, tmp_path / "runs.db")
    assert [trial.state for trial in loaded] == ["done"] * 4


def test_the_store_has_the_best_value_of_a_search_and_its_trial(made: Callable[..., Search], tmp_path: Path) -> None:
    results = made(functions.value, trials=6, max_concurrent=1).run()
    with open_store(tmp_path / "runs.db") as store:
        last = store.last_values([results.run])[results.run]
    assert last == {"best score": results.best.best, "best trial": results.best.number}


def test_the_first_value_that_is_not_finite_is_told_once(
    made: Callable[..., Search], caplog: pytest.LogCaptureFixture
) -> None:
    made(functions.is_nan, trials=3).run()
    said = [record.getMessage() for record in caplog.records if "NaN ranks below" in record.getMessage()]
    assert len(said) == 1 and "reported score nan at step 1" in said[0]


def test_a_metric_that_no_trial_logs_ends_the_search_with_the_names_that_are_logged(
    made: Callable[..., Search],
) -> None:
    search = made(functions.logs_another_name, trials=100)
    with pytest.raises(SearchFailed, match=r"trial . ended without a value of 'score': it logged 'loss', 'epoch'"):
        search.run()
    assert len(search.results()) <= 2


def test_a_metric_that_is_logged_after_the_first_rung_ends_the_search(made: Callable[..., Search]) -> None:
    with pytest.raises(SearchFailed, match=r"trial 0 ended after step 1 without a value of 'score': it logged 'loss'"):
        made(functions.logs_late, scheduler=ASHA(R=9, eta=3), max_concurrent=1).run()


def test_what_a_killed_launcher_had_not_stored_is_reported_again_from_the_checkpoint(
    made: Callable[..., Search], tmp_path: Path
) -> None:
    search = made(functions.climb, scheduler=ASHA(R=9, eta=3), trials=3, max_concurrent=1, name="cut")
    whole = search.run()
    with open_store(tmp_path / "runs.db") as store:  # as if the last lines had not been stored before it was killed
        lines = lines_of(store, whole.run)
    ends = [number for number, line in enumerate(lines) if line[:2] == ["report", whole.best.number]]
    book = made(functions.climb, scheduler=ASHA(R=9, eta=3), trials=3, name="cut")._settings.book(lambda line: None)
    book.replay(lines[: ends[-1]])
    book.suspended()
    begin = book.begin_next()
    assert begin is not None and begin.trial == whole.best.number
    task = search._settings.task(begin, book, whole.run, tmp_path / "runs", 1)
    assert (task.budget, task.reported_step) == (3, 2)
    outcome = work_on(functions.climb, task, Nowhere(), lambda: Request.NOTHING)
    assert outcome.outcome == "paused" and outcome.reports == ((3.0, (whole.best.best,)),)


def logs_at_its_second_step(run: Any, x: float) -> None:
    run.restore()
    for step in run.steps(4):
        if step == 2:
            run.log({"score": 0.5, "cost": math.inf, "loss": 1.0})
        run.checkpoint({})


@pytest.mark.parametrize(
    ("metric", "values"), [(["score", "cost"], (0.5, math.inf)), (["score"], (0.5,))], ids=["two metrics", "one metric"]
)
def test_what_is_reported_again_is_what_was_reported(
    metric: list[str], values: tuple[float, ...], made: Callable[..., Search], tmp_path: Path
) -> None:
    """Of several metrics none was, so that the search failed as if none was ever logged; of one the step was wrong."""
    settings = made(logs_at_its_second_step, metric=metric, mode=["max"] * len(metric), trials=1)._settings
    book, reports = settings.book(lambda line: None), []
    for _ in range(2):  # the second attempt is that of a launcher that knows of no report
        begin = book.begin_next()
        assert begin is not None
        task = settings.task(begin, book, "s", tmp_path, begin.attempt)
        reports.append(work_on(logs_at_its_second_step, task, Nowhere(), lambda: Request.NOTHING).reports)
        book.suspended()
    assert reports == [((2.0, values),)] * 2


class Nowhere:
    """A sink that keeps nothing."""

    def put(self, run: str, record: Any) -> None: ...

    def flush(self, timeout_s: float) -> bool:
        return True

    settle = flush


def test_trials_whose_processes_die_go_on_from_their_checkpoints(made: Callable[..., Search], tmp_path: Path) -> None:
    results = made(functions.kills_itself, trials=2).run()
    printed = [(results[0].folder / "output" / f"{attempt}.txt").read_text() for attempt in (1, 2, 3)]
    assert printed == ["begins after 0\n", "begins after 3\n", "begins after 6\n"]
    assert [(trial.state, trial.attempts, trial.step) for trial in results] == [("done", 3, 6)] * 2
    with open_store(tmp_path / "runs.db") as store:
        attempts = store.attempts(results[0].run)
        points = store.points(results[0].run, "score")
    assert [(each.outcome, each.from_step, each.at_step) for each in attempts] == [
        ("lost", 0, 3),
        ("lost", 3, 6),
        ("done", 6, 0),
    ]
    assert "SIGKILL" in attempts[0].cause
    assert list(points.steps) == [1, 2, 3, 4, 5, 6]  # nothing that was logged before a kill is lost


def test_a_trial_that_never_reports_is_killed_and_given_up(made: Callable[..., Search]) -> None:
    search = made(functions.says_nothing, start_with=[{"x": 0.9}, {"x": 0.1}], trials=2, silent_s=1.0)
    results = search.run()
    assert [trial.state for trial in results] == ["done", "failed"]
    assert "it has not reported score for 1 s (silent_s)" in results[1].why


def test_a_log_policy_labels_a_trial_and_forbids_a_retry(made: Callable[..., Search], tmp_path: Path) -> None:
    policy = LogPolicy(r"ValueError: once", label="once", no_retry=True)
    space = X | {"folder": str(tmp_path)}
    results = made(functions.raises_once, space, trials=1, log_policies=[policy]).run()
    assert results[0].state == "failed" and results[0].attempts == 1
    with open_store(tmp_path / "runs.db") as store:
        assert store.run(results[0].run).labels == ("once",)


BAD_HOST = LogPolicy(r"uncorrectable ECC", label="bad gpu", exclude_host=True)


def test_a_log_policy_keeps_the_next_attempt_of_a_trial_off_a_host(
    made: Callable[..., Search], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = X | {"folder": str(tmp_path)}
    with session_of_named_hosts(monkeypatch) as session:
        found = made(functions.fails_on_its_first_host, space, trials=1, session=session, log_policies=[BAD_HOST]).run()
    bad = (tmp_path / "bad").read_text()
    assert (found[0].state, found[0].attempts, found[0].excluded_hosts) == ("done", 2, (bad,))
    with open_store(tmp_path / "runs.db") as store:
        first, second = store.attempts(found[0].run)
        told = [event for event in store.events(found[0].run) if event.kind == "host excluded"]
    assert first.host == bad != second.host
    assert [event.data["host"] for event in told] == [bad]


def test_a_trial_whose_every_host_is_excluded_is_given_up(made: Callable[..., Search], tmp_path: Path) -> None:
    space = X | {"folder": str(tmp_path)}
    found = made(functions.fails_on_its_first_host, space, trials=1, log_policies=[BAD_HOST]).run()
    assert (found[0].state, found[0].attempts) == ("failed", 2)
    assert f"a log policy keeps it off {platform.node()}, and no worker" in found[0].why
    assert "uncorrectable ECC" in found[0].why


def test_a_search_in_threads_has_no_hosts_to_exclude(made: Callable[..., Search]) -> None:
    with pytest.raises(SearchInvalid, match="exclude_host=True needs trials in workers"):
        made(functions.climb, trials_in="threads", log_policies=[BAD_HOST])


# --- the store --------------------------------------------------------------------------------------------------------


def test_the_store_has_the_search_and_its_trials(made: Callable[..., Search], tmp_path: Path) -> None:
    results = made(functions.climb, scheduler=ASHA(R=9, eta=3), name="hill", project="p").run()
    with open_store(tmp_path / "runs.db") as store:
        search = store.run(results.run)
        trials = store.children(results.run)
        assert (search.kind, search.name, search.project, search.state) == ("search", "hill", "p", "done")
        assert search.config["metric"] == ["score"] and search.config["trials"] == 4
        assert {(each.kind, each.parent) for each in trials} == {("trial", results.run)}
        for trial in results:
            row = store.run(trial.run)
            assert row.config == trial.hyperparameters and row.state == trial.state
            assert store.points(trial.run, "score").values[-1] == trial.values["score"]
            assert store.checkpoints(trial.run)[-1].step == trial.step


def test_the_decisions_in_the_store_can_be_repeated(made: Callable[..., Search], tmp_path: Path) -> None:
    search = made(functions.climb, scheduler=ASHA(R=9, eta=3), trials=6)
    results = search.run()
    with open_store(tmp_path / "runs.db") as store:
        lines = lines_of(store, results.run)
    settings: dict[str, Any] = {"metrics": ["score"], "modes": ["max"], "max_trials": 6}
    book = SearchBook(ASHA(R=9, eta=3), search._settings.sampler, **settings)
    book.replay(lines)
    assert [(each.state.value, each.step, each.best) for each in book.trials] == [
        (each.state, each.step, each.best) for each in results
    ]
    assert load_results(results.run, tmp_path / "runs.db").to_records() == results.to_records()
    with pytest.raises(SearchInvalid, match="is a trial, not a search"):
        load_results(results[0].run, tmp_path / "runs.db")
    with pytest.raises(ValueError, match="cannot be repeated"):
        SearchBook(NoScheduler(), search._settings.sampler, **settings).replay(lines)


# --- other terminals --------------------------------------------------------------------------------------------------


def test_a_trial_is_stopped_and_a_search_is_paused_from_another_terminal(
    made: Callable[..., Search], tmp_path: Path
) -> None:
    search = made(functions.endless_climb, trials=40)  # on a busy machine others were done before anybody had asked
    answers: list[Any] = []

    def ask() -> None:
        with open_store(tmp_path / "runs.db") as store:
            run = wait_until(lambda: [each for each in store.runs(kind="search") if store.children(each.id)])[0].id
            first = store.request(f"{run}-0", "stop")
            wait_until(lambda: store.requested(first).answered)  # type: ignore[union-attr]
            second = store.request(run, "pause")
            wait_until(lambda: store.requested(second).answered)  # type: ignore[union-attr]
            answers.extend([store.requested(first), store.requested(second)])

    with beside(ask):
        results = search.run()
    assert answers[0].ok and answers[0].answer == "trial 0 stops at its next step"
    assert answers[1].ok and answers[1].answer == "every trial pauses at its next step, then the search ends"
    assert 0 < len(results) < 40
    with open_store(tmp_path / "runs.db") as store:
        assert store.run(results.run).state == "paused"


def test_who_asks_for_something_of_a_trial_that_has_just_ended_is_told_so(
    made: Callable[..., Search], tmp_path: Path
) -> None:
    # Nobody looked for requests to such a trial: who had asked waited, and then heard of a process that did not answer.
    search = made(functions.ends_or_goes_on, {"x": Choice([0.0, 1.0])}, sampler="grid", trials=2)
    answers: list[Any] = []

    def ask() -> None:
        with open_store(tmp_path / "runs.db") as store:
            ended = wait_until(lambda: store.runs(kind="trial", states=["done"]))[0]
            number = store.request(ended.id, "stop")
            wait_until(lambda: store.requested(number).answered)  # type: ignore[union-attr]
            answers.append(store.requested(number))
            store.request(ended.id.rpartition("-")[0], "pause")

    with beside(ask):
        search.run()
    assert not answers[0].ok and answers[0].answer == "it had ended already, and is done"


def test_every_request_to_a_search_and_its_trials_is_answered_however_late_it_comes(
    made: Callable[..., Search], tmp_path: Path
) -> None:
    """A search looks every half second; what came after the last look, or while the search ended, was not answered."""
    search = made(functions.climb, trials=8)
    numbers: list[int] = []
    answered: list[Any] = []

    def ask() -> None:
        with open_store(tmp_path / "runs.db") as store:
            searches = wait_until(lambda: store.runs(kind="search"))
            while True:
                is_over = store.run(searches[0].id).state == "done"
                runs = [searches[0], *store.children(searches[0].id)]
                numbers.extend(store.request(run.id, "continue") for run in runs)
                if is_over:
                    break
                time.sleep(0.05)
            answered.extend(store.requested(number) for number in numbers)

    with beside(ask):
        search.run()
    assert len(numbers) >= 9 and all(each.answered and each.answer for each in answered)
    assert [each.answer for each in answered[-9:]] == ["it had ended already, and is done"] * 9


@contextlib.contextmanager
def beside(work: Callable[[], object]) -> Generator[None]:
    """Do some work in another thread while the block runs."""
    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        thread.join()


# --- going on ---------------------------------------------------------------------------------------------------------

_SCRIPT = """
import sys
from ropewalk.population.hyperparameters import Uniform
from ropewalk.search.search import Search
from ropewalk.launcher_claim import LauncherClaim
from tests.search import functions

if __name__ == "__main__":
    folder = sys.argv[1]
    search = Search(functions.counts_attempts, {"x": Uniform(0, 1), "folder": folder}, metric="score", trials=6,
                    max_concurrent=2, store=f"{folder}/runs.db")
    print([(trial.state, trial.step, trial.best) for trial in search.run()])
"""


@pytest.fixture
def script(tmp_path: Path) -> Iterator[Callable[[], subprocess.Popen[str]]]:
    """Starts the same command, as often as it is called."""
    (tmp_path / "script.py").write_text(_SCRIPT)
    path = os.pathsep.join(sys.path)
    started: list[subprocess.Popen[str]] = []

    def start() -> subprocess.Popen[str]:
        command = [sys.executable, "script.py", str(tmp_path)]
        started.append(
            subprocess.Popen(
                command,
                cwd=tmp_path,
                env=os.environ | {"PYTHONPATH": path},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def steps_in(folder: Path) -> int:
    return sum(len(file.read_text().splitlines()) for file in folder.glob("counts_attempts-*"))


def num_attempts_in(folder: Path) -> int:
    with open_store(folder / "runs.db") as store:
        trials = [trial for search in store.runs(kind="search") for trial in store.children(search.id)]
        return sum(len(store.attempts(trial.id)) for trial in trials)


def test_the_same_command_goes_on_after_sigkill_and_after_ctrl_c(
    script: Callable[[], subprocess.Popen[str]], tmp_path: Path
) -> None:
    first = script()
    wait_until(lambda: steps_in(tmp_path) >= 5)
    first.kill()
    first.wait()
    begun = num_attempts_in(tmp_path)
    (tmp_path / "slowly").touch()  # no trial is done before it hears of the interrupt
    second = script()
    wait_until(lambda: num_attempts_in(tmp_path) > begun)  # the workers of the first write steps until they end, too
    second.send_signal(signal.SIGINT)
    _, told = second.communicate()
    (tmp_path / "slowly").unlink()
    assert second.returncode in (1, 130, -signal.SIGINT)
    assert "run the same command to go on" in told
    before = steps_in(tmp_path)
    third = script()
    output, told = third.communicate()
    assert third.returncode == 0, told
    table = eval(output)
    assert [(state, step) for state, step, _ in table] == [("done", 8)] * 6
    with open_store(tmp_path / "runs.db") as store:
        searches = store.runs(kind="search")
        assert [each.state for each in searches] == ["done"]  # one search, whoever ran it
        trials = {each.name: store.points(each.id, "score").steps for each in store.children(searches[0].id)}
        attempts = [each for trial in store.children(searches[0].id) for each in store.attempts(trial.id)]
    lost = [each.cause for each in attempts if each.outcome == "lost"]
    assert 1 <= len(lost) <= 2 and all(re.fullmatch(r"process \d+ on .+ ended without a word", cause) for cause in lost)
    assert {each.outcome for each in attempts} == {"lost", "paused", "done"}, "of none it is said that it goes on"
    # Two attempts were under way at the kill, each in a step after its last checkpoint; nothing is lost by Ctrl-C.
    assert before < 6 * 8 <= steps_in(tmp_path) <= 6 * 8 + 2
    for steps in trials.values():  # of the last 100 ms before the kill, metrics are lost
        assert steps[-1] == 8 and len(set(range(1, 9)) - set(steps)) <= 3 and len(steps) <= 9


def test_a_search_with_other_settings_is_refused_and_says_what_differs(made: Callable[..., Search]) -> None:
    first = made(functions.slow_climb, trials=40, time_limit_s=0.2)
    results = first.run()
    with pytest.raises(SearchInvalid, match=r"cannot go on with other settings: .*'x'.*resume=False"):
        made(functions.slow_climb, {"x": Uniform(0, 2)}).run()
    with pytest.raises(SearchInvalid, match=r"MedianStopping\(grace=2, min_others=3\)"):
        made(functions.slow_climb, scheduler=MedianStopping(grace=2)).run()
    again = made(functions.slow_climb, trials=len(results) + 1).run()
    assert again.run == results.run and len(again) == len(results) + 1  # more or fewer trials are no other search
    assert made(functions.slow_climb, trials=1).run().run != results.run  # it is complete: a new one begins


# --- several launchers, and ends that are no ends --------------------------------------------------------------------


def test_a_search_on_which_another_launcher_works_is_not_taken_over(
    made: Callable[..., Search], tmp_path: Path
) -> None:
    first = made(functions.slow_climb, time_limit_s=0.1, name="shared").run()
    claim = LauncherClaim.on(first[0].folder.parent / first.run)  # as its launcher would hold it
    assert claim is not None
    beside = made(functions.value, name="other").run()
    second = made(functions.slow_climb, time_limit_s=0.1, name="shared").run()
    assert len({first.run, beside.run, second.run}) == 3
    claim.close()
    third = made(functions.slow_climb, time_limit_s=0.1, name="shared").run()
    assert third.run == second.run  # the newest of those that are free


def test_a_search_beside_a_running_one_of_its_name_says_so(
    made: Callable[..., Search], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = made(functions.endless_climb, trials=1, name="shared")

    def work_beside() -> None:
        with open_store(tmp_path / "runs.db") as store:
            run = wait_until(lambda: [each for each in store.runs(kind="search") if store.children(each.id)])[0].id
            second = made(functions.value, name="shared", progress=True).run()
            assert second.run != run
            store.request(run, "stop")

    with beside(work_beside):
        run = first.run().run
    words = f"a search of this name ({run}) is running in process {os.getpid()} on "
    assert words in capsys.readouterr().err


def test_a_search_that_ended_while_another_launcher_looked_for_it_is_not_begun_again(
    made: Callable[..., Search], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = made(functions.slow_climb, time_limit_s=0.1, name="raced").run()
    claim_on = LauncherClaim.on

    def end_and_claim(folder: Path) -> LauncherClaim | None:
        if folder.name == first.run:
            with open_store(tmp_path / "runs.db") as store:
                store.apply([RunRecord(first.run, StateIs("done", time.time()))])
        return claim_on(folder)

    monkeypatch.setattr(LauncherClaim, "on", end_and_claim)
    assert made(functions.value, name="raced", trials=1).run().run != first.run


def test_run_may_be_called_again_to_go_on(made: Callable[..., Search]) -> None:
    search = made(functions.slow_climb, trials=4, max_concurrent=1, time_limit_s=0.3, sampler="tpe")
    runs = [search.run()]
    while len(runs[-1]) < 4 or any(trial.state != "done" for trial in runs[-1]):
        runs.append(search.run())
    assert 1 < len(runs) <= 36 and len({each.run for each in runs}) == 1  # each gets at least a step further


def test_a_search_that_goes_on_finds_its_checkpoints_whatever_folder_is_given(
    made: Callable[..., Search], tmp_path: Path
) -> None:
    first = made(functions.slow_climb, time_limit_s=0.3, trials=2, name="moved").run()
    last = made(functions.slow_climb, folder=tmp_path / "elsewhere", trials=2, name="moved").run()
    assert last.run == first.run and last[0].folder == first[0].folder


def test_a_search_whose_workers_cannot_start_can_go_on(made: Callable[..., Search], tmp_path: Path) -> None:
    closed = rw.Session()
    closed.close()
    with pytest.raises(PoolClosed):
        made(functions.value, session=closed, name="later").run()
    with open_store(tmp_path / "runs.db") as store:
        (run,) = store.runs(kind="search")
    assert run.state == "paused" and "PoolClosed" in run.why
    assert made(functions.value, name="later").run().run == run.id


def test_no_trial_of_a_search_that_failed_is_said_to_run(made: Callable[..., Search], tmp_path: Path) -> None:
    with pytest.raises(SearchFailed):
        made(functions.raises_or_waits, start_with=[{"x": 0.9}], trials=9).run()
    with open_store(tmp_path / "runs.db") as store:
        (run,) = store.runs(kind="search")
        states = {each.state for each in store.children(run.id)}
    assert run.state == "failed" and states <= {"failed", "queued"} and "queued" in states


def test_a_store_that_cannot_be_written_for_a_while_ends_no_search(
    made: Callable[..., Search], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply, refused = RunStore.apply, [StoreError("the disk is full")] * 4

    def failing(store: RunStore, batch: Any) -> None:
        if refused and (len(refused) < 4 or any(isinstance(record.record, Metrics) for record in batch)):
            raise refused.pop()  # from the first report on
        apply(store, batch)

    monkeypatch.setattr(RunStore, "apply", failing)
    results = made(functions.climb, trials=4).run()
    assert not refused and [trial.state for trial in results] == ["done"] * 4
    with open_store(tmp_path / "runs.db") as store:
        assert all(list(store.points(trial.run, "score").steps) == list(range(1, 10)) for trial in results)


def test_a_request_for_a_trial_of_an_earlier_launcher_is_answered(made: Callable[..., Search], tmp_path: Path) -> None:
    first = made(functions.climb, scheduler=ASHA(R=9, eta=3), trials=3, name="asked", max_concurrent=1).run()
    with open_store(tmp_path / "runs.db") as store:
        keeper = StoreKeeper(store, Nowhere(), first.run, "asked", "asked", tmp_path)
        book = made(functions.climb, scheduler=ASHA(R=9, eta=3), trials=3, name="asked")._settings.book(
            lambda line: None
        )
        book.replay(lines_of(store, first.run))
        paused = next(trial for trial in first if trial.state == "paused")
        store.apply([RunRecord(first.run, StateIs("running", 1.0))])  # as the next launcher does first
        number = store.request(paused.run, "stop")
        assert not keeper.requests()
        keeper.go_on(book.trials)
        assert [(each.number, each.trial) for each in keeper.requests()] == [(number, paused.number)]


# --- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"metric": []}, "metric is a name"),
        ({"mode": "least"}, 'mode must be "max" or "min", or one of these for each of score'),
        ({"metric": ["a", "b"], "scheduler": "hyperband"}, "needs the option 'R'"),
        ({"metric": ["a", "b"], "scheduler": ASHA(R=9)}, "compares trials by one metric, and there are 2: a, b"),
        ({"trials": None}, "would never end"),
        ({"trials": 0}, "trials must be a number of trials, 1 or more, or None, not 0"),
        ({"scheduler": "ahsa"}, "did you mean 'asha'"),
        ({"scheduler": "asha"}, r"needs the option 'R', as in ASHA\(R=...\)"),
        ({"scheduler": {"asha": {"R": 9}}}, r"a scheduler is given by its name or as an object, not as {'asha'"),
        ({"sampler": "randm"}, "did you mean 'random'"),
        ({"space": {"y": Uniform(0, 1)}}, "value has no parameter 'y'.*it takes run, then x"),
        ({"space": {"z": 1}}, "value has no parameter 'z'"),
        ({"start_with": [{"x": 3}]}, "x"),
        ({"trials_in": "clouds"}, "trials_in must be one of"),
        ({"max_concurrent": -1}, "max_concurrent"),
        ({"max_concurrent": 0}, "max_concurrent must be a number of trials, 1 or more, or None, not 0"),
    ],
)
def test_settings_that_cannot_be_are_named(made: Callable[..., Search], settings: dict[str, Any], words: str) -> None:
    space = settings.pop("space", X)
    with pytest.raises(SearchInvalid, match=words):
        made(functions.value, space, **settings)


def test_resources_of_another_type_are_named(made: Callable[..., Search]) -> None:
    with pytest.raises(TypeError, match=r"resources is of type dict; give ropewalk\.Resources\(cpus=2"):
        made(functions.value, X, resources={"gpu": 1})


def test_trials_can_run_in_threads_of_the_launcher(made: Callable[..., Search]) -> None:
    results = made(functions.climb, trials_in="threads", scheduler=ASHA(R=9, eta=3), trials=3).run()
    assert [trial.step for trial in results.ranked()] == [9, 1, 1] or results.best.step in (3, 9)
    assert json.dumps(results.to_records())
