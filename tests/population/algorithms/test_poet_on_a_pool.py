"""POET over real workers: the pool follows the number of niches, and the result is that of one process."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

import ropewalk as rw
from ropewalk.population import EvalConfig, GenerationMode, RunResult, StragglerPolicy, WorkerAutoscaler, evaluate
from ropewalk.population.algorithms.poet import POET
from ropewalk.population.noise_table import NoiseTable
from ropewalk.population.open_ended.niche import ESConfig
from ropewalk.population.open_ended.reproduction import Reproduction
from ropewalk.population.trial import Trial
from tests.patience import wait_until
from tests.population.local_loop import same_state
from tests.population.open_ended.islands import Islands, fitness

GENERATIONS = 10


def busy() -> POET:
    learning = ESConfig(pairs=3, sigma=0.3, learning_rate=0.1, weight_decay=0)
    reproduction = Reproduction(every=2, children=4, capacity=3)
    return POET(2, Islands(), learning=learning, reproduction=reproduction, transfer_every=3, noise=NoiseTable(2**14))


def noisy(parameters: Any, island: list[float], trial: Trial) -> float:
    return (
        fitness(parameters, island) + 0.0 if trial.is_test else float(trial.rng.normal()) + fitness(parameters, island)
    )


class Noting(WorkerAutoscaler):
    """Remembers the sizes of the asks."""

    def __init__(self) -> None:
        super().__init__(1, 3, evaluations_per_worker=16, patience=2)
        self.asks: list[tuple[int, int]] = []

    def workers_for(self, num_candidates: int) -> int:
        self.asks.append((num_candidates, super().workers_for(num_candidates)))
        return self.asks[-1][1]


@pytest.fixture
def pool() -> Iterator[rw.Pool]:
    with rw.Pool(1, name="niches", preload=[__name__]) as pool:
        yield pool


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as threads:
        yield threads


@pytest.fixture(scope="module")
def alone() -> RunResult:
    return evaluate(busy(), noisy, generations=GENERATIONS, test=EvalConfig(2, every=5))


def test_the_pool_follows_the_niches_and_gives_idle_workers_back(pool: rw.Pool, alone: RunResult) -> None:
    follow, pids = Noting(), set[int]()

    def report(generation: int, **row: float) -> None:
        assert row["workers"] == pool.num_workers == follow.asks[-1][1]
        pids.update(worker.pid for worker in pool.status().workers if worker.pid)

    run = evaluate(
        busy(), noisy, pool, generations=GENERATIONS, test=EvalConfig(2, every=5), workers=follow, report=report
    )
    sizes = [size for size, _ in follow.asks]
    assert max(sizes) == 9 + 6 * 6 and min(sizes) <= 6 and sizes[0] == 7  # transfers of 3 niches, proposals, 1 niche
    assert {workers for _, workers in follow.asks} == {1, 2, 3}
    wanted = follow.asks[-1][1]
    wait_until(lambda: len(pool.status().workers) == wanted, "the workers that are not needed stay")
    now = {worker.pid for worker in pool.status().workers}
    wait_until(lambda: not any(psutil.pid_exists(pid) for pid in pids - now), "their processes stay")
    assert len(pids | now) >= 3  # all that were asked for were there once; whether one left and came back is a race
    assert same_state(run.algorithm.state_dict(), alone.algorithm.state_dict())
    assert run.best.score == alone.best.score and run.best_fitness == alone.best_fitness


def test_a_run_of_niches_goes_on_from_its_checkpoint(
    threads: ThreadPoolExecutor, alone: RunResult, tmp_path: Path
) -> None:
    for generations in (4, 7, GENERATIONS):
        where = threads if generations == 7 else None
        run = evaluate(busy(), noisy, where, generations=generations, test=EvalConfig(2, every=5), checkpoint=tmp_path)
    assert same_state(run.algorithm.state_dict(), alone.algorithm.state_dict())
    assert run.algorithm.lineage == alone.algorithm.lineage


def test_steady_state_goes_from_round_to_round(threads: ThreadPoolExecutor) -> None:
    run = evaluate(busy(), noisy, threads, generations=4, mode="steady")
    assert run.algorithm.generation == 4 and len(run.algorithm.pairs) > 1
    again = evaluate(busy(), noisy, replay=run.decisions)
    assert same_state(again.algorithm.state_dict(), run.algorithm.state_dict())


def sometimes_fails(parameters: Any, island: list[float], trial: Trial) -> float:
    if trial.seed % 5 == 0:
        raise ArithmeticError("no fitness")
    return noisy(parameters, island, trial)


def test_evaluations_that_fail_are_done_without(threads: ThreadPoolExecutor) -> None:
    drop = StragglerPolicy.drop(after=0.9, grace=5.0)
    run = evaluate(busy(), sometimes_fails, threads, generations=6, failures="drop", mode=GenerationMode(drop))
    assert run.algorithm.generation == 6 and sum(row["failed"] for row in run.table) > 10
