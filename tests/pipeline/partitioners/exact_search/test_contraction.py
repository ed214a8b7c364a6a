"""Families of cuts of graphs that have too many."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk.pipeline.down_sets import BitGraph, down_sets, members
from ropewalk.pipeline.partitioners.exact_search.blocks import blocks, down_closed_parts
from ropewalk.pipeline.partitioners.exact_search.contraction import coarse_sets, sets_near
from ropewalk.pipeline.profiles import Operator, Profile
from tests.pipeline.partitioners.brute_force import profiles


@settings(max_examples=50, deadline=None)
@given(profiles(most=7), st.integers(2, 20))
def test_a_coarse_family_has_the_ends_and_only_legal_cuts(profile: Profile, limit: int) -> None:
    graph = BitGraph.of(profile)
    legal = down_sets(graph, 10_000)
    assert legal is not None
    family = coarse_sets(graph, [1.0] * len(profile.operators), limit)
    assert len(family) <= limit
    assert {0, graph.everything} <= set(family) <= set(legal)


@settings(max_examples=30, deadline=None)
@given(profiles(most=7))
def test_enough_steps_from_any_cut_lead_to_all(profile: Profile) -> None:
    graph = BitGraph.of(profile)
    legal = down_sets(graph, 10_000)
    assert legal is not None
    for cut in legal:
        assert set(sets_near(graph, cut, 10_000)) == set(legal)


@settings(max_examples=50, deadline=None)
@given(profiles(most=7))
def test_the_parts_of_blocks_are_all_cuts_of_the_core(profile: Profile) -> None:
    graph = BitGraph.of(profile)
    strays = blocks(graph)[0].strays
    legal = down_sets(graph, 10_000)
    assert legal is not None
    found = [of.down_set(number) for of in down_closed_parts(graph, 10_000) for number in range(len(of.masks))]
    assert set(found) == {down_set & ~strays for down_set in legal}
    assert len(set(found)) == len(found)


def test_articulation_points_part_the_blocks() -> None:
    #  a -> (b, c) -> d -> e, and a dead end behind b
    edges = (("a", "b"), ("a", "c"), ("b", "d"), ("c", "d"), ("d", "e"), ("b", "x"))
    profile = Profile(tuple(Operator(id) for id in "abcdex"), edges)
    graph = BitGraph.of(profile)
    names = [
        ("".join(profile.order[n] for n in members(block.inside)), profile.order[block.end] if block.end >= 0 else "")
        for block in blocks(graph)
    ]
    assert names == [("", "a"), ("bc", "d"), ("", "e"), ("", "")]
    assert [profile.order[number] for number in members(blocks(graph)[0].strays)] == ["x"]
