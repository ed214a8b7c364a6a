"""The best guest moves in: as it is or after a step."""

from __future__ import annotations

from ropewalk.population.open_ended.contest import Contest, TransferCandidate


def test_each_agent_is_a_guest_everywhere_but_at_home() -> None:
    contest = Contest(3, child=False)
    assert contest.entries == [(target, source) for target in range(3) for source in range(3)]
    assert contest.guests == [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)]
    assert contest.home_scores([1.0, 0, 0, 0, None, 0, 0, 0, 3.0]) == [1.0, None, 3.0]


def test_in_a_new_environment_all_are_guests() -> None:
    contest = Contest(2, child=True)
    assert contest.entries == contest.guests == [(0, 0), (0, 1)]
    assert contest.best(0, [5.0, 7.0], [6.0, 1.0]) == TransferCandidate(7.0, 1, None)


def test_the_best_guest_is_not_the_one_at_home() -> None:
    contest = Contest(2, child=False)
    assert contest.best(0, [99.0, 3.0, 4.0, 99.0], [2.0, 5.0]) == TransferCandidate(3.0, 1, None)
    assert contest.best(1, [99.0, 3.0, 4.0, 99.0], [2.0, 5.0]) == TransferCandidate(5.0, 0, 1)


def test_of_equal_guests_the_first_comes_as_it_is() -> None:
    assert Contest(3, child=True).best(0, [1.0, 2.0, 2.0], [2.0, 2.0, 2.0]) == TransferCandidate(2.0, 0, 0)
    assert Contest(2, child=True).best(0, [2.0, 2.0], [2.0, 2.0]) == TransferCandidate(2.0, 0, None)


def test_of_whom_nothing_is_known_is_the_worst() -> None:
    assert Contest(2, child=True).best(0, [None, -500.0], [None, None]).source == 1
