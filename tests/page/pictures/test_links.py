from __future__ import annotations

from ropewalk.page.pictures.links import links
from ropewalk.page.style import Style


def test_measured_bytes_stand_beside_the_planned_ones() -> None:
    found = {
        "0.0 -> 1.0": {"total_bytes": 9000, "step_bytes": 3072.0, "planned_step_bytes": 2048.0},
        "1.0 -> 0.0": {"total_bytes": 3000, "step_bytes": 1024.0, "planned_step_bytes": None},
    }
    option = links({"links": found}, Style())
    assert {series["name"]: series["data"] for series in option["series"]} == {"planned": [2, 0], "measured": [3, 1]}
    assert option["yAxis"]["data"] == list(found) and option["xAxis"]["name"] == "bytes of a step (KiB)"


def test_of_many_links_the_busiest_are_shown() -> None:
    found = {f"{n} -> x": {"total_bytes": n, "step_bytes": float(n), "planned_step_bytes": None} for n in range(10, 40)}
    option = links({"links": found}, Style())
    assert option["yAxis"]["data"] == [f"{n} -> x" for n in range(24, 40)]
    assert [series["name"] for series in option["series"]] == ["measured"]
    assert links({"links": {}}, Style()) == {}
