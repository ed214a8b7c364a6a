"""The data of the pictures of a search."""

from __future__ import annotations

import math

from ropewalk.page.runs.search_data import (
    history_data,
    parallel_data,
    pareto_data,
    rungs_data,
    state_counts,
    trial_columns,
    trial_rows,
)
from tests.search.test_results import results, trial


def test_each_trial_is_in_the_history() -> None:
    assert history_data(results(trial(0, 1.0), trial(1, None, state="running")))["trials"] == [
        [0, 1.0, "done"], [1, None, "running"],
    ]  # fmt: skip


def test_configurations_have_what_differs_the_most_important_first() -> None:
    trials = [trial(n, float(n), hyperparameters={"a": n, "same": 1, "b": str(n)}) for n in range(3)]
    data, numbers = parallel_data(results(*trials, trial(3, None)), {"b": 0.9, "a": 0.1})
    assert data["names"] == ["b", "a"] and data["rows"][2] == ["2", 2, 2.0] and numbers == [0, 1, 2]


def test_a_front_needs_two_objectives() -> None:
    assert pareto_data(results(trial(0, 1.0))) == {}
    trials = [trial(n, a, values={"a": a, "b": b}) for n, (a, b) in enumerate([(1.0, 2.0), (2.0, 1.0), (0.5, 0.5)])]
    data = pareto_data(results(*trials, trial(3, None), metrics=("a", "b")))
    assert data["front"] == [0, 1] and len(data["trials"]) == 3


def test_rungs_tell_who_was_promoted_with_the_value_there() -> None:
    lines = [
        ["start", 0, {}, 1, 0], ["start", 1, {}, 1, 0], ["report", 0, 1, [0.5]], ["pause", 0, 1],
        ["promote", 0, 3], ["start", 2, {}, None, 0],
    ]  # fmt: skip
    table = results(trial(0, 0.9, scores={1.0: -0.5, 3.0: -0.9}), trial(1, None), trial(2, 0.1), mode="min")
    assert rungs_data(table, lines)["rungs"] == [
        {"bracket": 0, "budget": 1.0, "trials": [[0, 0.5, True], [1, None, False]]},
        {"bracket": 0, "budget": 3.0, "trials": [[0, 0.9, False]]},
    ]
    assert rungs_data(table, [["start", 0, {}, None, 0]]) == {}


def test_keys_of_rows_begin_with_a_word_of_ours() -> None:
    (row,) = trial_rows(results(trial(0, math.nan, hyperparameters={":x": "(1)"}, values={":y": 1.0})))
    assert not any(key.startswith(":") for key in row) and row["best"] == "nan"


def test_columns_of_numbers_are_right_aligned_and_the_best_trial_comes_first() -> None:
    table = results(trial(0, 1.0, hyperparameters={":x": 1, "kind": "a"}), trial(1, 2.0, hyperparameters={":x": 2.5}))
    columns = {column["field"]: column for column in trial_columns(table)}
    assert columns["config.:x"]["type"] == "rightAligned" and "type" not in columns["config.kind"]
    assert columns["best"]["sort"] == "desc" and columns["bracket"]["hide"]
    programs = {value for column in columns.values() for key, value in column.items() if key.startswith(":")}
    assert all(program.startswith("p => ropewalkTable.") for program in programs)


def test_states_are_counted_in_their_order() -> None:
    assert state_counts(["done", "failed", "running", "done"]) == "1 running, 2 done, 1 failed"


def test_trials_that_a_complete_search_left_paused_were_not_promoted():
    found = results(trial(0, 1.0), trial(1, 0.5, state="paused"))
    assert [row["state"] for row in trial_rows(found)] == ["done", "paused"]
    assert [row["state"] for row in trial_rows(found, is_over=True)] == ["done", "not promoted"]
    assert [state for *_, state in history_data(found, is_over=True)["trials"]] == ["done", "not promoted"]
    assert state_counts(["paused", "failed"], is_over=True) == "1 not promoted, 1 failed"
