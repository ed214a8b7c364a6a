from __future__ import annotations

from ropewalk.page.pictures.exchange import exchange
from ropewalk.page.style import Style


def test_bytes_before_and_after_compression_are_lines_over_the_steps() -> None:
    rows = [[1.0, 10, 2048.0, 8192.0, 0.5], [2.0, 20, 1024.0, 8192.0, 0.25]]
    option = exchange({"rows": rows}, Style())
    before, sent, error = option["series"]
    assert before["data"] == [[10, 8], [20, 8]] and sent["data"] == [[10, 2], [20, 1]]
    assert error["data"] == [[10, 0.5], [20, 0.25]] and error["yAxisIndex"] == 1
    assert option["yAxis"][0]["name"] == "bytes of a step (KiB)" and option["yAxis"][0]["type"] == "log"
    assert option["title"]["text"] == "1 KiB sent in a step, 12.5 % of 8 KiB before compression"


def test_without_an_error_there_is_no_axis_for_it() -> None:
    option = exchange({"rows": [[1.0, 10, 2048.0, 0.0, 0.0]]}, Style())
    assert [series["name"] for series in option["series"]] == ["before compression", "sent"] and len(
        option["yAxis"]
    ) == 1
    assert option["series"][0]["data"] == [], "a logarithmic axis has no zero"
    assert option["title"]["text"] == "2 KiB sent in a step"
    assert exchange({"rows": []}, Style()) == {}
