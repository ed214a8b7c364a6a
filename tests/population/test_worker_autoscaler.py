"""A pool follows the size of the asks: it grows at once, and shrinks when several asks in a row needed less."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk.population.worker_autoscaler import WorkerAutoscaler


def test_there_is_a_worker_for_so_many_candidates_within_bounds() -> None:
    assert [WorkerAutoscaler(2, 10, evaluations_per_worker=8).workers_for(num) for num in (0, 8, 17, 80, 81, 1000)] == [
        2, 2, 3, 10, 10, 10]  # fmt: skip


def test_a_small_round_between_large_ones_costs_no_workers() -> None:
    follow = WorkerAutoscaler(1, 100, evaluations_per_worker=1, patience=3)
    assert [follow.workers_for(num) for num in (40, 5, 5, 40, 5, 5, 5, 60)] == [40, 40, 40, 40, 40, 40, 5, 60]


def test_by_default_a_worker_has_four_evaluations_and_the_third_smaller_ask_shrinks_the_pool() -> None:
    follow = WorkerAutoscaler(1, 100)
    assert [follow.workers_for(num) for num in (400, 200, 200, 200)] == [100, 100, 100, 50]
    assert WorkerAutoscaler(4, 4).workers_for(1) == 4


@given(st.lists(st.integers(0, 100), max_size=30), st.integers(1, 5))
@settings(deadline=None, max_examples=50)
def test_there_are_always_enough_and_never_more_than_lately_needed(asks: list[int], patience: int) -> None:
    follow = WorkerAutoscaler(1, 20, evaluations_per_worker=4, patience=patience)
    for i, num in enumerate(asks):
        workers = follow.workers_for(num)
        assert (
            min(20, -(-num // 4))
            <= workers
            <= max(1, *(-(-each // 4) for each in asks[max(0, i + 1 - patience) : i + 1]))
        )


@pytest.mark.parametrize(
    ("bounds", "arguments", "message"),
    [
        ((0, 4), {}, "not 0 to 4"),
        ((5, 4), {}, "not 5 to 4"),
        ((1, 4), {"evaluations_per_worker": 0}, "evaluations_per_worker must be above 0, not 0"),
        ((1, 4), {"patience": 0}, "patience must be a whole number, 1 or more, not 0"),
    ],
)
def test_bounds_that_make_no_sense_are_refused(bounds: tuple[int, int], arguments: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        WorkerAutoscaler(*bounds, **arguments)


def test_it_is_shown_with_its_settings() -> None:
    shown = repr(WorkerAutoscaler(1, 4, evaluations_per_worker=2, patience=5))
    assert shown == "WorkerAutoscaler(1, 4, evaluations_per_worker=2, patience=5)"
