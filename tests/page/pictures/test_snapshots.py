from __future__ import annotations

from typing import Any

from ropewalk.page.pictures.snapshots import snapshots
from ropewalk.page.style import Style


def taken(step: int, state: str, whole: float | None) -> dict[str, Any]:
    return {
        "step": step,
        "asked": 10.0 * step,
        "whole": whole,
        "state": state,
        "size_bytes": 3 * 2**20,
        "took_s": 0.004,
        "places": {},
    }


def test_each_snapshot_is_a_point_of_its_state() -> None:
    found = [taken(2, "superseded", 21.0), taken(4, "whole", 41.5), taken(6, "under way", None)]
    data = {"every": 2, "cost": 0.021, "copies": "launcher", "num_whole": 2, "snapshots": found}
    option = snapshots(data, Style())
    points = {series["name"]: [point["value"] for point in series["data"]] for series in option["series"]}
    assert points == {"whole": [[41500, 4]], "superseded": [[21000, 2]], "under way": [[60000, 6]]}
    assert option["title"]["text"] == (
        "every 2 steps, 2.1 % of the time; 3 MiB, taken in 4 ms; a further copy: launcher"
    )


def test_without_snapshots_there_is_nothing_to_show() -> None:
    assert snapshots({"every": 4, "cost": None, "copies": "", "num_whole": 0, "snapshots": []}, Style()) == {}
