"""Pools that grow and shrink with their work, with real workers of this machine."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import ropewalk
from tests.patience import wait_until
from tests.pool.test_dispatcher import wait_for_file

pytestmark = pytest.mark.usefixtures("shared_session")


def num_workers(pool: ropewalk.Pool) -> int:
    return sum(worker.state != "stopping" for worker in pool.status().workers)


def test_a_pool_grows_while_work_waits_and_shrinks_when_it_is_done(tmp_path: Path) -> None:
    gate = str(tmp_path / "gate")
    with ropewalk.Pool(min_processes=1, max_processes=4, idle_s=0.3) as pool:
        pool.wait_until_ready()
        assert num_workers(pool) == 1
        results = pool.map_async(wait_for_file, [gate] * 6, chunksize=1)
        wait_until(lambda: pool.status().running == 4, "four workers are in tasks")
        assert num_workers(pool) == 4
        Path(gate).touch()
        assert results.get(timeout=120) == [gate] * 6
        wait_until(lambda: len(pool.status().workers) == 1, "the pool is small again")
        status = pool.status()
        assert status.num_deaths == 0
        assert status.events[0] == f"{pool.name} grows from 1 to 4 workers"
        assert status.events[-1].endswith("to 1 workers")
        assert pool.map(abs, [-1, 2]) == [1, 2]


@pytest.mark.timing  # on a host where a hundred short tasks take long, a pool does grow
def test_short_work_does_not_make_a_pool_grow() -> None:
    with ropewalk.Pool(1, max_processes=4) as pool:
        pool.wait_until_ready()
        for _ in range(10):
            pool.map(abs, range(100))
        time.sleep(0.3)
        assert len(pool.status().workers) == 1


def test_a_pool_may_have_no_workers_at_all_until_there_is_work() -> None:
    with ropewalk.Pool(min_processes=0, max_processes=2, idle_s=0.1) as pool:
        assert pool.status().workers == ()
        assert pool.map(abs, range(-5, 0)) == [5, 4, 3, 2, 1]
        wait_until(lambda: not pool.status().workers, "all have gone")
        assert pool.apply(abs, (-3,)) == 3


def test_work_that_a_pool_without_workers_has_when_it_is_closed_is_done() -> None:
    pool = ropewalk.Pool(min_processes=0, max_processes=2)
    results = pool.map_async(abs, range(-5, 0))
    pool.close()
    pool.join()
    assert results.get(timeout=0) == [5, 4, 3, 2, 1]


def test_a_pool_begins_with_the_number_that_was_asked_for_and_shrinks_from_there() -> None:
    with ropewalk.Pool(3, min_processes=1, idle_s=0.2) as pool:
        pool.wait_until_ready()
        wait_until(lambda: len(pool.status().workers) == 1, "it has shrunk without having had work")
        pool.resize(3)
        assert num_workers(pool) == 3
        wait_until(lambda: len(pool.status().workers) == 1, "it has shrunk again")
        pool.scale_to(2)
        assert num_workers(pool) == 2


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ropewalk.Pool(5, max_processes=4), "min_processes=5, processes=5, max_processes=4"),
        (lambda: ropewalk.Pool(1, min_processes=2), "min_processes=2, processes=1, max_processes=1"),
        (lambda: ropewalk.Pool(min_processes=-1), "min_processes=-1, processes=None, max_processes=None"),
        (lambda: ropewalk.Pool(min_processes=0, max_processes=0), "max_processes=0"),
        (lambda: ropewalk.Pool(max_processes=2, idle_s=-1), "idle_s must be a number of seconds, 0 or more, not -1"),
    ],
)
def test_bounds_that_no_pool_can_have_are_refused(make: Callable[[], object], words: str) -> None:
    with pytest.raises(ValueError, match=r"must be|a pool needs") as caught:
        make()
    assert words in str(caught.value)


def test_a_size_outside_of_the_bounds_is_refused() -> None:
    with ropewalk.Pool(min_processes=1, max_processes=2) as pool:
        with pytest.raises(ValueError, match=r"this pool has 1 to 2 workers .* cannot have 3"):
            pool.resize(3)
        assert os.getpid() != pool.apply(os.getpid)
