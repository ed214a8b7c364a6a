"""Down-closed sets, against their definition."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from ropewalk.pipeline.down_sets import BitGraph, down_sets, members
from ropewalk.pipeline.profiles import Operator, Profile
from tests.pipeline.partitioners.brute_force import down_closed, profiles


@settings(max_examples=50, deadline=None)
@given(profiles(most=6))
def test_all_down_closed_sets_are_found_once_and_in_order(profile: Profile) -> None:
    found = down_sets(BitGraph.of(profile), 1000)
    assert found is not None
    named = [frozenset(profile.order[number] for number in members(down_set)) for down_set in found]
    assert set(named) == set(down_closed(profile))
    assert len(set(named)) == len(named)
    assert [len(ids) for ids in named] == sorted(len(ids) for ids in named)


@pytest.mark.parametrize(("limit", "fits"), [(9, True), (8, False)])
def test_more_sets_than_the_limit_are_not_listed(limit: int, fits: bool) -> None:
    ends = ("b", "c", "d")  # a before three that are free: 1 + 2 ** 3 sets
    profile = Profile(tuple(Operator(id) for id in "abcd"), tuple(("a", end) for end in ends))
    assert (down_sets(BitGraph.of(profile), limit) is not None) is fits


def test_who_may_join_and_leave_a_set_keeps_it_down_closed() -> None:
    profile = Profile(tuple(Operator(id) for id in "abcd"), (("a", "b"), ("a", "c"), ("b", "d"), ("c", "d")))
    graph = BitGraph.of(profile)
    assert list(graph.may_join(0b0011)) == [2]
    assert list(graph.may_leave(0b0111)) == [1, 2]
