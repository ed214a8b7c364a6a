"""The panel "schedules" has every interval of population based training, and where a member jumps."""

from __future__ import annotations

import math

from ropewalk.population.algorithms.pbt_history import History, Mutation
from ropewalk.population.algorithms.pbt_member import Interval
from ropewalk.population.panels.schedules import MOST_INTERVALS, schedules_panel


def history() -> History:
    """Member 0 trains for 10 steps, copies member 1, and trains on; its hyperparameter has changed."""
    made = History(0)

    def add(member: int, number: int, steps: int, score: float, parent: int, rate: object) -> int:
        return made.add(Interval(member, number, steps, 10, {"rate": rate}, None, 0), 10, score, parent)

    add(0, 0, 0, 1.0, -1, 0.1)
    other = add(1, 0, 0, 2.0, -1, 0.2)
    add(0, 1, 10, 3.0, other, 0.16)
    made.mutations.append(
        Mutation("exploit", 0, 1, 10, 1.0, 1, 10, 2.0, {"rate": 0.1}, {"rate": 0.16}, "it was in the lowest quantile")
    )
    return made


def test_each_interval_has_its_steps_score_and_hyperparameters() -> None:
    data = schedules_panel(history())
    assert data["intervals"][0] == {
        "member": 0,
        "start": 0,
        "end": 10,
        "score": 1.0,
        "donor": -1,
        "values": {"rate": 0.1},
    }
    assert (data["cursor"], data["left"]) == (3, 0)


def test_an_interval_that_began_with_the_state_of_another_member_names_it() -> None:
    assert [interval["donor"] for interval in schedules_panel(history())["intervals"]] == [-1, -1, 1]


def test_after_a_cursor_only_new_intervals_come() -> None:
    made = history()
    assert [each["end"] for each in schedules_panel(made, 2)["intervals"]] == [20]
    assert schedules_panel(made, 3) == {"cursor": 3, "left": 0, "intervals": []}
    assert schedules_panel(made, 99)["cursor"] == 3


def test_a_long_history_comes_in_parts() -> None:
    made = History(0)
    for number in range(MOST_INTERVALS + 1):
        made.add(Interval(0, number, number, 1, {"rate": 0.1}, None, 0), 1, 0.0, number - 1)
    first = schedules_panel(made)
    assert (first["cursor"], first["left"], len(first["intervals"])) == (MOST_INTERVALS, 1, MOST_INTERVALS)
    rest = schedules_panel(made, first["cursor"])
    assert (rest["cursor"], rest["left"], len(rest["intervals"])) == (MOST_INTERVALS + 1, 0, 1)


def test_values_are_what_json_has() -> None:
    made = History(0)
    made.add(Interval(0, 0, 0, 1, {"a": True, "b": "<b>", "c": None, "d": math.inf}, None, 0), 1, math.nan, -1)
    (interval,) = schedules_panel(made)["intervals"]
    assert interval["values"] == {"a": True, "b": "<b>", "c": None, "d": None} and interval["score"] is None
