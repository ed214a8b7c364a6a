"""The picture of schedules: every interval, the way of the best state, and the jumps."""

from __future__ import annotations

from typing import Any

import pytest

from ropewalk.page.pictures.schedules import schedules, thinned
from ropewalk.page.style import Style
from tests.page.pictures.plain import DARK, EVIL, LIGHT, assert_plain


def span(member: int, start: int, score: float | None, rate: Any, donor: int = -1, **more: Any) -> dict[str, Any]:
    values = {"rate": rate, "fixed": 1, **more}
    return {"member": member, "start": start, "end": start + 10, "score": score, "donor": donor, "values": values}


DATA: dict[str, Any] = {
    "cursor": 4,
    "left": 0,
    "intervals": [span(0, 0, 1.0, 0.1), span(1, 0, 2.0, 0.4), span(0, 10, 5.0, 0.3, donor=1), span(1, 10, 4.0, 0.4)],
}


def rows(option: dict[str, Any], row: int) -> tuple[Any, Any, Any]:
    return tuple(each["data"] for each in option["series"] if each["xAxisIndex"] == row)  # type: ignore[return-value]


@pytest.mark.parametrize("style", [LIGHT, DARK])
def test_there_is_a_row_for_the_score_and_for_each_value_that_changes(style: Style) -> None:
    option = schedules(DATA, style)
    assert_plain(option)
    assert [axis["name"] for axis in option["yAxis"]] == ["score", "rate"]


def test_a_member_that_copied_goes_on_elsewhere() -> None:
    everything, _, jumps = rows(schedules(DATA, LIGHT), 1)
    gap = [None, None, None]
    assert everything[:6] == [[0, 0.1, 0], [10, 0.1, 0], gap, [10, 0.3, 0], [20, 0.3, 0], gap]
    assert jumps == [[10, 0.3, 0]]


def test_the_way_of_the_best_state_leads_through_the_member_that_was_copied() -> None:
    _, best, _ = rows(schedules(DATA, LIGHT), 1)
    assert best == [[0, 0.4, 1], [10, 0.4, 1], [10, 0.3, 0], [20, 0.3, 0]]
    assert rows(schedules(DATA, LIGHT), 0)[1] == [[10, 2.0, 1], [20, 5.0, 0]]


def test_wide_positive_values_have_a_logarithmic_axis_and_words_a_line_for_each() -> None:
    data = {"intervals": [span(0, 0, 1.0, 1e-4, kind=EVIL), span(1, 0, 2.0, 0.1, kind="b")]}
    option = schedules(data, LIGHT)
    assert_plain(option)
    axes = {axis["name"]: axis for axis in option["yAxis"]}
    assert axes["rate"]["type"] == "log" and axes["kind"]["data"] == [EVIL, "b"]


def test_before_the_first_interval_there_is_nothing_and_without_a_score_no_best_way() -> None:
    assert schedules({"intervals": []}, LIGHT) == {}
    option = schedules({"intervals": [span(0, 0, None, 0.1)]}, LIGHT)
    assert_plain(option)
    assert rows(option, 0)[1] == []


def test_of_many_intervals_some_are_drawn_with_the_last_of_each_member_and_the_whole_way_of_the_best():
    made = [
        span(member, start, float(start + member), 0.1 + member) for start in range(0, 12000, 10) for member in (0, 1)
    ]
    kept, step = thinned(made)
    assert (step, len(kept)) == (2, 1200)
    assert kept[-2:] == made[-2:] and {each["start"] % 20 for each in kept} == {10}
    option = schedules({"intervals": made}, LIGHT)
    assert "one of 2 intervals" in option["title"]["text"]
    _, best, _ = rows(option, 0)
    assert len(best) == 1200, "every interval of the best member"
    assert thinned(made[:1200]) == (made[:1200], 1)
