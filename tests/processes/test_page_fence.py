"""The fence of a task page takes tasks back once, and what it took stays taken."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from ropewalk.processes.page import CURRENT, FENCE_FROM, FENCE_TO, IDLE, TaskPage, create_page
from ropewalk.transport.barriers import can_fence


@pytest.fixture
def page() -> Iterator[TaskPage]:
    if not can_fence():
        pytest.skip("needs membarrier(2)")
    fd = create_page()
    page = TaskPage(fd)
    os.close(fd)
    yield page
    page.close()


def fenced(page: TaskPage, until: int) -> list[int]:
    return [seq for seq in range(until) if page.words[FENCE_FROM] <= seq < page.words[FENCE_TO]]


def test_an_idle_worker_has_nothing_to_take(page: TaskPage) -> None:
    assert page.fence(10) == 10
    page.words[CURRENT] = 9
    assert page.fence(10) == 10
    assert fenced(page, 20) == []


def test_half_or_all_of_what_has_not_started_is_taken(page: TaskPage) -> None:
    page.words[CURRENT] = 3
    assert page.fence(14) == 9  # 4 to 13 wait
    assert fenced(page, 20) == list(range(9, 14))
    page.words[CURRENT] = 20
    assert page.fence(30, everything=True) == 21
    assert fenced(page, 40) == list(range(21, 30))


def test_recalling_again_behind_a_slow_task_takes_the_rest_bit_by_bit(page: TaskPage) -> None:
    # It once took the same half again and again, and the other half waited for the slow task.
    page.words[CURRENT] = 0
    taken = [page.fence(26) for _ in range(6)]
    assert taken == [13, 7, 4, 2, 1, 1]
    assert fenced(page, 30) == list(range(1, 26))


def test_what_was_taken_stays_taken_when_more_is_recalled(page: TaskPage) -> None:
    page.words[CURRENT] = 0
    assert page.fence(26) == 13
    assert page.fence(30) <= 13  # 26 to 29 were sent since; 13 to 25 belong to others now
    assert set(fenced(page, 40)) >= set(range(13, 30))


@pytest.mark.parametrize("everything", [False, True])
def test_a_fence_that_was_passed_is_no_hindrance(page: TaskPage, everything: bool) -> None:
    page.words[CURRENT] = 0
    page.fence(10)
    page.words[CURRENT] = 12
    first = page.fence(20, everything=everything)
    assert fenced(page, 30) == list(range(first, 20)) and first == (13 if everything else 16)
    page.words[CURRENT] = IDLE
    assert page.fence(30) == 30
