from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from ropewalk.page.task_bars import Bar, Task, bars, fitting_bars, main_functions, within


def task(begin: float, end: float, worker: str = "w", function: str = "f", number: int = 1, ended: str = "ok") -> Task:
    return [worker, function, begin, end, number, ended]


@st.composite
def streams(draw: st.DrawFn) -> list[Task]:
    """Tasks of some workers, one after the other, in any order."""
    found: list[Task] = []
    for worker in range(draw(st.integers(1, 3))):
        at = 0
        for gap, length in draw(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 300)), max_size=40)):
            begin, end = (at + gap) / 100, (at + gap + length) / 100
            at += gap + length
            ended = draw(st.sampled_from(("ok", "failed", "died")))
            found.append([f"w{worker}", draw(st.sampled_from("fg")), begin, end, draw(st.integers(1, 3)), ended])
    return draw(st.permutations(found))


@given(streams(), st.floats(0.05, 3.0))
def test_every_task_is_in_one_bar(tasks: list[Task], narrow_s: float):
    found = bars(tasks, narrow_s)
    assert sum(bar.tasks for bar in found) == sum(task[4] for task in tasks)
    assert sum(bar.failed for bar in found) == sum(task[4] for task in tasks if task[5] == "failed")
    assert sum(bar.died for bar in found) == sum(task[4] for task in tasks if task[5] == "died")
    for task in tasks:
        assert any(bar.worker == task[0] and bar.begin <= task[2] and task[3] <= bar.end for bar in found)


@given(streams(), st.floats(0.05, 3.0))
def test_a_gap_that_can_be_seen_stays_a_gap(tasks: list[Task], narrow_s: float):
    for bar in bars(tasks, narrow_s):
        assert bar.end - bar.begin <= narrow_s + 1e-9 or bar.tasks in (1, 2, 3)  # a task of its own, however long
        inside = sorted((t[2], t[3]) for t in tasks if t[0] == bar.worker and bar.begin <= t[2] and t[3] <= bar.end)
        gaps = [later[0] - earlier[1] for earlier, later in itertools.pairwise(inside)]
        assert all(gap <= narrow_s for gap in gaps)


@given(streams(), st.floats(0.05, 3.0))
def test_the_number_of_bars_is_bounded_by_pixels(tasks: list[Task], narrow_s: float):
    found = bars(tasks, narrow_s)
    for worker in {bar.worker for bar in found}:
        mine = [bar for bar in found if bar.worker == worker]
        span = max(bar.end for bar in mine) - min(bar.begin for bar in mine)
        assert len(mine) <= 2 * span / narrow_s + 1 + 1e-6


def test_short_neighbours_are_joined_and_named_after_the_longest():
    found = bars([task(0.0, 0.1), task(0.1, 0.4, function="g", ended="failed"), task(0.4, 0.5), task(2.0, 2.1)], 0.5)
    assert found == [Bar("w", "g", 0.0, 0.5, 3, 0.5, 1, 0), Bar("w", "f", 2.0, 2.1, 1, 2.1 - 2.0, 0, 0)]


def test_twenty_thousand_tasks_become_as_many_bars_as_fit():
    tasks = [task(i / 100, i / 100 + 0.01, worker=f"w{i % 50}") for i in range(20_000)]
    found, narrow_s = fitting_bars(tasks, 0.027, most=6000)
    assert 0 < len(found) <= 6000
    assert narrow_s > 0.027
    assert sum(bar.tasks for bar in found) == 20_000


def test_more_workers_than_bars_have_one_bar_each():
    tasks = [task(i, i + 1, worker=f"w{w}") for w in range(20) for i in range(10)]
    assert len(fitting_bars(tasks, 1.0, most=10)[0]) == 20


def test_tasks_of_which_a_part_is_in_the_window_are_in_it():
    tasks = [task(0, 1), task(0, 3), task(3, 4), task(5, 9), task(8, 9)]
    assert within(tasks, 2, 6) == tasks[1:4]


def test_the_functions_with_the_most_time_are_found_in_the_order_in_which_they_were_seen():
    tasks = [task(0, 1, function="a"), task(1, 1.1, function="b"), task(2, 7, function="c"), task(7, 8, function="a")]
    assert main_functions(tasks, 2) == ["a", "c"]
