"""Population based training on a pool: states stay with the workers, and workers die."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ropewalk as rw
from ropewalk.population.algorithms.pbt import PBT
from ropewalk.population.algorithms.pbt_member import PBTMember
from ropewalk.population.algorithms.pbt_replay import PBTReplay
from ropewalk.population.evaluating import evaluate
from ropewalk.population.run_result import RunResult
from ropewalk.population.trial import Trial
from tests import conftest
from tests.left_behind import Snapshot
from tests.population.algorithms.surrogate import SPACE, train_with_noise

MEGABYTE = 1 << 20


@pytest.fixture(scope="module", autouse=True)
def _nothing_is_left() -> Iterator[None]:  # pyright: ignore[reportUnusedFunction]
    """In place of the one for every test, which would end the session of the pool that all share."""
    before = Snapshot.take()
    yield
    conftest._end_sessions()  # pyright: ignore[reportPrivateUsage]
    left = before.what_stays()
    assert not left, left.describe()


@pytest.fixture(scope="module")
def pool(_nothing_is_left: None) -> Iterator[rw.Pool]:
    with rw.Pool(2, name="pbt", preload=[__name__]) as pool:
        yield pool


def received_bytes(pool: rw.Pool) -> int:
    workers = pool._dispatcher.present()  # pyright: ignore[reportPrivateUsage]
    return sum(worker.link.received_bytes for worker in workers if worker.link)


def train_large(member: PBTMember, trial: Trial) -> float:
    """The toy problem, with a megabyte beside its two numbers that has to come along."""
    if member.state is not None:
        member.state, ballast = member.state
        assert ballast.nbytes == MEGABYTE and (ballast == member.steps).all()
    score = train_with_noise(member, trial)
    member.state = member.state, np.full(MEGABYTE // 8, float(member.steps + member.interval))
    return score


class TrainAndDieTwice:
    """In two intervals the worker dies, the first time that they are tried."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, member: PBTMember, trial: Trial) -> float:
        score = train_with_noise(member, trial)
        mark = self.folder / f"{member.number}-{member.steps}"
        if mark.name in ("1-4", "3-0") and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return score


def best_state(run: RunResult) -> Any:
    assert run.best is not None
    return run.best.state


@pytest.mark.parametrize("with_folder", [False, True])
def test_states_of_more_members_than_workers_do_not_pass_through_the_launcher(
    pool: rw.Pool, tmp_path: Path, with_folder: bool
) -> None:
    algorithm = PBT(SPACE, population=7, interval=3, steps=9, folder=tmp_path if with_folder else None)
    before = received_bytes(pool)
    run = evaluate(algorithm, train_large, pool, mode="steady", progress=False)
    assert 7 + 2 < run.evaluations <= 2 * 7 * 3  # who copies one that is further on skips intervals
    assert algorithm.mutations and algorithm.finished
    assert 0 < received_bytes(pool) - before < 2000 * run.evaluations
    x, ballast = best_state(run)
    assert ballast[0] == 9 and x.shape == (2,)


def test_the_log_of_an_asynchronous_run_repeats_it(pool: rw.Pool) -> None:
    def make() -> PBT:
        return PBT(SPACE, population=5, interval=2, steps=16, seed=4)

    run = evaluate(make(), train_with_noise, pool, mode="steady", progress=False)
    again = evaluate(make(), train_with_noise, mode="steady", replay=run.decisions, progress=False)
    assert again.algorithm.mutations == run.algorithm.mutations != []
    assert again.algorithm.schedule() == run.algorithm.schedule()
    assert np.array_equal(best_state(again), best_state(run))
    replayed = evaluate(PBTReplay(run.algorithm.schedule()), train_with_noise, pool, mode="steady", progress=False)
    assert np.array_equal(best_state(replayed), best_state(run))


def test_rounds_are_the_same_with_workers_that_die_as_in_one_process(pool: rw.Pool, tmp_path: Path) -> None:
    def make() -> PBT:
        return PBT(SPACE, population=5, interval=2, synchronous=True)

    run = evaluate(make(), TrainAndDieTwice(tmp_path), pool, generations=5, progress=False)
    assert len(list(tmp_path.iterdir())) == 2
    alone = evaluate(make(), train_with_noise, generations=5, progress=False)
    assert run.algorithm.mutations == alone.algorithm.mutations != []
    assert np.array_equal(best_state(run), best_state(alone))
    assert [row["best"] for row in run.table] == [row["best"] for row in alone.table]
