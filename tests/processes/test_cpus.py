"""Processes that are bound get the least used CPUs."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ropewalk.processes.bounds import Cpus


def test_processes_get_cpus_of_their_own_as_long_as_there_are_some() -> None:
    cpus = Cpus({7, 2, 3, 5})
    assert (cpus.count, cpus.give("a", 2), cpus.give("b", 1), cpus.give("c", 1)) == (4, (2, 3), (5,), (7,))


def test_what_is_taken_back_is_given_again_and_once() -> None:
    cpus = Cpus(range(3))
    cpus.give("a", 2)
    cpus.give("b", 1)
    cpus.take_back("a")
    cpus.take_back("a")
    cpus.take_back("unknown")
    assert cpus.give("c", 1) == (0,) and cpus.give("d", 1) == (1,) and cpus.give("e", 3) == (0, 1, 2)


def test_the_least_used_are_shared_first() -> None:
    cpus = Cpus(range(2))
    cpus.give("a", 1)
    cpus.give("b", 0.5)
    assert cpus.give("c", 0.5) == (1,), "the other half of b's"
    assert cpus.give("d", 1) == (0,) and cpus.give("e", 1) == (1,)


def test_a_part_of_a_cpu_counts_as_a_whole_one_to_be_bound_to() -> None:
    assert Cpus(range(4)).give("a", 1.5) == (0, 1) and Cpus(range(4)).give("a", 0.1) == (0,)


def test_more_than_there_are_is_all_of_them_and_where_there_are_none_nobody_is_bound() -> None:
    assert Cpus(range(2)).give("a", 64) == (0, 1)
    cpus = Cpus(())
    assert (cpus.count, cpus.give("a", 2)) == (0, ())
    cpus.take_back("a")


@given(st.integers(1, 9), st.lists(st.tuples(st.integers(0, 5), st.integers(1, 5)), max_size=60))
def test_whole_cpus_are_used_evenly_whoever_comes_and_goes(count: int, steps: list[tuple[int, int]]) -> None:
    cpus = Cpus(range(count))
    held: dict[int, tuple[int, ...]] = {}
    for who, wish in steps:
        if who in held:
            cpus.take_back(str(who))
            del held[who]
            continue
        uses = [sum(number in given for given in held.values()) for number in range(count)]
        held[who] = cpus.give(str(who), wish)
        assert len(held[who]) == min(wish, count)
        if wish <= count:
            spare = sorted(uses)[len(held[who]) - 1]
            assert all(uses[number] <= spare for number in held[who])
