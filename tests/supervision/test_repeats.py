"""Which of many similar messages are shown."""

from __future__ import annotations

from ropewalk.supervision.repeats import Repeats


def test_the_first_few_of_a_kind_are_shown_and_the_others_counted() -> None:
    repeats = Repeats(most=2, period_s=10.0)
    assert [repeats.admits("actor", f"death {number}", 100.0 + number) for number in range(5)] == [True, True] + 3 * [
        False
    ]
    assert repeats.admits("learner", "death", 104.0), "another kind"
    assert repeats.due("actor") == 110.0
    assert repeats.left_out("actor") == (3, "death 4")
    assert repeats.admits("actor", "death 5", 110.0), "a new period"


def test_a_period_ends_by_itself_if_none_was_left_out() -> None:
    repeats = Repeats(most=1, period_s=10.0)
    assert repeats.admits("actor", "first", 0.0)
    assert not repeats.admits("actor", "second", 9.9)
    assert not repeats.admits("actor", "third", 10.1), "those that were left out are not summed up yet"
    assert repeats.left_out("actor") == (2, "third")
    assert repeats.admits("actor", "fourth", 20.0)
    assert repeats.admits("actor", "fifth", 30.0), "as soon as the period is over"


def test_nothing_was_left_out_of_what_never_happened() -> None:
    assert Repeats().left_out("actor") == (0, "")
