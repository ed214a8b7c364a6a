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


def test_what_is_counted_before_the_first_observation_weighs_little() -> None:
    assert counted(np.full((1, 1), 5.0)).mean == pytest.approx([5.0], rel=0.02)


def test_a_collector_tells_how_many_observations_it_saw_and_their_sums() -> None:
    observations = np.random.default_rng(3).normal([5.0, -20.0], [0.5, 3.0], (100, 2))
    statistics = ObservationStatistics((2,), share=1.0)
    collector = statistics.collector(1, is_test=False)
    assert collector.collected
    assert [collector.collected[0], *map(list, collector.collected[1:])] == [0, [0.0, 0.0], [0.0, 0.0]]
    for observation in observations:
        collector.normalise(observation)
    assert collector.collected[0] == 100
    for _ in range(2):
        statistics.add(collector.collected)
    twice = counted(np.concatenate([observations, observations]))
    np.testing.assert_allclose(statistics.mean, twice.mean)
    np.testing.assert_allclose(statistics.deviation, twice.deviation)


def test_observations_are_clipped_on_both_sides() -> None:
    collector = ObservationCollector(np.array([5.0]), np.array([2.0]), counts=False)
    assert [float(collector.normalise(np.array([value]))[0]) for value in (8.0, 24.9, 26.0, -14.9, -16.0)] == [
        *(1.5, 9.95, 10.0, -9.95, -10.0)
    ]
    assert collector.collected is None


def test_a_share_of_the_evaluations_is_counted_and_no_test() -> None:
    def num_counted(statistics: ObservationStatistics, is_test: bool = False) -> int:
        collectors = [statistics.collector(seed, is_test=is_test) for seed in range(2000)]
        return sum(collector.collected is not None for collector in collectors)

    assert num_counted(ObservationStatistics((1,), share=1.0)) == 2000
    assert num_counted(ObservationStatistics((1,), share=1.0), is_test=True) == 0
    assert num_counted(ObservationStatistics((1,), share=0.0)) == 0
    assert 5 < num_counted(ObservationStatistics((1,))) < 50, "one in a hundred by default"
    seeds = [seed for seed in range(500) if ObservationStatistics((1,)).collector(seed, is_test=False).collected]
    again = [seed for seed in range(500) if ObservationStatistics((1,)).collector(seed, is_test=False).collected]
    assert seeds == again, "the seed of the evaluation decides"


@pytest.mark.parametrize("share", [-0.01, 1.01])
def test_a_share_outside_of_0_to_1_is_refused(share: float) -> None:
    with pytest.raises(ValueError, match=f"must be from 0 to 1, not {share}"):
        ObservationStatistics((1,), share=share)


def test_statistics_that_were_saved_go_on_where_they_were() -> None:
    statistics = counted(np.random.default_rng(3).normal(size=(10, 2)))
    state = statistics.state_dict()
    again = ObservationStatistics((2,))
    again.load_state_dict(state)
    for each in (statistics, again):
        each.add((1, np.array([3.0, 4.0]), np.array([9.0, 16.0])))
    assert again.count == statistics.count
    assert (again.mean.tolist(), again.deviation.tolist()) == (statistics.mean.tolist(), statistics.deviation.tolist())
    given = ObservationStatistics((2,), 0.01, statistics.count, statistics.total, statistics.squares)
    assert given.mean.tolist() == statistics.mean.tolist(), "as a worker gets them"


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_an_observation_that_is_not_finite_is_not_counted(value: float) -> None:
    # One made the mean NaN or infinite, and with it every observation of every later evaluation NaN.
    statistics = ObservationStatistics((2,), share=1.0)
    collector = statistics.collector(1, is_test=False)
    for observation in ([1.0, 2.0], [value, 2.0], [3.0, 4.0]):
        collector.normalise(np.array(observation))
    assert collector.collected is not None
    statistics.add(collector.collected)
    assert statistics.mean == pytest.approx([2.0, 3.0], rel=0.01)
    assert np.isfinite(statistics.collector(2, is_test=True).normalise(np.ones(2))).all()
