"""The sum of weighted noise has the same bits wherever its blocks are summed."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ropewalk as rw
from ropewalk.population import weighted_sum as module
from ropewalk.population.algorithm import Map
from ropewalk.population.noise_table import NoiseTable
from ropewalk.population.weighted_sum import Draws, weighted_sum, weighted_sums

DIM = 1000
DRAWS = Draws(NoiseTable(2**14, 5), seed=3, dim=DIM)


def of(number: int, seed: int = 0) -> tuple[Any, Any]:
    """Numbers of draws, with gaps, and their weights."""
    rng = np.random.default_rng(seed)
    return np.sort(rng.choice(10 * number, number, replace=False)), rng.standard_normal(number).astype(np.float32)


def test_it_is_the_sum_of_weight_times_draw() -> None:
    numbers, weights = of(700)
    exact = sum(
        float(weight) * DRAWS[number].astype(np.float64) for number, weight in zip(numbers, weights, strict=True)
    )
    total = weighted_sum(DRAWS, numbers, weights)
    assert total.dtype == np.float32
    np.testing.assert_allclose(total, exact, atol=1e-3)


def test_with_squares_there_is_a_second_row() -> None:
    numbers, weights = of(300)
    [(first, second)] = weighted_sums(DRAWS, [(numbers, weights)], squares=True)
    assert np.array_equal(first, weighted_sum(DRAWS, numbers, weights))
    noise = np.stack([DRAWS[number] for number in numbers]).astype(np.float64)
    np.testing.assert_allclose(second, weights.astype(np.float64) @ noise**2, atol=1e-3)


def test_it_is_float32_in_blocks_that_are_added_in_order() -> None:
    numbers, weights = of(600)
    total = np.zeros(DIM, np.float32)
    for first in (0, 256, 512):
        block = np.zeros(DIM, np.float32)
        for number, weight in zip(numbers[first : first + 256], weights[first : first + 256], strict=True):
            block = block + weight * DRAWS[number]
        total = total + block
    assert np.array_equal(weighted_sum(DRAWS, numbers, weights), total)


def test_cutting_between_parameters_changes_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers, weights = of(300)
    whole = weighted_sum(DRAWS, numbers, weights)
    monkeypatch.setattr(module, "_PART", 130)
    assert np.array_equal(weighted_sum(DRAWS, numbers, weights), whole)
    monkeypatch.setattr(module, "_CHUNK", 17)
    assert np.array_equal(weighted_sum(DRAWS, numbers, weights), whole)


def test_several_sums_in_one_map_are_what_each_is_alone() -> None:
    groups = [of(300, 1), of(0), of(5, 2), of(512, 3)]
    maps: list[int] = []

    def count(function: Any, tasks: Any) -> list[Any]:
        maps.append(len(tasks))
        return [function(task) for task in tasks]

    together = weighted_sums(DRAWS, groups, count)
    assert maps == [2 + 0 + 1 + 2]
    assert not together[1].any()
    for (total,), (numbers, weights) in zip(together, groups, strict=True):
        assert np.array_equal(total, weighted_sum(DRAWS, numbers, weights))


def test_the_order_in_which_blocks_are_summed_changes_no_bit() -> None:
    numbers, weights = of(1000)

    def backwards(function: Any, tasks: Any) -> list[Any]:
        return [function(task) for task in reversed(tasks)][::-1]

    assert np.array_equal(weighted_sum(DRAWS, numbers, weights, backwards), weighted_sum(DRAWS, numbers, weights))


@pytest.fixture
def pool() -> Iterator[rw.Pool]:
    with rw.Pool(1) as pool:
        yield pool


def test_any_number_of_workers_gives_the_bits_of_this_process(pool: rw.Pool) -> None:
    numbers, weights = of(1000)
    here = weighted_sum(DRAWS, numbers, weights)

    def on_pool(function: Any, tasks: Any) -> list[Any]:
        return pool.map(function, tasks, chunksize=1)

    maps: list[Map] = [pool.map, on_pool]
    for workers in (1, 2, 3):
        pool.resize(workers)
        for map in maps:
            assert np.array_equal(weighted_sum(DRAWS, numbers, weights, map), here)


def dying_once(folder: Path, function: Any, task: Any) -> Any:
    """The first worker that comes here is killed."""
    with contextlib.suppress(FileExistsError):
        (folder / "died").touch(exist_ok=False)
        os.kill(os.getpid(), signal.SIGKILL)
    return function(task)


def test_a_worker_that_dies_while_it_sums_changes_no_bit(pool: rw.Pool, tmp_path: Path) -> None:
    numbers, weights = of(1000)

    def on_pool(function: Any, tasks: Any) -> list[Any]:
        return pool.map(partial(dying_once, tmp_path, function), tasks, chunksize=1)

    assert np.array_equal(weighted_sum(DRAWS, numbers, weights, on_pool), weighted_sum(DRAWS, numbers, weights))
    assert pool.status().num_deaths == 1


def test_a_draw_is_the_same_slice_of_a_table_of_the_same_seed() -> None:
    again = Draws(NoiseTable(2**14, 5), seed=3, dim=DIM)
    assert np.array_equal(again[77], DRAWS[77]) and not np.array_equal(DRAWS[78], DRAWS[77])
    assert not np.array_equal(Draws(NoiseTable(2**14, 5), seed=4, dim=DIM)[77], DRAWS[77])
