"""Candidates that are numbers: told in pieces, in any order, late, or never."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk.population.numbered import NumberedCandidates
from ropewalk.population.outcome import Outcome
from tests.population.local_loop import is_plain, same_state


def tell(numbered: NumberedCandidates, *candidates: int) -> None:
    numbered.tell(candidates, [Outcome(float(candidate) ** 2) for candidate in candidates])


def test_a_batch_is_there_when_as_many_as_a_population_were_told() -> None:
    numbered = NumberedCandidates(4, max_age=0)
    assert numbered.ask(4) == range(4)
    tell(numbered, 0, 1, 2)
    assert not numbered.is_full and not numbered.is_empty
    tell(numbered, 3)
    assert numbered.is_full
    batch = numbered.take()
    assert batch.candidates.tolist() == [0, 1, 2, 3] and batch.fitnesses.tolist() == [0, 1, 4, 9]
    assert numbered.is_empty and not numbered.is_full and numbered.ask(2) == range(4, 6)


@settings(deadline=None, max_examples=30)
@given(st.permutations(range(8)), st.integers(1, 8))
def test_order_and_grouping_make_no_difference(order: list[int], piece: int) -> None:
    numbered = NumberedCandidates(8, max_age=1)
    numbered.ask(8)
    for first in range(0, 8, piece):
        told = order[first : first + piece]
        ones = np.ones(1)
        numbered.tell(told, [Outcome(float(number), observations=(number, ones, ones)) for number in told])
    batch = numbered.take()
    assert batch.candidates.tolist() == list(range(8)) and batch.fitnesses.tolist() == list(range(8))
    assert [count for count, _, _ in batch.observations] == list(range(8))


def test_what_is_dropped_is_not_waited_for() -> None:
    numbered = NumberedCandidates(4, max_age=0)
    numbered.ask(4)
    numbered.drop([1, 2])
    tell(numbered, 0)
    assert not numbered.is_full
    tell(numbered, 3)
    assert numbered.is_full and numbered.take().candidates.tolist() == [0, 3]
    numbered.ask(4)
    numbered.drop([4, 5, 6, 7])
    assert not numbered.is_full  # nothing to learn from


def test_candidates_that_are_dropped_when_a_run_ends_do_not_make_the_first_batch_of_the_next_smaller() -> None:
    # In steady state candidates of older parameters are under way then; the next run learnt from 13 of 16.
    numbered = NumberedCandidates(4, max_age=1)
    numbered.ask(7)
    tell(numbered, 0, 1, 2, 3)
    numbered.take()
    numbered.drop([4, 5, 6])
    first, *others = numbered.ask(4)
    tell(numbered, first)
    assert not numbered.is_full
    numbered.drop(others)
    assert numbered.is_full, "these are of the newest parameters"


def test_late_results_are_used_up_to_an_age_and_their_share_is_known() -> None:
    numbered = NumberedCandidates(2, max_age=1)
    numbered.ask(6)
    tell(numbered, 0, 1)
    assert numbered.take().stale == 0
    numbered.ask(2)
    tell(numbered, 2, 6)  # one of the parameters before
    batch = numbered.take()
    assert (batch.candidates.tolist(), batch.late, batch.skipped, batch.stale) == ([2, 6], 1, 0, 0.5)
    numbered.ask(2)
    tell(numbered, 3, 7, 9)  # two steps old, one step old, new
    batch = numbered.take()
    assert (batch.candidates.tolist(), batch.late, batch.skipped) == ([7, 9], 1, 1)
    assert batch.stale == 2 / 3


def test_without_an_age_all_stale_results_are_skipped() -> None:
    numbered = NumberedCandidates(2, max_age=0)
    numbered.ask(4)
    tell(numbered, 0, 1)
    numbered.take()
    tell(numbered, 2, 3)
    assert numbered.is_empty and not numbered.is_full


def test_a_pair_is_not_cut_by_a_step() -> None:
    numbered = NumberedCandidates(1, max_age=0)
    numbered.ask(3)
    tell(numbered, 0)
    numbered.take()
    assert numbered.ask(2) == range(4, 6)


def test_what_was_never_asked_is_refused() -> None:
    numbered = NumberedCandidates(2, max_age=0)
    numbered.ask(2)
    for candidate in (2, -1):
        with pytest.raises(ValueError, match=f"candidate {candidate} was never asked; 2 were"):
            tell(numbered, candidate)
    with pytest.raises(ValueError, match="max_age must be 0 steps or more, not -1"):
        NumberedCandidates(2, max_age=-1)
    with pytest.raises(ValueError, match="n must be 0 or more candidates, not -2"):
        numbered.ask(-2)


def test_a_loaded_one_goes_on_as_the_saved_one() -> None:
    one, other = NumberedCandidates(3, max_age=1), NumberedCandidates(3, max_age=1)
    one.ask(7)
    tell(one, 0, 1, 2)
    one.take()
    one.ask(2)
    one.drop([8])
    one.tell([5], [Outcome(2.5, observations=(4, np.ones(2), np.full(2, 3.0)))])
    saved = one.state_dict()
    assert is_plain(saved)
    other.load_state_dict(saved)
    for each in (one, other):
        each.ask(2)
        tell(each, 6)
        assert each.is_full
    assert same_state(one.state_dict(), other.state_dict())
    first, second = one.take(), other.take()
    assert first.candidates.tolist() == second.candidates.tolist() == [5, 6]
    assert first.fitnesses.tolist() == second.fitnesses.tolist() and first.stale == second.stale == 1
    assert second.observations[0][0] == 4 and second.observations[0][2].tolist() == [3, 3]
