"""The picture of curves."""

from __future__ import annotations

import json
import math
from typing import Any

from ropewalk.page.pictures.curves import curves
from ropewalk.page.style import Style


def line(name: str = "a", points: Any = ((1, 0.5), (2, 0.25)), **more: Any) -> dict[str, Any]:
    return {"name": name, "color": 0, "points": points, **more}


def drawn(*lines: dict[str, Any], **more: Any) -> dict[str, Any]:
    return curves({"metric": "loss", "x": "step", "lines": lines, **more}, Style())


def test_each_run_has_a_line_and_a_smoothed_one_has_its_points_faint_below() -> None:
    option = drawn(line("a"), line("b", raw=[[1, 1.0], [2, 0.0]]))
    assert [one["name"] for one in option["series"]] == ["a", "b", "b"]
    faint, smooth = option["series"][1:]
    assert faint["lineStyle"]["opacity"] < smooth["lineStyle"]["opacity"] and faint["z"] < smooth["z"]
    assert faint["data"] == [[1, 1.0], [2, 0.0]] and option["legend"]["show"]


def test_nothing_is_drawn_without_points() -> None:
    assert drawn() == {} and drawn(line(points=[])) == {}


def test_nothing_is_drawn_where_no_point_can_be() -> None:
    """Metrics that are NaN, and negative ones on a logarithmic axis, had axes with nothing in them."""
    assert drawn(line(points=[[0, math.nan], [1, math.inf]])) == {}
    negative = line(points=[[1, -1.0], [2, -2.0]])
    assert drawn(negative) and drawn(negative, log_y=True) == {}


def test_what_cannot_be_drawn_is_a_gap() -> None:
    points = [[0, 1.0], [1, math.nan], [2, -1.0], [3, math.inf]]
    points_of = lambda **more: drawn(line(points=points), **more)["series"][0]["data"]  # noqa: E731
    ys = lambda **more: [(p["value"] if isinstance(p, dict) else p)[1] for p in points_of(**more)]  # noqa: E731
    assert ys() == [1.0, None, -1.0, None]
    assert ys(log_y=True) == [1.0, None, None, None]
    assert ys(log_x=True)[0] is None
    json.dumps(drawn(line(points=points)), allow_nan=False)


def test_points_between_gaps_are_marks_because_no_line_goes_to_them() -> None:
    """A metric that is NaN in every second step had an empty picture."""
    (one,) = drawn(line(points=[[0, 1.0], [1, math.nan], [2, 2.0], [3, math.nan], [4, 1.0], [5, 3.0]]))["series"]
    marks = [at for at, point in enumerate(one["data"]) if isinstance(point, dict) and point["symbol"] != "none"]
    assert one["showSymbol"] and one["symbol"] == "none" and marks == [0, 2]
    assert one["data"][2]["value"] == [2, 2.0] and one["data"][4:] == [[4, 1.0], [5, 3.0]]
    assert not drawn(line())["series"][0]["showSymbol"]


def test_the_axis_covers_the_whole_range_while_a_part_is_shown() -> None:
    axis = drawn(line(), range=[0, 100])["xAxis"]
    assert (axis["min"], axis["max"]) == (0, 100)
    assert "min" not in drawn(line(), range=[0, 100], log_x=True)["xAxis"]


def test_names_cannot_act() -> None:
    option = drawn(line("\x1b[2J<b>\u202e"))
    assert option["series"][0]["name"] == "\\x1b[2J<b>\\u202e"


def test_the_ninth_run_is_dashed() -> None:
    lines = [{**line(str(number)), "color": number} for number in range(9)]
    styles = [one["lineStyle"]["type"] for one in drawn(*lines)["series"]]
    assert styles == ["solid"] * 8 + ["dashed"]
