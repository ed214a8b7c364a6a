"""Four ways to one model: the synchronous one is the single process's, the others reach its loss."""

from __future__ import annotations

import types
from collections.abc import Callable

import pytest

np = pytest.importorskip("numpy")
LoadExample = Callable[[str], types.ModuleType]


def test_the_gradient_is_the_slope_of_the_loss(load_example: LoadExample) -> None:
    example = load_example("parameter_server")
    weights = np.random.default_rng(5).standard_normal(example.FEATURES)
    parts = [example.gradient(weights, *example.samples(trainer)) for trainer in range(example.TRAINERS)]
    for i in (0, 7, 20):
        step = np.zeros(example.FEATURES)
        step[i] = 1e-6
        slope = (example.loss(weights + step) - example.loss(weights - step)) / 2e-6
        assert np.mean(parts, axis=0)[i] == pytest.approx(slope, rel=1e-5)


def test_one_process_learns_most_of_what_the_labels_tell(load_example: LoadExample) -> None:
    example = load_example("parameter_server")
    assert example.loss(np.zeros(example.FEATURES)) == pytest.approx(np.log(2))
    assert example.loss(example.train_here()) < 0.40  # a tenth of the labels is wrong, so it stays above 0.32


def test_the_four_ways_arrive(load_example: LoadExample, mode: str) -> None:
    example = load_example("parameter_server")
    results = example.main(mode=mode)
    expected = results["one process"]
    assert results["synchronous"]["weights"] == pytest.approx(expected["weights"], rel=1e-9)
    assert results["synchronous"]["loss"] == pytest.approx(expected["loss"], rel=1e-9)
    for way in ("asynchronous", "sharded", "cached"):
        assert results[way]["weights"].shape == (example.FEATURES,)
        # Trainers that by bad luck work one after the other end 0.014 above.
        assert results[way]["loss"] == pytest.approx(expected["loss"], abs=0.02)
    pulls = example.TRAINERS * example.STEPS
    assert results["asynchronous"]["pulls"] == pulls
    assert results["sharded"]["pulls"] == pulls * example.SHARDS
    assert results["cached"]["pulls"] < pulls
