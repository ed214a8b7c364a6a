from __future__ import annotations

from typing import Any

from ropewalk.page.pictures.versions import versions
from ropewalk.page.style import Style


def stage(number: int, found: list[int], held: dict[str, int]) -> dict[str, Any]:
    sizes = {"slots": 4, "most": 4, "version_bytes": 2**20, "stashed_bytes": (len(found) - 1) * 2**20}
    return {"stage": number, "worker": f"{number}.0", "versions": found, "held": held, **sizes}


def test_each_version_is_a_box_with_the_micro_batches_that_hold_it() -> None:
    option = versions({"stages": [stage(0, [7, 8, 9], {"7": 2, "8": 1}), stage(1, [9], {"9": 3})]}, Style())
    newest, older = option["series"]
    assert newest["data"] == [[9, 0, 0], [9, 1, 3]] and older["data"] == [[7, 0, 2], [8, 0, 1]]
    assert option["yAxis"]["data"] == ["stage 0 (0.0)  3 of 4", "stage 1 (1.0)  1 of 4"]
    assert option["title"]["text"].startswith("2 older versions, 2 MiB")
    assert (option["xAxis"]["min"], option["xAxis"]["max"]) == (6, 10)


def test_with_one_version_of_each_there_are_no_older_ones() -> None:
    option = versions({"stages": [stage(0, [5], {})]}, Style())
    assert [series["name"] for series in option["series"]] == ["newest"]
    assert versions({"stages": []}, Style()) == {}
