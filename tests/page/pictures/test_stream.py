from __future__ import annotations

from typing import Any

from ropewalk.page.pictures.stream import DIED, FAILED, OTHERS, RUNNING, StreamWindow, natural, stream
from ropewalk.page.style import Style


def series(option: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    return {one["name"]: one["data"] for one in option["series"]}


def rows(option: dict[str, Any]) -> list[str]:
    return option["yAxis"]["data"]


TASKS = [
    ["w.10", "f", 95.0, 96.0, 1, "ok"],
    ["w.2", "g", 90.0, 99.0, 1, "failed"],
    ["w.2", "f", 99.5, 100.0, 1, "died"],
    ["w.2", "f", 10.0, 20.0, 1, "ok"],  # long before the window
]


def test_a_long_name_of_a_worker_keeps_its_end():
    names = [f"a pool with a long name.{number}" for number in range(2)]
    option = stream({"now": 9.0, "tasks": [[name, "f", 1.0, 2.0, 1, "ok"] for name in names]}, Style())
    assert option["yAxis"]["data"] == ["…ith a long name.0", "…ith a long name.1"]


def test_a_bar_is_in_the_row_of_its_worker_from_its_begin_to_its_end():
    option = stream({"now": 100.0, "tasks": TASKS}, Style())
    assert rows(option) == ["w.2", "w.10"]
    found = series(option)
    assert [item["coords"] for item in found["f"]] == [[[95e3, 1], [96e3, 1]], [[99.5e3, 0], [100e3, 0]]]
    assert [item["coords"] for item in found["g"]] == [[[90e3, 0], [99e3, 0]]]
    assert (option["xAxis"]["min"], option["xAxis"]["max"]) == (70e3, 100e3)


def test_tasks_that_failed_and_those_whose_worker_died_are_marked():
    found = series(stream({"now": 100.0, "tasks": TASKS}, Style()))
    assert [item["value"] for item in found[FAILED]] == [[99e3, 0]]
    assert [item["value"] for item in found[DIED]] == [[100e3, 0]]
    assert found[FAILED][0]["name"] == "g, w.2: 9 s; failed"


def test_each_function_has_a_colour_and_rare_ones_share_one():
    tasks = [["w", f"f{i}", 70.0 + i, 71.0 + i - 0.1 * (i == 7), 1, "ok"] for i in range(8)]
    option = stream({"now": 100.0, "tasks": tasks}, Style())
    colors = [one["lineStyle"]["color"] for one in option["series"] if one["type"] == "lines" and one["data"]]
    assert len(set(colors)) == len(colors) == 7
    assert Style().bad not in colors
    assert len(series(option)[OTHERS]) == 2
    assert OTHERS in option["legend"]["data"]
    assert OTHERS not in stream({"now": 100.0, "tasks": tasks[:6]}, Style())["legend"]["data"]


def test_what_runs_now_reaches_to_the_edge():
    found = series(stream({"now": 100.0, "tasks": [], "running": [["w", "f", 60.0], ["v", "g", 98.0]]}, Style()))
    assert [item["coords"] for item in found[RUNNING]] == [[[70e3, 1], [100e3, 1]], [[98e3, 0], [100e3, 0]]]
    assert found[RUNNING][0]["name"] == "f on w, running for 40 s"


def test_new_tasks_become_items_of_the_same_rows_and_series():
    shown = StreamWindow(70.0, 100.0)
    shown.option({"tasks": TASKS}, Style())
    items = shown.items(
        [["w.10", "f", 100.0, 101.0, 1, "ok"], ["w.2", "new", 100.0, 101.0, 1, "ok"], ["x", "f", 1, 2, 1, "ok"]]
    )
    assert [item["coords"] for item in items["f"]] == [[[100e3, 1], [101e3, 1]]]
    assert [item["name"] for item in items[OTHERS]] == ["new, w.2: 1 s"]


def test_colours_stay_when_the_picture_is_made_anew():
    shown = StreamWindow(70.0, 100.0)
    shown.option({"tasks": [["w", "f", 80.0, 81.0, 1, "ok"], ["w", "g", 82.0, 83.0, 1, "ok"]]}, Style())
    shown.option({"tasks": [["w", "g", 80.0, 81.0, 1, "ok"], ["w", "f", 82.0, 83.0, 1, "ok"]]}, Style())
    assert shown.functions == ["f", "g"]


def test_a_part_of_the_window_has_a_finer_resolution():
    tasks = [["w", "f", 70 + i / 1000, 70 + (i + 0.5) / 1000, 1, "ok"] for i in range(2000)]
    shown = StreamWindow(70.0, 100.0)
    whole = series(shown.option({"tasks": tasks}, Style()))["f"]
    part = shown.items_of(tasks, 70.0, 70.1)["f"]
    assert len([item for item in whole if item["coords"][0][0] < 70_100]) < 10
    assert len(part) == 101
    assert "tasks in" in whole[0]["name"]


def test_a_task_narrower_than_a_pixel_is_still_seen():
    (item,) = series(stream({"now": 100.0, "tasks": [["w", "f", 99.0, 99.0, 1, "ok"]]}, Style()))["f"]
    assert item["coords"][1][0] - item["coords"][0][0] > 10


def test_names_of_functions_and_workers_are_text():
    option = stream({"now": 100.0, "tasks": [["w\x1b[2J", "<b>\x1b[31m", 99.0, 99.5, 1, "ok"]]}, Style())
    assert rows(option) == ["w\\x1b[2J"]
    assert option["series"][0]["data"][0]["name"] == "<b>\\x1b[31m, w\\x1b[2J: 500 ms"
    assert option["tooltip"]["formatter"] == "{b}"  # ECharts escapes it


def test_without_tasks_there_is_no_picture():
    assert stream({}, Style()) == stream({"now": 1.0, "tasks": []}, Style()) == {}


def test_worker_2_is_before_worker_10():
    assert sorted(["w.10", "w.2", "a", "w"], key=natural) == ["a", "w", "w.2", "w.10"]
