from __future__ import annotations

from typing import Any

from ropewalk.page.pictures.memory import memory
from ropewalk.page.style import Style

GIB = 2**30


def worker(number: int, **more: Any) -> dict[str, Any]:
    made = {
        "name": f"{number}.0",
        "stages": [number],
        "host": "n1",
        "device": "cpu",
        "planned": {
            "weights": GIB,
            "gradients": GIB,
            "optimizer": 2 * GIB,
            "stashed": 0,
            "buffers": 0,
            "activations": 0,
        },
        "held": {"weights": GIB, "optimizer": 2 * GIB, "stashed": GIB // 2, "buffers": 0},
        "process_bytes": 4 * GIB,
        "device_bytes": None,
        "peak_device_bytes": None,
        "limit_bytes": None,
    }
    return {**made, **more}


def bars(option: dict[str, Any]) -> dict[str, list[Any]]:
    return {series["name"]: series["data"] for series in option["series"]}


def test_the_parts_of_each_worker_are_stacked_planned_above_held() -> None:
    option = memory({"workers": [worker(0), worker(1, planned=None)]}, Style())
    assert bars(option) == {
        "weights": [1, 1, 0, 0, 1],
        "gradients": [1, 0, 0, 0, 0],
        "optimizer": [2, 2, 0, 0, 2],
        "older versions": [0, 0.5, 0, 0, 0.5],
    }
    assert option["xAxis"]["name"] == "memory (GiB)"
    assert option["yAxis"]["data"][:2] == ["stage 0 (0.0)  planned", "process 4.0 GiB  held"]


def test_what_else_is_on_an_accelerator_is_known_from_its_peak() -> None:
    option = memory({"workers": [worker(0, device="gpu", peak_device_bytes=6 * GIB, limit_bytes=10 * GIB)]}, Style())
    assert bars(option)["others"] == [0, 2.5]
    assert bars(option)["limit"] == [[10, 0], [10, 1]]
    assert option["yAxis"]["data"][1] == "peak 6.0 GiB of 10.0 GiB  held"


def test_a_limit_far_away_is_written_and_not_drawn() -> None:
    option = memory({"workers": [worker(0, limit_bytes=100 * GIB)]}, Style())
    assert "limit" not in bars(option) and "of 100.0 GiB" in option["yAxis"]["data"][1]


def test_without_a_plan_of_memory_each_worker_has_one_bar() -> None:
    option = memory({"workers": [worker(0, planned=None), worker(1, planned=None)]}, Style())
    assert option["yAxis"]["data"] == ["stage 0 (0.0)  process 4.0 GiB", "stage 1 (1.0)  process 4.0 GiB"]
    assert bars(option)["optimizer"] == [2, 2]


def test_without_workers_there_is_nothing_to_show() -> None:
    assert memory({}, Style()) == memory({"workers": []}, Style()) == {}
