"""Whole runs: over any pool the same, through deaths and failures, saved, resumed, repeated from their logs."""

from __future__ import annotations

import concurrent.futures
import contextlib
import inspect
import json
import multiprocessing
import multiprocessing.pool
import os
import pickle
import random
import resource
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ropewalk as rw
from ropewalk.errors import EvaluationFailed, FileNotTrusted
from ropewalk.population import (
    CMAES,
    PBT,
    SNES,
    Algorithm,
    CheckpointConfig,
    EvalConfig,
    FailurePolicy,
    GenerationMode,
    Genetic,
    NoiseTable,
    NoveltyES,
    OpenAIES,
    Outcome,
    RunResult,
    SteadyMode,
    StragglerPolicy,
    Trial,
    Uniform,
    WorkerAutoscaler,
    adapt,
    evaluate,
    read_decisions,
    saved_run,
)
from ropewalk.population.state_file import pack_state, read_state
from tests import conftest
from tests.left_behind import Snapshot
from tests.other_users import MALLORY, as_user, needs_root
from tests.patience import PATIENCE_S
from tests.population import fitnesses
from tests.population.local_loop import same_state

#: Of a row: what does not depend on the machine.
MACHINES = ("seconds", "evaluations_per_s", "workers", "launcher_ms")


def algorithm(**options: Any) -> OpenAIES:
    defaults: dict[str, Any] = {
        "population": 16,
        "sigma": 0.1,
        "learning_rate": 0.1,
        "seed": 5,
        "noise": NoiseTable(2**14),
    }
    return OpenAIES(np.zeros(6), **{**defaults, **options})


def rows(run: RunResult) -> list[dict[str, float]]:
    return [{name: value for name, value in row.items() if name not in MACHINES} for row in run.table]


def assert_same(one: RunResult, other: RunResult) -> None:
    assert same_state(one.algorithm.state_dict(), other.algorithm.state_dict())
    assert rows(one) == rows(other)
    assert np.array_equal(one.best, other.best) and one.best_fitness == other.best_fitness
    assert np.array_equal(one.best_test, other.best_test, equal_nan=True)


@pytest.fixture(scope="module", autouse=True)
def _nothing_is_left() -> Iterator[None]:  # pyright: ignore[reportUnusedFunction]
    """In place of the one for every test, which would end the session of the pool that all share."""
    before = Snapshot.take()
    yield
    conftest._end_sessions()
    left = before.what_stays()
    assert not left, left.describe()


@pytest.fixture(scope="module")
def pool(_nothing_is_left: None) -> Iterator[rw.Pool]:
    with rw.Pool(2, name="evaluating", preload=[__name__]) as pool:  # each worker would take 0.5 s to import it
        yield pool


# --- the same on any ground -------------------------------------------------------------------------------------------


def test_a_run_is_the_same_in_this_process_and_on_any_pool(pool: rw.Pool) -> None:
    def run(ground: Any) -> RunResult:
        found = evaluate(
            algorithm(observation_shape=(2,), observation_share=0.5), fitnesses.wordy, ground, generations=4, test=3
        )
        assert found.evaluations == 64 and found.steps == 192
        return found

    here = run(None)
    assert [row["generation"] for row in here.table] == [1, 2, 3, 4] and 0 < here.table[-1]["length"] < 7
    assert here.best_test == max(row["test"] for row in here.table)
    assert np.isnan(here.launcher_ms)
    assert_same(run(pool), here)
    with rw.Pool(3) as three:
        assert_same(run(three), here)
    with multiprocessing.get_context("spawn").Pool(1) as other:
        assert_same(run(other), here)
    with concurrent.futures.ThreadPoolExecutor(2) as executor:
        assert_same(run(executor), here)


def test_a_run_that_has_ended_leaves_a_pool_of_multiprocessing_at_most_two_chunks_per_worker() -> None:
    """The rest of the generation was evaluated before the pool could do anything else."""
    begun: list[int] = []
    go = threading.Event()

    def fitness(x: Any) -> float:
        begun.append(threading.get_ident())
        if len(begun) == 1:
            raise ValueError("the first one")
        if begun[0] != threading.get_ident() or begun.count(begun[0]) > 8:  # the first chunk has eight candidates
            go.wait(PATIENCE_S)
        return 0.0

    with multiprocessing.pool.ThreadPool(2) as threads:
        try:
            with pytest.raises(ValueError, match="the first one"):
                evaluate(algorithm(population=64), fitness, threads, generations=1)
        finally:
            go.set()
        threads.close()
        threads.join()
    assert 8 < len(begun) <= (4 + 1) * 8, "another chunk was handed over when the first had ended"


def test_all_candidates_of_a_generation_have_one_seed_in_common_on_any_pool(pool: rw.Pool) -> None:
    seen: list[list[float]] = []
    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        for where in (None, pool, threads):
            run = evaluate(algorithm(), fitnesses.common, where, generations=3)
            assert all(row["min"] == row["max"] for row in run.table)
            seen.append([row["max"] for row in run.table])
    assert seen[0] == seen[1] == seen[2] and len(set(seen[0])) == 3


def test_killing_workers_throughout_changes_nothing(pool: rw.Pool) -> None:
    undisturbed = evaluate(algorithm(population=32), fitnesses.uneven, None, generations=6)
    victims = rw.Pool(3, preload=["numpy"], max_deaths=50)
    with victims, killing(victims, most=6) as kills:
        assert_same(evaluate(algorithm(population=32), fitnesses.uneven, victims, generations=6), undisturbed)
    assert kills, "nobody was killed, so nothing was shown"


@contextlib.contextmanager
def killing(pool: rw.Pool, most: int) -> Generator[list[int]]:
    """Kill one worker after the other, of those that are in a task; not all day, or a slow machine would never end."""
    kills: list[int] = []
    over = threading.Event()

    def kill() -> None:
        while len(kills) < most and not over.wait(0.05):
            pids = [worker.pid for worker in pool.status().workers if worker.pid and worker.state == "running"]
            if pids:
                kills.append(random.choice(pids))
                with contextlib.suppress(ProcessLookupError):
                    os.kill(kills[-1], signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield kills
    finally:
        over.set()
        thread.join()


# --- logs and their repetition ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("stragglers", [StragglerPolicy.drop(0.5, 0.0), StragglerPolicy.carry(0.5, 0.0)])
def test_a_run_that_left_stragglers_is_repeated_from_its_log(pool: rw.Pool, stragglers: Any, tmp_path: Path) -> None:
    log = tmp_path / "decisions.jsonl"
    mode = GenerationMode(stragglers)
    run = evaluate(algorithm(max_age=3), fitnesses.uneven, pool, generations=5, mode=mode, log=log, test=2)
    assert sum(row["dropped"] for row in run.table) + sum(row["stale"] for row in run.table) > 0
    assert_same(evaluate(algorithm(max_age=3), fitnesses.uneven, None, replay=log, test=2), run)
    assert_same(evaluate(algorithm(max_age=3), fitnesses.uneven, pool, replay=run.decisions, test=2), run)


def test_steady_state_is_repeated_from_its_log(pool: rw.Pool) -> None:
    options = {"max_age": 3}
    run = evaluate(algorithm(**options), fitnesses.uneven, pool, generations=4, mode=SteadyMode(ahead=2))
    assert len(run.decisions) > 64 and len(run.table) == 4
    again = evaluate(algorithm(**options), fitnesses.uneven, None, replay=run.decisions)
    assert_same(again, run)
    assert list(read_decisions([*run.decisions.lines()])) == list(run.decisions)


def test_failures_are_repeated_from_the_log_without_evaluating_them(pool: rw.Pool) -> None:
    with rw.Pool(2, max_deaths=1) as victims:
        run = evaluate(algorithm(), fitnesses.kills_its_worker, victims, generations=3, failures="worst")
    assert sum(row["failed"] for row in run.table) > 0
    again = evaluate(algorithm(), fitnesses.kills_its_worker, None, replay=run.decisions, failures="worst")
    assert_same(again, run)


def late_and_wrong(x: Any, trial: Trial) -> float:
    """A straggler that raises long after nobody waits for it."""
    if trial.seed % 4 == 1 and not trial.is_test:
        time.sleep(0.2)
        raise ArithmeticError("too late")
    return fitnesses.noisy_sphere(x, trial)


def test_a_straggler_that_was_dropped_may_fail_unheard() -> None:
    with concurrent.futures.ThreadPoolExecutor(32) as pool:  # room for all, so that stragglers are the last ones
        drop = StragglerPolicy.drop(after=0.5, grace=0.0)
        run = evaluate(algorithm(), late_and_wrong, pool, generations=4, mode=GenerationMode(drop), test=1)
    assert sum(row["dropped"] for row in run.table) > 0 == sum(row["failed"] for row in run.table)


# --- failures ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ground", [None, "pool"])
def test_an_evaluation_that_raises_ends_the_run_with_its_own_error(pool: rw.Pool, ground: str | None) -> None:
    with pytest.raises(ArithmeticError, match="no fitness for seed") as caught:
        evaluate(algorithm(), fitnesses.sometimes_raises, ground and pool, generations=4)
    assert "This ended the evaluation of candidate" in "".join(caught.value.__notes__)
    assert pool.apply(abs, (-3,)) == 3


@pytest.mark.parametrize("policy", ["worst", "drop"])
def test_evaluations_that_raise_or_are_nan_can_be_told_as_the_worst_or_not_at_all(pool: rw.Pool, policy: Any) -> None:
    raising = evaluate(algorithm(), fitnesses.sometimes_raises, pool, generations=4, failures=policy)
    nan = evaluate(algorithm(), fitnesses.sometimes_nan, pool, generations=4, failures=FailurePolicy(nan=policy))
    assert_same(raising, nan)
    assert 0 < sum(row["failed"] for row in raising.table) < 64


def test_nan_is_an_error_unless_a_policy_is_chosen(pool: rw.Pool) -> None:
    with pytest.raises(EvaluationFailed, match=r'is NaN; .*failures=FailurePolicy\(nan="worst"\)'):
        evaluate(algorithm(), fitnesses.sometimes_nan, pool, generations=4)


def test_a_run_in_which_everything_fails_ends(pool: rw.Pool) -> None:
    with pytest.raises(EvaluationFailed, match=r"the last 16 evaluations had no fitness.*nothing works"):
        evaluate(algorithm(), fitnesses.always_raises, pool, generations=100, failures="drop")


def diverges_in_half_of_the_tests(x: Any, trial: Trial) -> float:
    return float("nan") if trial.is_test and trial.seed % 2 else 1.0


def test_tests_that_are_nan_follow_the_policy(pool: rw.Pool) -> None:
    def tests(nan: Any) -> list[float]:
        policy = FailurePolicy(nan=nan)
        run = evaluate(algorithm(), diverges_in_half_of_the_tests, pool, generations=3, test=8, failures=policy)
        return [row["test"] for row in run.table]

    with pytest.raises(EvaluationFailed, match="the fitness of the incumbent is NaN in episode"):
        tests("raise")
    assert tests("drop") == [1.0] * 3
    assert tests("worst") == [1.0] * 3  # nothing worse was ever seen


def test_values_cannot_take_the_names_of_columns() -> None:
    with pytest.raises(ValueError, match="values called max, mean, which are columns of every run"):
        evaluate(algorithm(), lambda x: Outcome(1.0, values={"mean": 2.0, "max": 3.0}), generations=1)


# --- checkpoints ------------------------------------------------------------------------------------------------------

SCRIPT = """
import os, signal, sys, threading, time
import numpy as np
import ropewalk as rw
from ropewalk.population import NoiseTable, OpenAIES, evaluate
from tests.population import fitnesses

folder, mode, kill_in = sys.argv[1], sys.argv[2], int(sys.argv[3])

def report(generation, **row):
    if generation == kill_in:
        threading.Timer(0.01, os.kill, (os.getpid(), signal.SIGKILL)).start()

if __name__ == "__main__":
    options = dict(population=16, sigma=0.1, learning_rate=0.1, seed=5, noise=NoiseTable(2**14), max_age=5)
    algorithm = OpenAIES(np.zeros(6), **options)
    with rw.Pool(2) as pool:
        run = evaluate(algorithm, fitnesses.uneven, pool, generations=8, mode=mode, checkpoint=folder,
                       log=folder + "/log", report=report, test=2)
    np.save(folder + "/learnt", run.algorithm.incumbent())
    print(len(run.table), run.evaluations)
"""


@pytest.mark.parametrize("mode", ["generation", "steady"])
def test_a_launcher_that_was_killed_goes_on_from_its_last_checkpoint(mode: Any, tmp_path: Path) -> None:
    command = [sys.executable, "-c", SCRIPT, str(tmp_path), mode]
    killed = subprocess.run([*command, "3"], capture_output=True, text=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert list(tmp_path.glob("generation-*.state")) and not (tmp_path / "learnt.npy").exists()
    resumed = subprocess.run([*command, "0"], capture_output=True, text=True, check=True)
    assert resumed.stdout.split()[0] == "8"
    learnt = np.load(tmp_path / "learnt.npy")
    fresh = algorithm(max_age=5)
    if mode == "generation":
        whole = evaluate(fresh, fitnesses.uneven, None, generations=8)
    else:  # what it did is in the log, of the time before the kill as well
        whole = evaluate(fresh, fitnesses.uneven, None, replay=tmp_path / "log")
    assert np.array_equal(learnt, whole.algorithm.incumbent())


def test_a_run_that_carries_stragglers_is_saved_with_them(pool: rw.Pool, tmp_path: Path) -> None:
    """What is under way at a checkpoint is evaluated again by who goes on, under its old parameters."""
    mode = GenerationMode(StragglerPolicy.carry(after=0.5, grace=0.0))
    options: dict[str, Any] = {"mode": mode, "checkpoint": tmp_path}
    first = evaluate(algorithm(max_age=9), fitnesses.uneven, pool, generations=3, **options)
    assert first.table[-1]["generation"] == 3
    log = tmp_path / "log"
    run = evaluate(algorithm(max_age=9), fitnesses.uneven, pool, generations=6, log=log, **options)
    assert run.table[:3] == first.table and sum(row["stale"] for row in run.table) > 0
    again = evaluate(algorithm(max_age=9), fitnesses.uneven, None, replay=log)
    assert same_state(again.algorithm.state_dict(), run.algorithm.state_dict())


def test_a_finished_run_is_not_run_again_and_another_one_is_refused(pool: rw.Pool, tmp_path: Path) -> None:
    run = evaluate(algorithm(), fitnesses.noisy_sphere, None, generations=2, checkpoint=tmp_path)
    again = evaluate(algorithm(), fitnesses.always_raises, None, generations=2, checkpoint=tmp_path)
    assert_same(again, run)
    with pytest.raises(ValueError, match=r"is a checkpoint of OpenAIES with seed 5 .* with seed 6"):
        evaluate(algorithm(seed=6), fitnesses.noisy_sphere, None, generations=2, checkpoint=tmp_path)


class Bomb:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


@needs_root
def test_a_checkpoint_that_another_user_planted_is_passed_over_and_costs_none_of_ours(everybodys: Path) -> None:
    """Its name made it the newest, so it was unpickled by default; and it counted as one of those that are kept."""
    run = evaluate(algorithm(), fitnesses.noisy_sphere, None, generations=2, checkpoint=everybodys)
    state = read_state(everybodys / "generation-000000002.state")
    state["run"]["best_tested"] = {"pickle": pickle.dumps(Bomb(everybodys / "exploded"))}
    bomb = pack_state(state)
    planted = [everybodys / f"generation-99999999{digit}.state" for digit in range(3)]
    as_user(MALLORY, lambda: [path.write_bytes(bomb) for path in planted] and None)
    again = evaluate(algorithm(), fitnesses.noisy_sphere, None, generations=4, checkpoint=everybodys)
    assert not (everybodys / "exploded").exists()
    assert [row["generation"] for row in again.table] == [1, 2, 3, 4] and again.table[1] == run.table[1]
    ours = [path.name for path in sorted(everybodys.glob("*.state")) if path not in planted]
    assert ours == ["generation-000000003.state", "generation-000000004.state"]
    for name in ours:
        (everybodys / name).unlink()
    with pytest.raises(FileNotTrusted, match=f"belongs to user {MALLORY}"):
        evaluate(algorithm(), fitnesses.noisy_sphere, None, generations=4, checkpoint=everybodys)
    assert not (everybodys / "exploded").exists()


def test_a_folder_that_others_may_write_to_is_no_place_for_checkpoints(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(FileNotTrusted, match="chmod go-w"):
        evaluate(algorithm(), fitnesses.noisy_sphere, None, generations=1, checkpoint=tmp_path)


@pytest.mark.parametrize("umask", [0o000, 0o022])
def test_checkpoints_are_ours_alone_and_hold_no_pickle_where_none_is_needed(tmp_path: Path, umask: int) -> None:  # S12
    before = os.umask(umask)
    try:
        evaluate(algorithm(), fitnesses.noisy_sphere, None, generations=1, test=1, checkpoint=tmp_path / "a" / "b")
    finally:
        os.umask(before)
    (path,) = (tmp_path / "a" / "b").iterdir()
    assert [stat.S_IMODE(each.stat().st_mode) for each in (path, *path.parents[:2])] == [0o600, 0o700, 0o700]
    run = read_state(path)["run"]
    assert run["asked"] == {"plain": {}} and "plain" in run["best_tested"]


def test_a_run_that_begins_anew_replaces_the_checkpoints_of_a_longer_one(tmp_path: Path) -> None:
    evaluate(algorithm(), fitnesses.noisy_sphere, None, generations=5, checkpoint=tmp_path)
    anew = algorithm(seed=6)
    evaluate(anew, fitnesses.noisy_sphere, None, generations=2, checkpoint=CheckpointConfig(tmp_path, resume=False))
    assert sorted(os.listdir(tmp_path)) == ["generation-000000001.state", "generation-000000002.state"]
    again = evaluate(algorithm(seed=6), fitnesses.noisy_sphere, None, generations=2, checkpoint=tmp_path)
    assert same_state(anew.state_dict(), again.algorithm.state_dict())


def changes_its_argument(x: Any, trial: Trial) -> float:
    x -= 1.0
    return -float(np.sum(x**2))


def test_a_function_that_changes_its_argument_changes_nothing_else(pool: rw.Pool) -> None:
    here = evaluate(CMAES(4, population=8, seed=1), changes_its_argument, None, generations=4)
    assert_same(evaluate(CMAES(4, population=8, seed=1), changes_its_argument, pool, generations=4), here)
    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        assert_same(evaluate(CMAES(4, population=8, seed=1), changes_its_argument, threads, generations=4), here)
    for ground in (None, pool):  # what is tested is sent once for all episodes
        tested = evaluate(CMAES(4, population=8, seed=1), changes_its_argument, ground, generations=4, test=3)
        assert tested.best_test == pytest.approx(-float(np.sum((tested.best - 1.0) ** 2)))


def sum_of_squares_in_torch(x: Any, trial: Trial) -> float:
    """As people write it who have a policy in torch."""
    import torch  # which the workers of the other tests do without

    policy = torch.nn.Linear(3, 1)
    torch.nn.utils.vector_to_parameters(torch.as_tensor(x, dtype=torch.float32), policy.parameters())
    with torch.no_grad():
        return -float(policy(torch.ones(3)).square())


@pytest.mark.parametrize("make", [OpenAIES, Genetic, NoveltyES, CMAES, SNES])
def test_torch_takes_what_a_fitness_gets_and_what_a_run_gives(make: Any) -> None:
    import torch

    # PyTorch warns of read-only arrays, which is an error here: of parents, elites and what is tested.
    fitness = with_behaviour if make is NoveltyES else sum_of_squares_in_torch
    run = evaluate(make(np.ones(4, np.float32), seed=1), fitness, None, generations=2, test=1)
    torch.from_numpy(run.best).zero_()


def with_behaviour(x: Any, trial: Trial) -> Outcome:
    return Outcome(sum_of_squares_in_torch(x, trial), behaviour=x[:1])


def test_a_run_says_apart_what_was_tested_and_what_was_lucky(pool: rw.Pool) -> None:
    # "best 86.25", said of a table whose rows said 500: one was the mean of the best test, one a single candidate.
    def fitness(x: Any, trial: Trial) -> float:
        return 86.25 if trial.is_test else 500.0

    tested = evaluate(CMAES(4, population=8, seed=1), fitness, None, generations=2, test=4)
    assert (tested.best_test, tested.best_fitness, tested.table[-1]["best"]) == (86.25, 500.0, 500.0)
    assert str(tested).startswith("CMAES: best test 86.25, best evaluation 500, 2 generations, 16 evaluations in")
    untested = evaluate(CMAES(4, population=8, seed=1), fitness, None, generations=2)
    assert str(untested).startswith("CMAES: best evaluation 500, 2 generations") and np.isnan(untested.best_test)


def test_the_deviation_of_noise_is_called_sigma_by_every_algorithm() -> None:
    for algorithm in (OpenAIES, Genetic, NoveltyES, CMAES, SNES):
        assert "sigma" in inspect.signature(algorithm).parameters, algorithm


def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    evaluate(algorithm(), fitnesses.noisy_sphere, None, generations=3, checkpoint=CheckpointConfig(tmp_path, keep=2))
    older, newer = sorted(tmp_path.iterdir())
    newer.write_bytes(newer.read_bytes()[:-3])
    run = evaluate(algorithm(), fitnesses.noisy_sphere, None, generations=5, checkpoint=tmp_path)
    assert "is damaged" in caplog.text and older.name == "generation-000000002.state"
    assert_same(run, evaluate(algorithm(), fitnesses.noisy_sphere, None, generations=5))


def test_a_full_disk_does_not_end_a_run_and_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    # It was told in each generation.
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    run = evaluate(algorithm(), fitnesses.noisy_sphere, None, generations=2, checkpoint=tmp_path)
    before, during = sorted(os.listdir(tmp_path)), list[list[str]]()

    def fill(generation: int, **_row: float) -> None:
        if generation == 6:
            during.append(sorted(os.listdir(tmp_path)))
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000 if generation < 6 else soft, hard))

    try:
        run = evaluate(algorithm(), fitnesses.noisy_sphere, None, generations=7, checkpoint=tmp_path, report=fill)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert len(run.checkpoint_failures) == 3 and "File too large" in run.checkpoint_failures[0]
    assert during == [before] and len(os.listdir(tmp_path)) == 2
    first, last = [record.getMessage() for record in caplog.records]
    assert first.startswith("generation 3 could not be saved") and "the run goes on" in first
    assert last == f"checkpoints are written again, in {tmp_path}; 3 could not be"


def test_a_disk_that_stays_full_is_told_of_again_after_an_hour(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = [1000.0]
    monkeypatch.setattr(saved_run.time, "monotonic", lambda: now_s[0])
    saved = saved_run.SavedRun(tmp_path, saved_run.RunKind("OpenAIES", 1, "Generational"), 0)
    for at_s in (0, 3500, 3700, 7000, 7400):
        now_s[0] = 1000.0 + at_s
        saved._failed(f"at {at_s}")
    assert [record.getMessage().partition(";")[0] for record in caplog.records] == ["at 0", "at 3700", "at 7400"]
    assert len(saved.failures) == 5


@pytest.mark.parametrize("way", ["checkpoint", "replay"])
def test_a_log_is_written_also_where_nothing_is_left_to_decide(tmp_path: Path, way: str) -> None:
    log = tmp_path / "log"
    whole = evaluate(algorithm(), fitnesses.noisy_sphere, generations=2, checkpoint=tmp_path / "saved", log=log)
    before, again = log.read_text(), tmp_path / "again"
    if way == "replay":
        run = evaluate(algorithm(), fitnesses.noisy_sphere, replay=log, log=again)
    else:
        run = evaluate(algorithm(), fitnesses.noisy_sphere, generations=2, checkpoint=tmp_path / "saved", log=again)
    assert_same(run, whole)
    assert again.read_text() == before and before.count("\n") > 2


# --- what can be seen, and when it ends -------------------------------------------------------------------------------


def test_rows_are_reported_and_shown(pool: rw.Pool, capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[tuple[int, dict[str, float]]] = []
    run = evaluate(
        algorithm(),
        fitnesses.noisy_sphere,
        pool,
        generations=3,
        test=EvalConfig(episodes=2, every=2),
        report=lambda generation, **row: seen.append((generation, row)),
        progress=True,
    )
    assert [generation for generation, _ in seen] == [1, 2, 3]
    assert seen[-1][1] == {name: value for name, value in run.table[-1].items() if name != "generation"}
    assert ["test" in row for row in run.table] == [True, False, True]
    shown = capsys.readouterr().err.splitlines()
    assert len(shown) == 3 and shown[0].startswith("OpenAIES: generation 1 of 3  mean ") and "2 workers" in shown[2]
    assert json.loads(json.dumps(run.table)) == run.table
    assert run.launcher_ms > 0 and "ms of the launcher" in str(run)


def test_a_run_ends_when_a_row_is_good_enough() -> None:
    run = evaluate(algorithm(), fitnesses.noisy_sphere, until={"test": -1.0}, test=2)
    assert run.table[-1]["test"] >= -1.0 > run.table[-2]["test"] and run.best_test >= -1.0
    assert fitnesses.noisy_sphere(run.best, Trial(0, is_test=True)) == pytest.approx(run.best_test)
    run = evaluate(algorithm(), fitnesses.noisy_sphere, until=lambda row: row["evaluations"] >= 40)
    assert run.evaluations == 48
    with pytest.raises(ValueError, match="until asks for the column 'reward', and the rows of this run have"):
        evaluate(algorithm(), fitnesses.noisy_sphere, until={"reward": 1})


def test_the_pool_follows_the_candidates() -> None:
    with rw.Pool(1) as pool:
        run = evaluate(algorithm(), fitnesses.noisy_sphere, pool, generations=2, workers=WorkerAutoscaler(1, 3))
        assert [row["workers"] for row in run.table] == [3, 3] and pool.num_workers == 3


def test_an_interrupt_leaves_the_pool_usable(pool: rw.Pool) -> None:
    def interrupt(generation: int, **row: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluate(algorithm(), fitnesses.uneven, pool, mode="steady", generations=5, report=interrupt)
    assert pool.map(abs, [-1, -2]) == [1, 2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "nothing ends this run: OpenAIES goes on for ever"),
        ({"generations": 0}, "generations must be a whole number, 1 or more, or None, not 0"),
        ({"mode": "async", "generations": 1}, "mode must be one of 'generation', 'steady', not 'async'"),
        ({"until": {"test": 3.0}}, "this run has no tests; give test=8"),
        ({"generations": 1, "workers": WorkerAutoscaler(1, 2)}, "workers= sizes a ropewalk.Pool"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        evaluate(algorithm(), fitnesses.noisy_sphere, None, **options)
    with pytest.raises(TypeError, match=r"pool must be a ropewalk\.Pool.* not 7"):
        evaluate(algorithm(), fitnesses.noisy_sphere, 7, generations=1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"failures": None, "generations": 1}, r"failures must be .*, such as FailurePolicy\(nan=.*, not None"),
        ({"until": 3}, "until must be a function of a row, .*, not 3"),
        ({"generations": 2.5}, "generations is of type float; give a whole number, 1 or more"),
    ],
)
def test_options_of_a_wrong_kind_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        evaluate(algorithm(), fitnesses.noisy_sphere, None, **options)
    with pytest.raises(TypeError, match=r"must be an object, not the class OpenAIES; write OpenAIES\(\.\.\.\)"):
        evaluate(OpenAIES, fitnesses.noisy_sphere, generations=1)
    with pytest.raises(TypeError, match="seed is of type NoneType; give a whole number, 0 or more"):
        OpenAIES(4, seed=None)  # type: ignore[arg-type]


def test_a_folder_for_checkpoints_that_cannot_be_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        evaluate(algorithm(), fitnesses.always_raises, generations=1, checkpoint=tmp_path / "file")


class Listed(Algorithm[int]):
    """Gives out the numbers up to ten, two at a time, and has finished when it was told of all."""

    def __init__(self, *, says_so: bool = True) -> None:
        super().__init__(4, 0)
        self.given = 0
        self.told: list[int] = []
        self._says_so = says_so

    def ask(self, n: int) -> range:
        first, self.given = self.given, min(10, self.given + 2)
        return range(first, self.given)

    def tell(self, candidates: Any, outcomes: Any) -> None:
        self.told += candidates
        self.generation = len(self.told) // self.population

    @property
    def finished(self) -> bool:
        return self._says_so and len(self.told) == 10

    def state_dict(self) -> dict[str, Any]:
        return {"told": self.told}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.told = state["told"]
        self.given = len(self.told)


@pytest.mark.parametrize("mode", ["generation", "steady"])
def test_an_algorithm_that_has_finished_ends_its_run(mode: Any) -> None:
    run = evaluate(Listed(), float, mode=mode)
    assert sorted(run.algorithm.told) == list(range(10)) and run.evaluations == 10
    assert [row["generation"] for row in run.table] == [1, 2, 2]
    assert rows(evaluate(Listed(), float, replay=run.decisions)) == rows(run)


@pytest.mark.parametrize("mode", ["generation", "steady"])
def test_an_algorithm_that_gives_nothing_more_and_does_not_say_so_is_an_error(mode: Any) -> None:
    with pytest.raises(RuntimeError, match="Listed was asked for candidates and gave none"):
        evaluate(Listed(says_so=False), float, mode=mode, generations=100)


def lost_here(x: int) -> Outcome:
    return Outcome(-7.0, failure="its host is gone") if os.environ.get("LOST") and x == 3 else Outcome(float(x))


def test_what_an_evaluator_says_of_its_surroundings_is_in_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOST", "1")
    run = evaluate(Listed(), lost_here)
    monkeypatch.delenv("LOST")
    lines = list(run.decisions.lines())
    again = evaluate(Listed(), lost_here, replay=lines)
    assert rows(again) == rows(run) and run.table[0]["min"] == -7.0


def test_a_second_run_of_the_same_object_goes_on() -> None:
    """What was under way when the first one ended is nobody's any more."""
    es = algorithm()
    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        for generations in (2, 4):
            run = evaluate(es, fitnesses.uneven, threads, mode=SteadyMode(ahead=2), generations=generations)
        assert es.generation == 4 and len(run.table) == 2
        with pytest.raises(ValueError, match=r"the log to replay is of .*'after': 2.* and this run is of .*'after': 0"):
            evaluate(algorithm(), fitnesses.uneven, replay=run.decisions)
        members = PBT({"rate": Uniform(0.0, 1.0)}, population=4, seed=1)
        for generations in (2, 12):
            evaluate(members, step_aside, threads, mode="steady", generations=generations)
        incumbent = members.incumbent()
        assert incumbent is not None and min(length for _, length in incumbent.state) > 1


class Outsider:
    """An optimiser of another library, which has to be told a whole population."""

    def __init__(self) -> None:
        self.told: list[list[float]] = []

    def ask(self) -> list[float]:
        return [0.1, 0.2, 0.3]

    def tell(self, solutions: Any, values: Any) -> None:
        self.told.append(list(values))


@pytest.mark.parametrize("make", [
    lambda: adapt(Outsider(), maximise=True),
    lambda: PBT({"rate": Uniform(0.0, 1.0)}, population=4, seed=1, synchronous=True),
    lambda: PBT({"rate": Uniform(0.0, 1.0)}, population=4, seed=1),
    lambda: algorithm(),
    lambda: CMAES(3),
])  # fmt: skip
def test_a_run_that_ended_with_nan_can_be_gone_on_with(make: Any) -> None:
    """The candidates that were to be told were neither told nor dropped, and were waited for by every later run."""
    method = make()
    with pytest.raises(EvaluationFailed, match=r"is NaN"):
        evaluate(method, lambda x: float("nan"), generations=2)
    run = evaluate(method, step_aside if isinstance(method, PBT) else lambda x: float(np.sum(x)), generations=2)
    assert run.algorithm.generation == 2


def test_a_run_that_ended_leaves_an_executor_nothing_to_do() -> None:
    """Evaluations that nobody waited for went on, and the next work of the executor came after them."""
    begun: list[Any] = []
    has_ended = threading.Event()

    def fails(x: Any) -> float:
        begun.append(x)
        if len(begun) > 4:  # of the second of four chunks
            has_ended.wait(120)
        raise OSError("no such environment")

    with concurrent.futures.ThreadPoolExecutor(1) as threads:
        with pytest.raises(OSError, match="no such environment"):
            evaluate(algorithm(), fails, threads, generations=1)
        has_ended.set()
    assert len(begun) == 8


class Kept(Listed):
    """Notes what it gave, and what became of it; has no evaluator for what it gives later."""

    def __init__(self) -> None:
        super().__init__()
        self.dropped: list[int] = []

    def drop(self, candidates: Any) -> None:
        self.dropped += candidates

    def evaluator(self) -> Any:
        if self.given > 4:
            raise OSError("the disk with the environments is gone")
        return super().evaluator()


@pytest.mark.parametrize("mode", ["generation", "steady"])
def test_an_error_of_the_algorithm_is_raised_as_it_is_and_its_candidates_are_dropped(mode: Any) -> None:
    """A KeyError came instead, of the loop that looked for candidates which it had not noted yet."""
    method = Kept()
    with pytest.raises(OSError, match="the disk with the environments is gone"):
        evaluate(method, float, mode=mode)
    assert sorted(method.told + method.dropped) == list(range(method.given))


def seed_of_trial(x: Any, trial: Trial) -> Outcome:
    return Outcome(-float(np.sum(x**2)), values={"seed": float(trial.seed)})


def test_who_goes_on_with_an_algorithm_gets_other_evaluations() -> None:
    es = algorithm()
    first = evaluate(es, seed_of_trial, generations=2)
    second = evaluate(es, seed_of_trial, generations=4)
    assert len({row["seed"] for row in first.table + second.table}) == 4


def step_aside(member: Any) -> float:
    """A state that counts how often each went on."""
    member.state = [(member.number, (member.state[0][1] if member.state else 0) + 1)]
    return float(member.number)


def test_the_log_of_another_run_is_refused(tmp_path: Path) -> None:
    evaluate(algorithm(), fitnesses.noisy_sphere, generations=1, log=tmp_path / "log")
    with pytest.raises(ValueError, match=r"the log to replay is of .*'population': 16.* and this run is of .*: 18"):
        evaluate(algorithm(population=18), fitnesses.noisy_sphere, replay=tmp_path / "log")


def test_members_that_train_for_ever_need_an_end() -> None:
    with pytest.raises(ValueError, match="nothing ends this run: PBT goes on for ever"):
        evaluate(PBT({"rate": Uniform(0.0, 1.0)}, population=4), step_aside)


class Uncounted(Listed):
    """Forgets to count generations."""

    def ask(self, n: int) -> range:
        return range(n)

    def tell(self, candidates: Any, outcomes: Any) -> None:
        pass


def test_an_algorithm_that_counts_no_generations_is_told_so() -> None:
    with pytest.raises(RuntimeError, match="its `generation` is still 0; increment it in `tell`"):
        evaluate(Uncounted(), float, generations=3)


class Boastful(Listed):
    """Has a figure that rows have already."""

    def figures(self) -> dict[str, float]:
        return {"mean": 1e9}


def test_figures_cannot_take_the_names_of_columns() -> None:
    with pytest.raises(ValueError, match="Boastful has figures called mean"):
        evaluate(Boastful(), float)
