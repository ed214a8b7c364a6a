"""Draws for the rows of several callers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ropewalk.rl.inference.joined_generator import JoinedGenerator

SIZES = (3, 1, 2)

DRAWS: dict[str, Callable[[np.random.Generator, int], Any]] = {
    "random": lambda rng, n: rng.random((n, 1)),
    "random of float32": lambda rng, n: rng.random((n, 2), dtype=np.float32),
    "standard normal": lambda rng, n: rng.standard_normal((n, 2), np.float32),
    "integers": lambda rng, n: rng.integers(7, size=n),
    "integers by position": lambda rng, n: rng.integers(2, 7, (n, 2)),
    "normal": lambda rng, n: rng.normal(0.5, 2.0, size=(n,)),
    "uniform": lambda rng, n: rng.uniform(-1, 1, (n, 3)),
    "gumbel": lambda rng, n: rng.gumbel(size=(n, 4)),
    "exponential": lambda rng, n: rng.exponential(2.0, n),
}


def generators() -> list[np.random.Generator]:
    return [np.random.default_rng(seed) for seed in range(3)]


def joined(parts: list[np.random.Generator]) -> JoinedGenerator:
    return JoinedGenerator(list(zip(parts, SIZES, strict=True)))


@pytest.mark.parametrize("name", DRAWS)
def test_each_row_gets_the_number_that_its_own_generator_gives(name: str) -> None:
    draw, parts, alone = DRAWS[name], generators(), generators()
    rng = joined(parts)
    for _ in range(3):
        expected = np.concatenate([draw(each, size) for each, size in zip(alone, SIZES, strict=True)])
        found = draw(rng, sum(SIZES))
        assert found.dtype == expected.dtype
        assert np.array_equal(found, expected)
    assert [each.bit_generator.state for each in parts] == [each.bit_generator.state for each in alone]


def test_a_single_number_is_the_first_ones_and_all_go_on() -> None:
    parts, alone = generators(), generators()
    expected = [each.integers(2**63) for each in alone]
    assert joined(parts).integers(2**63) == expected[0]
    assert [each.bit_generator.state for each in parts] == [each.bit_generator.state for each in alone]


@pytest.mark.parametrize("shape", [(5,), (2, 6), ()])
def test_draws_that_are_not_for_the_rows_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"for 6 rows; the first axis"):
        joined(generators()).random(shape)


def test_draws_that_cannot_be_divided_are_refused() -> None:
    with pytest.raises(NotImplementedError, match="and not by permutation; use one of those, or InferenceServer"):
        joined(generators()).permutation(6)
