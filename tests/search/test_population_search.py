"""Searches by population based training, in real workers."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ropewalk.errors import SearchFailed, SearchInvalid
from ropewalk.population.hyperparameters import LogUniform, Uniform
from ropewalk.search import When, make_scheduler
from ropewalk.search.loading import load_results
from ropewalk.search.schedulers import PopulationTraining
from ropewalk.search.search import Search
from ropewalk.tracking.checkpoints import CheckpointFolder
from ropewalk.tracking.records import ConfigIs, EventHappened, Metrics, RunRecord
from ropewalk.tracking.store.opening import open_store
from tests.search import functions

pytestmark = pytest.mark.usefixtures("shared_session")

X = {"x": Uniform(0, 1)}


@pytest.fixture
def made(tmp_path: Path) -> Callable[..., Search]:
    """Makes searches whose store is in the folder of the test."""

    def make(train: Callable[..., Any], space: Any = X, **settings: Any) -> Search:
        settings = {"metric": "score", "max_concurrent": 2, "progress": False} | settings
        settings.setdefault("scheduler", PopulationTraining(steps=4, population=4, synchronous=True))
        return Search(train, space, store=tmp_path / "runs.db", **settings)

    return make


def test_bad_members_copy_good_ones_and_go_on_from_their_states(made: Callable[..., Search], tmp_path: Path) -> None:
    results = made(functions.adds_up, seed=1).run()
    assert [(trial.state, trial.step) for trial in results] == [("done", 4)] * 4
    for trial, schedule in zip(results, results.schedules, strict=True):  # each state is the sum of its schedule
        assert trial.best == pytest.approx(sum(each.hyperparameters["x"] for each in schedule.stretches))
        assert list(trial.scores) == [1, 2, 3, 4]
    copied = [schedule for schedule in results.schedules if len(list(schedule)) > 1]
    assert copied
    with open_store(tmp_path / "runs.db") as store:
        search, members = store.run(results.run), store.children(results.run)
        copies = [event for event in store.events(results.run) if event.kind == "exploit"]
        (changed,) = {event.data["member"] for event in copies} & {copies[-1].data["member"]}
        own = [event.data for event in store.events(results[changed].run) if event.kind == "exploit"]
        rows = {series.name: series.count for series in store.series(results.run) if series.group == "table"}
        points = store.points(results.best.run, "score")
        assert store.run(results[changed].run).config["x"] == own[-1]["after"]["x"] != own[-1]["before"]["x"]
    assert (search.kind, search.state) == ("search", "done")
    assert sorted(member.state for member in members) == ["done"] * 4 and {member.kind for member in members} == {
        "trial"
    }
    assert rows["max"] == 4
    assert list(points.steps) == [1, 2, 3, 4]


def test_the_last_state_of_each_member_is_a_checkpoint_of_its_run(made: Callable[..., Search]) -> None:
    results = made(functions.adds_up).run()
    restored = CheckpointFolder(results.best.folder / "checkpoints").restore()
    assert restored is not None and restored.step == 4 and restored.state["total"] == results.best.best


def test_a_member_that_copies_a_last_state_has_its_file_too(made: Callable[..., Search], tmp_path: Path) -> None:
    scheduler = PopulationTraining(steps=4, population=2)
    first = [{"x": 0.1, "folder": str(tmp_path)}, {"x": 0.9, "folder": str(tmp_path)}]
    results = made(
        functions.adds_up_after_others, X | {"folder": str(tmp_path)}, scheduler=scheduler, start_with=first
    ).run()
    for trial in results:
        restored = CheckpointFolder(trial.folder / "checkpoints").restore()
        assert restored is not None and restored.state["total"] == trial.best and trial.step == 4


def test_a_synchronous_population_has_the_same_result_on_any_number_of_workers(made: Callable[..., Search]) -> None:
    one, two = (made(functions.adds_up, name=str(num), max_concurrent=num, seed=3).run() for num in (1, 2))
    assert [dict(trial.scores) for trial in one] == [dict(trial.scores) for trial in two]


def test_a_minimum_is_found_and_a_function_may_return_the_metric(made: Callable[..., Search]) -> None:
    scheduler = make_scheduler("pbt", steps=4, population=4, interval=2)
    results = made(functions.returns_its_sum, mode="min", scheduler=scheduler, start_with=[{"x": 0.0}]).run()
    assert results.best.number == 0 and results.best.best == 0.0
    assert list(results.best.scores) == [2, 4]
    assert min(trial.best or 0 for trial in results) == 0.0


def test_the_best_member_is_the_one_that_ends_best(made: Callable[..., Search], tmp_path: Path) -> None:
    # All copies of a member had its best value of before, of which no state is kept, and the first was the best.
    results = made(functions.rises_and_falls, seed=1, name="peak").run()
    assert len({max(trial.scores.values()) for trial in results}) < len(results)
    assert [trial.best for trial in results] == [trial.values["score"] for trial in results]
    restored = CheckpointFolder(results.best.folder / "checkpoints").restore()
    assert restored is not None and restored.state["score"] == results.best.best == max(t.best or 0 for t in results)
    loaded = load_results("peak", tmp_path / "runs.db")
    assert (loaded.best.number, loaded.best.best) == (results.best.number, results.best.best)
    with open_store(tmp_path / "runs.db") as store:  # what `ropewalk runs list` shows of it
        last = store.last_values([results.run])[results.run]
    assert (last["best score"], last["best trial"]) == (results.best.best, results.best.number)


def test_its_progress_has_the_metric_as_it_is_logged(
    made: Callable[..., Search], capfd: pytest.CaptureFixture[str]
) -> None:
    # It was that of an algorithm "PBT", with the loss after a minus, and did not say which run it was.
    results = made(functions.adds_up, mode="min", name="small", progress=True).run()
    lines = [line for line in capfd.readouterr().err.splitlines() if line.startswith("small: ")]
    best = f"best score {results.best.best:.5g} (trial {results.best.number})"
    assert lines[0].startswith(f"small: run {results.run} in ")
    assert lines[-2:] == [f"small: generation 4, step 4 of 4, {best}", "small: complete: 4 trials"]


def test_an_interval_that_fails_is_trained_again(made: Callable[..., Search], tmp_path: Path) -> None:
    scheduler = PopulationTraining(steps=4, population=1)  # alone, so that it cannot copy another in place of that
    results = made(functions.adds_up_after_a_failure, scheduler=scheduler).run()
    assert [(trial.state, trial.step) for trial in results] == [("done", 4)]
    assert results[0].attempts == 5
    with open_store(tmp_path / "runs.db") as store:
        attempts = store.attempts(results[0].run)
        failed = [event.text for event in store.events(results.run) if event.kind == "evaluation failed"]
    assert [each.outcome for each in attempts].count("failed") == 1
    assert failed == ["ValueError: once"]


@pytest.mark.parametrize(
    ("train", "words"),
    [
        (functions.logs_another_name, "without a value of 'score': it logged 'loss', 'epoch'"),
        (functions.value, "without run.checkpoint at step 1, so that nothing could go on"),
        (functions.raises, "3 intervals have failed before any member reported anything.*no data for"),
        (functions.counts_too_far, r"run.steps\(3\) ends before the members .* give PopulationTraining\(steps=3\)"),
    ],
)
def test_a_function_that_cannot_succeed_ends_the_search(made: Callable[..., Search], train: Any, words: str) -> None:
    search = made(train)
    with pytest.raises(SearchFailed, match=words):
        search.run()
    assert len(search.results()) == 4


def test_a_search_that_ran_out_of_time_goes_on_from_its_last_generation(
    made: Callable[..., Search], tmp_path: Path
) -> None:
    whole = made(functions.adds_up, name="whole", seed=5).run()
    first = made(functions.adds_up, name="cut", seed=5, time_limit_s=0.0).run()
    assert {(trial.state, trial.step) for trial in first} == {("paused", 1)}
    with open_store(tmp_path / "runs.db") as store:
        assert {row.state for row in [store.run(first.run), *store.children(first.run)]} == {"paused"}
    last = made(functions.adds_up, name="cut", seed=5).run()
    assert last.run == first.run
    assert [dict(trial.scores) for trial in last] == [dict(trial.scores) for trial in whole]
    with open_store(tmp_path / "runs.db") as store:
        events = [(event.data["member"], event.data["interval"]) for event in store.events(last.run) if event.data]
        assert len(events) == len(set(events))
        assert [series.count for series in store.series(last[0].run) if series.name == "score"] == [4]


def test_copies_that_did_not_come_to_pass_again_leave_no_trace_in_configurations(
    made: Callable[..., Search], tmp_path: Path
) -> None:
    """A launcher that was killed after its last checkpoint had told of copies; those in their place were not told."""
    whole = made(functions.adds_up, name="whole", seed=5).run()
    first = made(functions.adds_up, name="cut", seed=5, time_limit_s=0.0).run()
    with open_store(tmp_path / "runs.db") as store:
        copies = [event.data for event in store.events(whole.run) if event.kind == "exploit"]
        records = []
        for data in copies:
            other = EventHappened("exploit", "", 1.0, data | {"donor": 9, "after": {"x": -1.0}})
            records += [RunRecord(first.run, other), RunRecord(first[data["member"]].run, ConfigIs({"x": -1.0}))]
        records += [RunRecord(each.run, ConfigIs({"x": -1.0})) for each in first]  # of a copy that does not come again
        store.apply(records)
    assert copies
    last = made(functions.adds_up, name="cut", seed=5).run()
    with open_store(tmp_path / "runs.db") as store:
        told = [event.data for event in store.events(last.run) if event.kind == "exploit" and event.data["donor"] != 9]
        assert told == copies
        assert [store.run(each.run).config for each in last] == [store.run(each.run).config for each in whole]


def test_the_members_of_another_process_are_loaded(made: Callable[..., Search], tmp_path: Path) -> None:
    results = made(functions.adds_up, name="sum").run()
    loaded = load_results("sum", tmp_path / "runs.db")
    assert [(trial.state, trial.step, trial.values) for trial in loaded] == [
        (trial.state, trial.step, trial.values) for trial in results
    ]
    assert loaded.best.best == results.best.best
    with open_store(tmp_path / "runs.db") as store:  # a NaN hid all values after it
        store.apply([RunRecord(results.best.run, Metrics("", ["score"], [math.nan], 0.5, 1.0))])
    assert load_results("sum", tmp_path / "runs.db")[results.best.number].best == results.best.best


SCRIPT = """
import sys
from pathlib import Path
from ropewalk.population import Uniform
from ropewalk.search import PopulationTraining, Search
from tests.search import functions

if __name__ == "__main__":
    space = {"x": Uniform(0, 1), "folder": sys.argv[1]}
    search = Search(functions.adds_up_slowly, space, metric="score", max_concurrent=2, store=sys.argv[1] + "/runs.db",
                    scheduler=PopulationTraining(steps=6, population=4, synchronous=True), progress=False)
    print([(trial.state, trial.step, round(trial.best, 6)) for trial in search.run()])
"""


@pytest.fixture
def script(tmp_path: Path) -> Iterator[Callable[[], subprocess.Popen[str]]]:
    """Starts the search of SCRIPT in a process of its own."""
    (tmp_path / "script.py").write_text(SCRIPT)
    started: list[subprocess.Popen[str]] = []

    def start() -> subprocess.Popen[str]:
        command = [sys.executable, str(tmp_path / "script.py"), str(tmp_path)]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        started.append(
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
        )
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_the_same_command_goes_on_after_sigkill_of_the_launcher(
    script: Callable[[], subprocess.Popen[str]], tmp_path: Path
) -> None:
    first = script()
    while len(list(tmp_path.rglob("generation-*.state"))) < 2:
        assert first.poll() is None
        time.sleep(0.02)
    first.send_signal(signal.SIGKILL)
    first.wait()
    second = script()
    output, told = second.communicate()
    assert second.returncode == 0, told
    assert [(state, step) for state, step, _ in eval(output)] == [("done", 6)] * 4
    with open_store(tmp_path / "runs.db") as store:
        assert [row.state for row in store.runs(kind="search")] == ["done"]
    trained = len((tmp_path / "trained").read_text().splitlines())
    assert trained <= 6 * 4 + 8  # at most the intervals of the generation under way, and of one more


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"scheduler": PopulationTraining(steps=4, quantile=0.7)}, "quantile must be above 0"),
        ({"scheduler": PopulationTraining(steps=0)}, "steps must be at least 1"),
        ({"scheduler": "pbt"}, "needs the option 'steps'"),
        ({"sampler": "sobol"}, "does not take sampler="),
        ({"metric": ["score", "cost"]}, "does not take several metrics"),
        ({"trials": 9}, "trials=9, because population=4"),
        ({"trials_in": "threads"}, "threads"),
        ({"silent_s": 3.0}, "silent_s"),
        ({"space": None}, "have to be in space="),
        ({"space": {"x": When({"y": 1}, Uniform(0, 1)), "y": LogUniform(1, 2)}}, "always active, and x is not"),
    ],
)
def test_what_a_population_cannot_do_is_refused(
    made: Callable[..., Search], settings: dict[str, Any], words: str
) -> None:
    space = settings.pop("space", X)
    with pytest.raises(SearchInvalid, match=words):
        made(functions.takes_anything, space, **settings)
