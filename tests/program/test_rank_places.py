"""Ranks are numbered host by host, and see the GPUs of their host."""

from __future__ import annotations

from ropewalk.program.rank_places import RankPlace, rank_places


def test_ranks_of_one_host_are_consecutive_and_the_first_replica_is_rank_0() -> None:
    places = rank_places(["n1", "n2", "n1", "n2"], [""] * 4)
    assert [place.rank for place in places] == [0, 2, 1, 3]
    assert [place.local_rank for place in places] == [0, 0, 1, 1]
    assert [place.group_rank for place in places] == [0, 1, 0, 1]
    assert {(place.local_size, place.num_groups) for place in places} == {(2, 2)}
    # What scripts for torchrun compute from the variables.
    assert all(place.rank == place.group_rank * place.local_size + place.local_rank for place in places)


def test_hosts_with_different_numbers_of_ranks_keep_their_own_size() -> None:
    assert [place.local_size for place in rank_places(["n1", "n1", "n2"], [""] * 3)] == [2, 2, 1]


def test_a_rank_with_one_gpu_finds_it_at_its_local_rank() -> None:
    places = rank_places(["n1", "n2", "n1"], ["5", "0", "2"])
    assert [place.visible_gpus for place in places] == ["5,2", "0", "5,2"]
    for place, own in zip(places, ("5", "0", "2"), strict=True):
        assert place.visible_gpus.split(",")[place.local_rank] == own


def test_ranks_with_several_gpus_or_none_keep_what_they_see() -> None:
    assert {place.visible_gpus for place in rank_places(["n1", "n1"], ["0,1", "2,3"])} == {""}
    assert {place.visible_gpus for place in rank_places(["n1", "n1"], ["0", ""])} == {""}
    # An engine that gives all of a host's GPUs to each of its processes.
    assert {place.visible_gpus for place in rank_places(["n1", "n1"], ["0", "0"])} == {""}


def test_one_rank_is_one_group() -> None:
    assert rank_places(["n1"], [""]) == [RankPlace(0, 0, 1, 0, 1)]
