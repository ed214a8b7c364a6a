from __future__ import annotations

from typing import Any

from ropewalk.page.pictures.timeline import timeline, timeline_height
from ropewalk.page.style import Style


def event(at: float, kind: str, text: str = "t") -> dict[str, Any]:
    return {"at": at, "kind": kind, "text": text, "process": ""}


def test_there_is_a_lane_for_each_kind_that_occurred_and_deaths_are_on_top():
    data = {"started": 10.0, "at": 60.0, "events": [event(20, "join"), event(30, "death"), event(40, "unheard of")]}
    option = timeline(data, Style())
    assert option["yAxis"]["data"] == ["death", "join", "other"]
    assert [one["data"][0]["value"] for one in option["series"]] == [[30_000, 0], [20_000, 1], [40_000, 2]]
    assert (option["xAxis"]["min"], option["xAxis"]["max"]) == (10_000, 60_000)


def test_an_event_outside_of_the_given_time_is_shown_too():
    option = timeline({"started": 50.0, "at": 55.0, "events": [event(20, "join"), event(70, "join")]}, Style())
    assert (option["xAxis"]["min"], option["xAxis"]["max"]) == (20_000, 70_000)


def test_texts_are_escaped_and_cut():
    option = timeline({"events": [event(5, "death", "\x1b[2J<b>" + "x" * 500)]}, Style())
    name = option["series"][0]["data"][0]["name"]
    assert name.startswith("\\x1b[2J<b>x")
    assert len(name) == 160
    assert option["tooltip"]["formatter"] == "{b}"  # ECharts escapes it


def test_events_without_a_time_have_no_mark():
    assert timeline({"events": [event(0, "death")]}, Style()) == timeline({}, Style()) == {}


def test_more_lanes_are_higher():
    assert timeline_height({"events": [event(1, "death"), event(1, "join")]}) > timeline_height({"events": []})


def test_marks_that_would_cover_each_other_are_drawn_once_in_each_lane():
    events = [event(10, "death", "an old one"), *(event(1000 + n / 100, "join", f"{n}") for n in range(1000))]
    events += [event(1009.5, "death", "in between")]
    deaths, joins = timeline({"started": 10.0, "at": 1010.0, "events": events}, Style())["series"]
    assert [one["name"] for one in deaths["data"]] == ["an old one", "in between"]
    assert len(joins["data"]) < 10 and joins["data"][-1]["name"] == "999"
