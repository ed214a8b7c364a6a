"""The panels of experiments: points far enough apart, rates between them, replay against its limits, lags of blocks."""

from __future__ import annotations

import math
from typing import Any

import pytest

from ropewalk.rl.deliveries import ActorFacts, lag_edges
from ropewalk.rl.replay.limiters.min_size import MinSize
from ropewalk.rl.replay.limiters.sample_to_insert import SampleToInsertRatio
from ropewalk.rl.replay.selectors.ordered import Fifo
from ropewalk.rl.replay.selectors.uniform import Uniform
from ropewalk.rl.replay.table import ReplayTable
from ropewalk.rl.replay.table_info import TableInfo
from ropewalk.rl.result import EvaluationScores
from ropewalk.rl.view import (
    NumberedEvaluation,
    NumberedRow,
    facts_of,
    replay_panel,
    replay_point,
    replay_settings,
    returns_panel,
    spaced,
    staleness_panel,
    throughput_panel,
)

SETTINGS: dict[str, Any] = {"total_steps": 1000, "stop_at": None}


def row(number: int, seconds: float, **more: Any) -> NumberedRow:
    """A row after a number of seconds, in each of which there are 100 steps and 10 updates."""
    counts = {"steps": int(100 * seconds), "updates": int(10 * seconds), "episodes": number, "score": 1.5 * number}
    return NumberedRow(number, {"seconds": seconds, **counts, **more})


def info(size: int, inserts: int, samples: int) -> TableInfo:
    return TableInfo("replay", size, 100, 8 * size, inserts, samples, inserts - size, "", "the table is empty")


def test_points_are_half_a_second_apart_at_least() -> None:
    rows = [row(number, number / 10) for number in range(21)]
    assert [each.seconds for each in spaced(rows, None)] == [0.0, 0.5, 1.0, 1.5, 2.0]
    assert [each.seconds for each in spaced(rows[6:], rows[5])] == [1.0, 1.5, 2.0]
    assert spaced(rows[6:8], rows[5]) == []
    assert [each.seconds for each in spaced(rows, None, least_s=1.0)] == [0.0, 1.0, 2.0]


def test_the_last_point_of_a_run_that_is_over_is_there_anyway() -> None:
    rows = [row(0, 0.0), row(1, 0.1)]
    assert spaced(rows, None, is_over=True) == rows and spaced(rows, None) == rows[:1]


def test_a_run_of_hours_has_no_more_points_than_a_screen() -> None:
    rows = [row(number, number / 2) for number in range(36_000)]
    assert 1500 < len(spaced(rows, None)) <= 2001


def test_returns_are_those_of_the_rows() -> None:
    data = returns_panel([row(0, 0.0, score=None), row(3, 1.0)], [], 0, SETTINGS)
    assert data == {
        "cursor": 4,
        "steps": [0, 100],
        "seconds": [0.0, 1.0],
        "score": [None, 4.5],
        "episodes": [0, 3],
        "evaluations": [],
        **SETTINGS,
    }


def test_each_evaluation_comes_once_with_the_point_that_follows_it() -> None:
    evaluations = [
        NumberedEvaluation(number, EvaluationScores(100 * number, number, (1.0, 2.0, 6.0))) for number in (0, 3, 4, 7)
    ]
    first = returns_panel([row(0, 0.0), row(3, 1.0)], evaluations, 0, SETTINGS)
    assert [each["steps"] for each in first["evaluations"]] == [0, 300]
    assert first["evaluations"][0] == {"steps": 0, "mean": 3.0, "worst": 1.0, "best": 6.0, "episodes": 3}
    second = returns_panel([row(8, 2.0)], evaluations, first["cursor"], SETTINGS)
    assert [each["steps"] for each in second["evaluations"]] == [400, 700]
    assert returns_panel([], evaluations, second["cursor"], SETTINGS)["evaluations"] == []


def test_rates_are_the_rise_between_points() -> None:
    data = throughput_panel([row(1, 1.0), row(2, 3.0, bound="actor-bound")], None, 0, 64)
    assert data["seconds"] == [3.0] and data["env_steps_per_s"] == [100.0]
    assert data["updates_per_s"] == [10.0] and data["samples_per_s"] == [640.0]
    assert data["bound"] == "actor-bound" and data["cursor"] == 3
    after = throughput_panel([row(3, 4.0)], row(2, 3.0), 3, 64)
    assert after["seconds"] == [4.0] and after["env_steps_per_s"] == [100.0]


def test_counts_that_go_back_with_a_learner_that_died_are_no_negative_rate() -> None:
    assert throughput_panel([row(5, 6.0, steps=50)], row(4, 5.0), 5, 1)["env_steps_per_s"] == [0.0]


def test_samples_per_insert_are_those_since_the_last_point() -> None:
    first = replay_point("replay", info(10, 10, 0), 1.0, None)
    second = replay_point("replay", info(20, 30, 80), 2.0, info(10, 10, 0))
    assert first["samples_per_insert"] == 0 and second["samples_per_insert"] == 4.0
    assert (second["size"], second["inserts"], second["samples"], second["bytes"]) == (20, 30, 80, 160)
    nothing_new = replay_point("replay", info(20, 30, 90), 3.0, info(20, 30, 80))
    assert nothing_new["samples_per_insert"] is None
    made_anew = replay_point("replay", info(5, 5, 10), 4.0, info(20, 30, 90))
    assert made_anew["samples_per_insert"] == 2.0


def test_a_table_is_shown_with_the_limits_of_its_limiter() -> None:
    def table(limiter: Any) -> ReplayTable:
        return ReplayTable("replay", sampler=Uniform(), remover=Fifo(), max_size=100, limiter=limiter)

    ratio = replay_settings([table(SampleToInsertRatio(8.0, 10))])["replay"]
    assert (ratio["target"], ratio["min_size"], ratio["min_diff"], ratio["max_diff"]) == (8.0, 10, 72.0, 88.0)
    free = replay_settings([table(MinSize(10))])["replay"]
    assert (free["target"], free["min_size"], free["min_diff"], free["max_diff"]) == (None, 10, None, None)
    data = replay_panel([{"size": 1}, {"size": 2}], 5, {"replay": info(2, 2, 0)}, {"replay": ratio}, 6)
    assert data["points"] == [{"size": 2}] and data["cursor"] == 7
    assert data["tables"]["replay"] == {
        "size": 2,
        "max_size": 100,
        **ratio,
        "insert_waits_for": "",
        "sample_waits_for": "the table is empty",
    }


def test_lags_of_blocks_are_counted_in_bins() -> None:
    actors = {1: ActorFacts(blocks=5, stale=2, lag=9, lag_max=12), 0: ActorFacts(blocks=3)}
    data = staleness_panel(actors, {0: [3], 1: [1, 0, 4]}, {"policy_lag": 2.5, "policy_lag_max": 7.0}, "updates")
    assert data["edges"] == [0, 1, 2] and data["unit"] == "updates"
    assert [(each["actor"], each["counts"]) for each in data["actors"]] == [(0, [3, 0, 0]), (1, [1, 0, 4])]
    assert data["actors"][1] | {"counts": 0} == {
        "actor": 1,
        "counts": 0,
        "last": 9,
        "max": 12,
        "blocks": 5,
        "dropped": 2,
        "refused": 0,
        "lives": 0,
    }
    assert data["batches"] == {"mean": 2.5, "max": 7.0}


def test_in_lockstep_there_are_batches_alone() -> None:
    data = staleness_panel({}, {}, {"policy_lag": math.nan}, "rounds")
    assert data == {"unit": "rounds", "edges": [], "actors": [], "batches": {"mean": None, "max": None}}


def test_edges_double() -> None:
    assert lag_edges(8) == [0, 1, 2, 3, 5, 9, 17, 33] and lag_edges(1) == [0] and lag_edges(0) == []


def test_the_header_has_the_newest_counts_and_the_rate_between_two_rows() -> None:
    evaluations = [NumberedEvaluation(0, EvaluationScores(0, 0, (score,))) for score in (7.0, 3.0)]
    facts = facts_of([row(1, 1.0), row(2, 2.0, bound="learner-bound", lag=None)], evaluations, {"environment": "<b>"})
    assert facts == {
        "environment": "<b>",
        "env_steps": 200,
        "return": 3.0,
        "episodes": 2,
        "updates": 20,
        "env_steps_per_s": 100.0,
        "updates_per_s": 10.0,
        "evaluation": 3.0,
        "best_evaluation": 7.0,
        "bound": "learner-bound",
    }
    assert facts_of([], [], {"a": 1}) == {"a": 1}


@pytest.mark.parametrize("score", [None, math.inf])
def test_a_return_that_is_no_number_is_left_out(score: float | None) -> None:
    assert "return" not in facts_of([row(1, 1.0, score=score)], [], {})
