"""Which rows of the table of runs are shown, and in which order."""

from __future__ import annotations

import math
from typing import Any

from ropewalk.page.runs.row_selection import Row, TableQuery, selected


def row(id: str, **more: Any) -> Row:
    facts: Row = {"name": id, "state": "done", "project": "p", "kind": "script", "labels": "", "created": 1.0,
                  "took": 2.0, "why": "", "host": "", "parent": "", "archived": False}  # fmt: skip
    return {"id": id, **facts, **more}


def ids(rows: list[Row], **query: Any) -> list[str]:
    return [one["id"] for one in selected(rows, TableQuery(**query))]


def test_archived_runs_and_trials_are_shown_when_they_are_asked_for() -> None:
    rows = [row("a"), row("b", archived=True), row("c", kind="trial")]
    assert ids(rows) == ["a"]
    assert ids(rows, trials=True) == ["a", "c"]
    assert ids(rows, archived=True) == ["b"]


def test_each_word_must_be_somewhere() -> None:
    rows = [row("a", **{"config.lr": 0.1}), row("b", why="ValueError: NaN"), row("c", labels="paper")]
    assert ids(rows, text="lr=0.1") == ["a"]
    assert ids(rows, text="valueerror nan") == ["b"]
    assert ids(rows, text="paper nan") == []


def test_filters_of_columns_apply_together() -> None:
    rows = [row(str(at), **{"metric.loss": at, "config.opt": "adam" if at % 2 else "sgd"}) for at in range(5)]
    filters = {"metric.loss": {"filterType": "number", "type": "greaterThan", "filter": 1},
               "config.opt": {"filterType": "text", "type": "equals", "filter": "adam"}}  # fmt: skip
    assert ids(rows, filters=filters) == ["3"]


def test_rows_without_a_value_come_last_in_both_directions() -> None:
    rows = [row("a", **{"metric.x": 2}), row("b"), row("c", **{"metric.x": 1}), row("d", **{"metric.x": math.nan})]
    assert ids(rows, sort=(("metric.x", False),)) == ["c", "a", "b", "d"]
    assert ids(rows, sort=(("metric.x", True),)) == ["a", "c", "b", "d"]


def test_the_first_column_of_a_sort_counts_most() -> None:
    rows = [row("a", project="y", took=1.0), row("b", project="x", took=1.0), row("c", project="x", took=2.0)]
    assert ids(rows, sort=(("project", False), ("took", True))) == ["c", "b", "a"]


def test_numbers_and_texts_in_one_column_can_be_sorted() -> None:
    rows = [row("a", **{"config.x": "auto"}), row("b", **{"config.x": 3}), row("c", **{"config.x": True})]
    assert ids(rows, sort=(("config.x", False),))[0] == "b"


def test_groups_tell_what_is_in_them_and_open_one_by_one() -> None:
    rows = [row("a", project="x", **{"metric.loss": 1.0}), row("b", project="y", state="failed"),
            row("c", project="x", **{"metric.loss": 3.0})]  # fmt: skip
    heads = selected(rows, TableQuery(group="project"))
    assert [(head["group"], head["num"]) for head in heads] == [("x", 2), ("y", 1)]
    assert heads[0]["metric.loss"] == 2.0 and "metric.loss" not in heads[1] and heads[1]["state"] == "1 failed"
    assert ids(rows, group="project", opened=frozenset(["x"])) == ["group x", "a", "c", "group y"]


def test_an_integer_beyond_all_floats_and_losses_that_diverge_do_not_end_the_table() -> None:
    # One run with such a setting, or two with such a loss in a group, and nobody saw the table any more.
    rows = [
        row("a", **{"config.seed": 10**400, "metric.loss": 1e308}),
        row("b", **{"config.seed": 3, "metric.loss": 1e308}),
    ]
    assert ids(rows, sort=(("config.seed", False),)) == ["b", "a"]
    above = {"filterType": "number", "type": "greaterThan", "filter": 5}
    assert ids(rows, filters={"config.seed": above}) == ["a"]
    (group,) = selected(rows, TableQuery(group="project"))
    assert (group["config.seed"], group["metric.loss"]) == (3.0, 1e308)
