"""Observation normalisation: what is divided by, and what it is worth."""

from __future__ import annotations

import numpy as np
import pytest

from ropewalk.population.observation_statistics import ObservationCollector, ObservationStatistics


def counted(observations: np.ndarray) -> ObservationStatistics:
    statistics = ObservationStatistics(observations.shape[1:], share=1.0)
    statistics.add((len(observations), observations.sum(0), np.square(observations).sum(0)))
    return statistics


def test_many_observations_have_their_mean_and_deviation() -> None:
    observations = np.random.default_rng(3).normal([5.0, -20.0], [0.5, 3.0], (100_000, 2))
    statistics = counted(observations)
    np.testing.assert_allclose(statistics.mean, observations.mean(0), rtol=1e-6)
    np.testing.assert_allclose(statistics.deviation, observations.std(0), rtol=1e-4)


def test_a_component_that_never_changes_is_not_blown_up() -> None:
    statistics = counted(np.full((1_000_000, 1), 5.0))
    assert statistics.deviation == pytest.approx([0.01])
    collector = ObservationCollector(statistics.mean, statistics.deviation, counts=False)
    assert collector.normalise(np.array([5.02])) == pytest.approx([2.0], abs=1e-2)
    assert collector.normalise(np.array([50.0])) == [10.0]


def test_before_anything_is_counted_observations_pass_unchanged() -> None:
    statistics = ObservationStatistics((3,))
    collector = statistics.collector(1, is_test=False)
    assert collector.normalise(np.array([0.5, -2.0, 9.0])).tolist() == [0.5, -2.0, 9.0]
