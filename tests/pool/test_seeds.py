"""Seeds of tasks depend on the map's seed and the index, and on nothing else."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.pool.seeds import derive, task_seed

SEEDS = st.integers(-(2**63), 2**64 - 1)
INDICES = st.integers(0, 2**63 - 1)


@pytest.mark.parametrize(
    ("seed", "index", "expected"),
    [
        (0, 0, 0x0E7494F907A55052),
        (1, 0, 0xA61488D29BCCF5C3),
        (0, 1, 0x70A94C03EEAA82EB),
        (2**64 - 1, 2**40, 0xA6647A1918AED69A),
    ],
)
def test_seeds_stay_what_they_are_from_one_version_to_the_next(seed: int, index: int, expected: int) -> None:
    assert derive(seed, index) == expected


@given(seed=SEEDS, index=INDICES)
def test_a_seed_is_a_number_of_64_bits(seed: int, index: int) -> None:
    assert 0 <= derive(seed, index) < 2**64
    assert derive(seed, index) == derive(seed, index)


@given(one=st.tuples(SEEDS, INDICES), other=st.tuples(SEEDS, INDICES))
def test_different_tasks_have_different_seeds(one: tuple[int, int], other: tuple[int, int]) -> None:
    same = one[0] % 2**64 == other[0] % 2**64 and one[1] == other[1]
    assert (derive(*one) == derive(*other)) == same


def test_seeds_of_neighbours_look_independent() -> None:
    # Each bit is set in about half of them, and differs from the neighbour's in about half: 6 standard deviations.
    seeds = [derive(7, index) for index in range(4096)]
    assert len(set(seeds)) == 4096 and not set(seeds) & {derive(8, index) for index in range(4096)}
    for bit in range(64):
        ones = sum(seed >> bit & 1 for seed in seeds)
        flips = sum((one ^ other) >> bit & 1 for one, other in itertools.pairwise(seeds))
        assert abs(ones - 2048) < 6 * 32 and abs(flips - 2048) < 6 * 32


def test_outside_of_a_task_there_is_no_seed() -> None:
    with pytest.raises(RuntimeError, match="inside a task"):
        task_seed()
