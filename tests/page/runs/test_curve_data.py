"""What charts of curves get: smoothed, cut and decimated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ropewalk.page.runs.curve_data import CurveReader, CurveRun, CurveView, effective, line, smoothed
from ropewalk.tracking.records import Metrics
from ropewalk.tracking.store.blocks import Points
from tests.tracking.store.making import NOW, begin, new_store, of


@pytest.mark.parametrize("weight", [0.1, 0.6, 0.99])
def test_smoothing_is_the_average_with_bias_correction(weight: float) -> None:
    values = np.random.default_rng(0).normal(5.0, 1.0, 5000)
    average, expected = 0.0, list[float]()
    for count, value in enumerate(values, 1):
        average = weight * average + (1 - weight) * value
        expected.append(average / (1 - weight**count))
    assert np.allclose(smoothed(values, weight), expected, rtol=1e-9)


def test_the_first_smoothed_value_is_the_first_value() -> None:
    assert smoothed(np.array([3.0, 3.0, 3.0]), 0.9) == pytest.approx([3.0, 3.0, 3.0])


def test_values_that_are_not_finite_are_gaps_that_do_not_spread() -> None:
    found = smoothed(np.array([1.0, np.nan, np.inf, 1.0]), 0.5)
    assert found[[0, 3]] == pytest.approx([1.0, 1.0]) and np.isnan(found[1:3]).all()


def test_a_spike_of_a_million_points_is_seen_and_its_surroundings_when_zoomed() -> None:
    steps = np.arange(1e6)
    values = np.zeros(10**6)
    values[543_210] = 9.0
    whole = line(steps, values, 0.0, None, 1000)["points"]
    assert len(whole) <= 1000 and [543_210.0, 9.0] in whole
    part = line(steps, values, 0.0, (543_200.0, 543_220.0), 1000)["points"]
    assert [x for x, _ in part] == list(range(543_199, 543_222))


def test_a_smoothed_part_is_smoothed_with_what_was_before_it() -> None:
    steps, values = np.arange(100.0), np.linspace(0.0, 1.0, 100)
    whole = line(steps, values, 0.9, None, 1000)["points"]
    part = line(steps, values, 0.9, (50.0, 60.0), 1000)
    assert part["points"] == whole[49:62] and part["raw"] is not None


def test_steps_that_were_done_again_are_drawn_once() -> None:
    steps = np.array([1.0, 2, 3, 4, 3, 4, 5, 5])
    assert steps[effective(steps)].tolist() == [1, 2, 3, 4, 5, 5]
    assert effective(steps).tolist() == [True, True, False, False, True, True, True, True]
    assert effective(np.array([])).tolist() == []


def test_a_part_without_points_is_empty() -> None:
    assert line(np.arange(3.0), np.zeros(3), 0.0, (10.0, 20.0), 100)["points"] == []


def test_a_part_between_two_points_has_the_line_between_them() -> None:
    assert line(np.arange(3.0), np.ones(3), 0.0, (0.2, 0.8), 100)["points"] == [[0.0, 1.0], [1.0, 1.0]]


def test_only_new_points_of_a_run_that_goes_on_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with new_store(tmp_path) as store:
        begin(store, "a", time=NOW)
        reader, num_read, points = CurveReader(), list[int](), store.points

        def read(*args: Any, **more: Any) -> Points:
            found = points(*args, **more)
            num_read.append(len(found))
            return found

        monkeypatch.setattr(store, "points", read)
        for first, last in ((0, 50), (50, 75), (75, 100)):
            store.apply(
                [one for at in range(first, last) for one in of("a", Metrics("", ["loss"], [at], at, NOW + at))]
            )
            kept = reader.points(store, "a", store.series("a")[0])
        assert num_read == [50, 25, 25]
        assert kept.values.tolist() == list(range(100))
        # A process whose clock is late: all are in the order of time, as if they had been read together.
        store.apply(of("a", Metrics("", ["loss"], [-1.0], 0.5, NOW - 1)))
        assert reader.points(store, "a", store.series("a")[0]).values.tolist() == [-1, *range(100)]
        assert num_read == [50, 25, 25, 1]


def test_a_chart_reads_the_runs_that_it_is_given(tmp_path: Path) -> None:
    with new_store(tmp_path) as store:
        for run, start in (("a", NOW), ("b", NOW + 100)):
            begin(store, run, time=start)
            store.apply([one for at in range(5) for one in of(run, Metrics("", ["loss"], [at], at, start + 60 * at))])
        reader = CurveReader()
        runs = [(CurveRun(run, run, NOW + 100 * at, at), store.series(run)[0]) for at, run in enumerate("ab")]
        data = reader.chart(store, runs, CurveView(), None, 100)
        assert data["range"] == (0.0, 4.0) and [one["name"] for one in data["lines"]] == ["a", "b"]
        data = reader.chart(store, runs, CurveView(x="time"), None, 100)
        assert data["x"] == "time (min)" and data["lines"][1]["points"][-1] == [4.0, 4.0]
        # A part is in seconds whatever the unit: as a run goes on, seconds become minutes, and the address stays.
        data = reader.chart(store, runs, CurveView(x="time"), (120.0, 150.0), 100)
        assert (data["unit"], [x for x, _ in data["lines"][1]["points"]]) == (60.0, [1.0, 2.0, 3.0])
        store.apply(of("a", Metrics("", ["loss"], [9.0], 9.0, NOW + 999)))
        runs = [(runs[0][0], store.series("a")[0])]
        assert reader.chart(store, runs, CurveView(), None, 100)["lines"][0]["points"][-1] == [9.0, 9.0]
