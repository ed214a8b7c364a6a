from __future__ import annotations

from ropewalk.control.view import ProcessView
from ropewalk.page.stream_panel import after, running_tasks, zoomed


def test_tasks_after_the_last_one_that_was_drawn_are_new():
    tasks = [["w", "f", 0.0, 1.0, 1, "ok"] for _ in range(4)]  # equal, and yet different tasks
    assert len(after(tasks, tasks[1])) == 2
    assert len(after(tasks, tasks[3])) == 0
    assert len(after(tasks, ["w", "f", 0.0, 1.0, 1, "ok"])) == 4
    assert len(after(tasks, None)) == 4


def test_what_processes_do_now_began_when_they_say():
    processes = [ProcessView(name="a", doing="f", doing_s=2.5), ProcessView(name="b")]
    assert running_tasks(processes, 10.0) == [["a", "f", 7.5]]


def test_a_zoom_in_percent_is_a_part_of_the_window():
    assert zoomed({"start": 25, "end": 50}, 100.0, 140.0) == (110.0, 120.0)
    assert zoomed({"batch": [{"start": 0, "end": 10}]}, 0.0, 10.0) == (0.0, 1.0)
    assert zoomed({}, 0.0, 10.0) == (0.0, 10.0)
