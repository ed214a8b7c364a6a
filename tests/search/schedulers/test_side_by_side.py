"""Brackets side by side share trials so that they use about the same budget."""

from __future__ import annotations

from ropewalk.search.schedulers.side_by_side import SideBySide


def test_the_next_trial_goes_to_the_bracket_that_is_the_least_beyond_its_share() -> None:
    brackets = SideBySide(1, 16, 4, 0, 3)
    taken: list[int] = []
    for trial in range(12):
        number = brackets.next_bracket()
        assert brackets.next_bracket() == number
        assert brackets.start(trial, number) is brackets.of(trial) is brackets.brackets[number]
        taken.append(number)
    # With shares 16/3, 4/2 and 1, a trial more is 3/16, 1/2 and 1 of them; of equal ones, the first bracket is next.
    assert taken == [0, 0, 1, 0, 0, 0, 1, 2, 0, 0, 0, 1]


def test_there_are_no_more_brackets_than_rates() -> None:
    for s, most, rungs in ((0, 1, [3]), (0, 2, [3, 2]), (0, 9, [3, 2, 1]), (1, 9, [2, 1]), (2, 1, [1])):
        assert [len(bracket.rungs) for bracket in SideBySide(1, 16, 4, s, most).brackets] == rungs
