"""Sum trees of both implementations against running sums of their leaves."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk.rl.replay.selectors import sum_tree, sum_tree_numpy
from ropewalk.rl.replay.selectors.sum_tree import COMPILED_FROM, SumTree

HAS_NUMBA = importlib.util.find_spec("numba") is not None
needs_numba = pytest.mark.skipif(not HAS_NUMBA, reason="numba is not installed: pip install 'ropewalk[exchange]'")
FEW, MANY = 10, COMPILED_FROM
VALUES = st.one_of(st.just(0.0), st.floats(1e-12, 1e12), st.sampled_from([1e-290, 1e290, 1.0]))
CHANGES = st.lists(st.lists(st.tuples(st.integers(0, 700), VALUES), min_size=1, max_size=20), min_size=1, max_size=8)


@pytest.fixture(params=[FEW, pytest.param(MANY, marks=needs_numba)], ids=["numpy", "numba"])
def tree(request: pytest.FixtureRequest) -> SumTree:
    return SumTree(request.param)


def built_from(leaves: np.ndarray) -> SumTree:
    tree = SumTree(FEW)
    tree.reserve(len(leaves))
    tree.set(np.arange(len(leaves)), leaves)
    return tree


@needs_numba
def test_large_trees_are_compiled_and_small_ones_are_not() -> None:
    assert SumTree(MANY)._loops is not sum_tree_numpy
    assert SumTree(MANY - 1)._loops is sum_tree_numpy


def test_without_numba_numpy_serves_large_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sum_tree, "_compiled", lambda: None)
    assert SumTree(MANY)._loops is sum_tree_numpy


@pytest.mark.parametrize("size", [FEW, pytest.param(MANY, marks=needs_numba)])
@settings(max_examples=50, deadline=None)
@given(CHANGES)
def test_after_any_changes_the_tree_is_the_one_built_from_its_leaves(
    size: int, changes: list[list[tuple[int, float]]]
) -> None:
    tree, leaves = SumTree(size), np.zeros(0)
    for some in changes:
        numbers, values = np.array([leaf for leaf, _ in some]), np.array([value for _, value in some])
        tree.reserve(int(numbers.max()) + 1)
        tree.set(numbers, values)
        leaves = np.append(leaves, np.zeros(max(0, tree.capacity - len(leaves))))
        for leaf, value in some:
            leaves[leaf] = value
    np.testing.assert_array_equal(tree.leaves, leaves)
    np.testing.assert_array_equal(tree._tree, built_from(tree.leaves)._tree)
    np.testing.assert_allclose(tree.total, leaves.sum(), rtol=1e-12)


@pytest.mark.parametrize("size", [FEW, pytest.param(MANY, marks=needs_numba)])
@settings(max_examples=60, deadline=None)
@given(st.lists(VALUES, min_size=1, max_size=300), st.integers(0, 1 << 30))
def test_targets_find_the_leaf_of_the_running_sum(size: int, values: list[float], seed: int) -> None:
    leaves = np.array([*values, 1.0])
    tree = SumTree(size)
    tree.reserve(len(leaves))
    tree.set(np.arange(len(leaves)), leaves)
    targets = np.random.default_rng(seed).random(50) * tree.total
    found = tree.find(targets)
    sums = np.concatenate([[0.0], np.cumsum(leaves)])
    slack = 1e-12 * tree.total
    assert np.all(leaves[found] > 0)
    assert np.all(sums[found] <= targets + slack) and np.all(targets <= sums[found + 1] + slack)


def test_integers_are_found_exactly(tree: SumTree) -> None:
    leaves = np.random.default_rng(0).integers(0, 4, 1000).astype(np.float64)
    tree.reserve(1000)
    tree.set(np.arange(1000), leaves)
    targets = np.arange(int(leaves.sum()))
    np.testing.assert_array_equal(tree.find(targets.astype(np.float64)), np.repeat(np.arange(1000), leaves.astype(int)))


def test_no_target_finds_an_empty_leaf_even_at_the_very_end(tree: SumTree) -> None:
    rng = np.random.default_rng(1)
    for size in (1, 15, 16, 17, 255, 256, 257, 5000):
        leaves = np.where(rng.random(size) < 0.3, rng.random(size), 0.0)
        leaves[rng.integers(size)] = 0.1
        tree.clear()
        tree.reserve(size)
        tree.set(np.arange(size), leaves)
        total = tree.total
        ends = np.array([0.0, np.nextafter(total, 0), total, np.nextafter(total, np.inf), 2 * total])
        found = tree.find(ends)
        assert np.all(leaves[found] > 0)
        assert found[0] == np.flatnonzero(leaves)[0]
        assert found[2:].tolist() == [np.flatnonzero(leaves)[-1]] * 3


@needs_numba
@settings(max_examples=50, deadline=None)
@given(st.integers(1, 3000), st.integers(0, 1 << 30))
def test_both_implementations_have_the_same_bits(size: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    trees = SumTree(FEW), SumTree(MANY)
    for _ in range(3):
        numbers = rng.integers(0, size, 40)
        values = np.where(rng.random(40) < 0.2, 0.0, 10.0 ** rng.uniform(-9, 9, 40))
        for tree in trees:
            tree.reserve(size)
            tree.set(numbers, values)
    plain, fast = trees
    np.testing.assert_array_equal(plain._tree, fast._tree)
    if plain.total > 0:
        targets = rng.random(200) * plain.total
        np.testing.assert_array_equal(plain.find(targets), fast.find(targets))


def test_growing_keeps_leaves_and_sums(tree: SumTree) -> None:
    values = np.random.default_rng(2).random(3000)
    for size in range(1, 3000, 97):
        tree.reserve(size)
        tree.set(np.array([size - 1]), values[size - 1 : size])
    np.testing.assert_array_equal(tree._tree, built_from(tree.leaves)._tree)
    np.testing.assert_array_equal(np.flatnonzero(tree.leaves), np.arange(0, 3000, 97))
