from __future__ import annotations

import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.rl.seeds import derived_seed, generator

NUMBERS = st.one_of(
    st.integers(0, 2**32 - 1), st.integers(0, 2**70), st.sampled_from([0, 1, 2**31, 2**32 - 1, 2**32, 2**64])
)


def plain(seed: int, path: list[int | str]) -> np.random.SeedSequence:
    return np.random.SeedSequence(
        [seed, *(zlib.crc32(part.encode()) if isinstance(part, str) else part for part in path)]
    )


@given(NUMBERS, st.lists(st.one_of(NUMBERS, st.text(max_size=5)), max_size=5))
def test_seeds_are_those_of_the_plain_list_of_numbers(seed: int, path: list[int | str]) -> None:
    assert derived_seed(seed, *path) == int(plain(seed, path).generate_state(1)[0]) >> 1
    expected = np.random.Generator(np.random.PCG64(plain(seed, path)))
    assert generator(seed, *path).integers(2**62, size=3).tolist() == expected.integers(2**62, size=3).tolist()


def test_other_seeds_and_paths_give_other_numbers() -> None:
    seeds = [
        derived_seed(3),
        derived_seed(4),
        derived_seed(3, "block"),
        derived_seed(3, 1),
        derived_seed(3, "block", 1),
    ]
    assert len(set(seeds)) == len(seeds) and max(seeds) < 2**31


@pytest.mark.parametrize("seed", [-1, -(2**40)])
def test_a_negative_seed_is_refused(seed: int) -> None:
    with pytest.raises(ValueError, match="non-negative"):
        derived_seed(seed, "block")


def test_zeros_at_the_end_of_a_short_path_do_not_count() -> None:
    assert derived_seed(3, "block") == derived_seed(3, "block", 0) != derived_seed(3, "block", 0, 1)
