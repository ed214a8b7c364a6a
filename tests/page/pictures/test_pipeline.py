"""The picture of a pipeline: every measured and planned action is a bar from its start to its end."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from ropewalk.page.pictures.pipeline import PICTURE, pipeline
from ropewalk.page.style import Style

DATA: dict[str, Any] = {
    "schedule": "one_f_one_b",
    "micro_batches": 2,
    "step": 7,
    "num_steps": 1,
    "workers": [
        {"name": "0.0", "stages": [0], "host": "n1", "computing": 0.5},
        {"name": "1.0", "stages": [1], "host": "n1", "computing": 0.4},
    ],
    "step_s": 0.1,
    "bubble": 0.25,
    "idle": 0.3,
    "planned_step_s": 0.08,
    "planned_bubble": 0.2,
    "planned_from": "plan",
    "measured": [[0, "F", 0, 0, 0.0, 0.04], [0, "S", 0, 0, 0.04, 0.05], [1, "B", 1, 0, 0.05, 0.1]],
    "planned": [[0, "F", 0, 0, 0.0, 0.03]],
    "waits": [[1, "starved", 0, 0.0, 0.05]],
    "bottleneck": {"name": "0.0", "stages": [0], "computing": 0.5},
}


def bars(option: dict[str, Any], name: str) -> list[dict[str, Any]]:
    (series,) = [one for one in option["series"] if one["name"] == name]
    return series["data"]


def test_bars_begin_and_end_with_their_actions_in_the_row_of_their_worker() -> None:
    option = pipeline(DATA, Style())
    planned, measured = bars(option, "forward")
    assert measured["coords"][0] == [0.0, 1] and measured["coords"][1] == [pytest.approx(40, abs=0.1), 1]
    assert planned["coords"][0] == [0.0, 0] and planned["coords"][1] == [pytest.approx(30, abs=0.1), 0]
    assert (
        planned["lineStyle"]["opacity"] < 1 and measured["name"] == "measured: forward of micro-batch 0, stage 0: 40 ms"
    )
    (backward,) = bars(option, "backward")
    assert backward["coords"][0] == [50.0, 4], "the measured row of the second worker"
    assert bars(option, "waits")[0]["name"] == "waits for a tensor of stage 0: 50 ms"
    assert option["xAxis"]["max"] == 100 and "(ms)" in option["xAxis"]["name"]
    assert option["yAxis"]["data"] == ["stage 0  planned", "measured", "", "stage 1  planned", "measured"]


def test_numbers_of_micro_batches_stand_on_bars_that_have_room() -> None:
    data = {**DATA, "measured": [*DATA["measured"], [1, "F", 1, 17, 0.0, 0.0005]]}
    numbers = pipeline(data, Style())["series"][-1]
    assert [point[2] for point in numbers["data"]] == [0, 0, 0]


def test_the_step_and_the_bubble_stand_in_words_beside_the_planned_ones() -> None:
    title = pipeline(DATA, Style())["title"]
    assert title["text"] == "step 100 ms (planned 80 ms)     bubble 25 % (planned 20 %)"
    assert title["subtext"].startswith("stage 0 computes most: 50 % of the time")
    ideal = pipeline({**DATA, "planned_from": "measured"}, Style())
    assert "ideal 80 ms" in ideal["title"]["text"] and ideal["yAxis"]["data"][0] == "stage 0  ideal"


def test_replicas_have_their_names_and_many_workers_scroll() -> None:
    workers = [{"name": f"0.{replica}", "stages": [0], "host": "", "computing": 0.1} for replica in range(20)]
    option = pipeline({**DATA, "workers": workers}, Style())
    assert option["yAxis"]["data"][3] == "stage 0 (0.1)  planned"
    assert [zoom["type"] for zoom in option["dataZoom"]] == ["inside", "slider"]
    assert len(pipeline(DATA, Style())["dataZoom"]) == 1


def test_tooltips_have_only_words_of_this_module() -> None:
    data = copy.deepcopy(DATA)
    data["waits"][0][1] = data["workers"][0]["name"] = data["workers"][0]["host"] = "<b>"
    option = pipeline(data, Style())
    assert "<b>" not in json.dumps(option["series"]), "tooltips of lines are not escaped by ECharts"


def test_before_the_first_step_there_is_nothing_to_show() -> None:
    assert pipeline({}, Style()) == {}
    assert PICTURE.option(DATA, Style(dark=True)) != PICTURE.option(DATA, Style())
