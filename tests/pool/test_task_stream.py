"""The rows of a task stream: no worker runs two things at once, and every row is given out once."""

from __future__ import annotations

from ropewalk.pool import task_stream
from ropewalk.pool.constants import Constant
from ropewalk.pool.task_content import Content
from ropewalk.pool.task_stream import KEPT_S, TaskStream, parts_of_stream
from ropewalk.pool.task_table import Finished, ItemSpan, TaskUnit


def test_a_batch_begins_when_its_worker_began_it() -> None:
    stream = TaskStream()
    stream.finished("pool-1.0", [("square", 3, False)], 0.5, 100.0)
    assert stream.since(0, 101.0) == {
        "cursor": 1, "now": 101.0, "tasks": [["pool-1.0", "square", 99.5, 100.0, 3, "ok"]],
    }  # fmt: skip


def test_the_time_of_a_batch_is_divided_among_its_functions() -> None:
    stream = TaskStream()
    stream.finished("pool-1.0", [("square", 3, False), ("cube", 1, True)], 4.0, 100.0)
    rows = stream.since(0, 100.0)["tasks"]
    assert [row[1:] for row in rows] == [["square", 96.0, 99.0, 3, "ok"], ["cube", 99.0, 100.0, 1, "failed"]]


def test_rows_of_a_worker_never_overlap_and_those_of_others_may() -> None:
    stream = TaskStream()
    stream.finished("pool-1.0", [("square", 1, False)], 1.0, 100.0)
    stream.finished("pool-1.0", [("square", 1, False)], 5.0, 101.0)
    stream.finished("pool-1.1", [("square", 1, False)], 5.0, 101.0)
    assert [row[2] for row in stream.since(0, 101.0)["tasks"]] == [99.0, 100.0, 96.0]


def test_a_batch_of_unknown_duration_began_after_the_last_one() -> None:
    stream = TaskStream()
    stream.finished("pool-1.0", [("square", 1, False)], 0.0, 99.0)
    stream.finished("pool-1.0", [("square", 1, False)], 0.0, 100.0)
    assert [row[2:4] for row in stream.since(0, 100.0)["tasks"]] == [[99.0, 99.0], [99.0, 100.0]]


def test_a_task_that_died_with_its_worker_has_a_row() -> None:
    stream = TaskStream()
    stream.died("pool-1.0", "square", 2.0, 100.0)
    assert stream.since(0, 100.0)["tasks"] == [["pool-1.0", "square", 98.0, 100.0, 1, "died"]]


def test_a_cursor_gets_each_row_once_and_an_old_one_what_is_left() -> None:
    stream = TaskStream()
    for number in range(task_stream._MOST_ROWS + 5):
        stream.finished("pool-1.0", [("square", 1, False)], 0.0, float(number))
    first = stream.since(0, 0.0)
    assert (first["cursor"], len(first["tasks"])) == (task_stream._MOST_ROWS + 5, task_stream._MOST_ROWS)
    assert stream.since(first["cursor"], 0.0)["tasks"] == []
    stream.finished("pool-1.0", [("cube", 1, False)], 0.0, 1e6)
    assert [row[1] for row in stream.since(first["cursor"], 0.0)["tasks"]] == ["cube"]


def test_each_look_extends_the_recording() -> None:
    stream = TaskStream()
    stream.since(0, 100.0)
    assert stream.until == 100.0 + KEPT_S


def finished(function: str, code: str, start: int, stop: int, offset: int) -> Finished:
    constant = Constant(code, [])
    constant.label = function
    return Finished(ItemSpan(TaskUnit(None, 0, 100, code, content=Content(0, 0, [constant], [])), start, stop), offset)


def test_neighbours_of_one_function_are_one_part_which_failed_if_one_task_did() -> None:
    batch = [
        finished("square", "a", 0, 3, 0),
        finished("square", "a", 7, 9, 3),
        finished("cube", "b", 0, 1, 5),
        finished("square", "a", 9, 10, 6),
    ]
    assert parts_of_stream(batch, []) == [("square", 5, False), ("cube", 1, False), ("square", 1, False)]
    assert parts_of_stream(batch, [3, 6]) == [("square", 5, True), ("cube", 1, False), ("square", 1, True)]
    assert parts_of_stream(batch[2:3], [4]) == [("cube", 1, False)]
