"""The table of runs follows the store."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ropewalk.page.runs.row_selection import TableQuery
from ropewalk.page.runs.run_table import RunTable
from ropewalk.process_start import start_ticks
from ropewalk.tracking.records import ConfigIs, LabelsAre, Metrics, StateIs
from ropewalk.tracking.store.store import RunStore
from tests.tracking.store.making import begin, new_store, of, own_process


@pytest.fixture
def store(tmp_path: Path) -> Any:
    with new_store(tmp_path) as made:
        yield made


def rows(table: RunTable, **query: Any) -> dict[str, dict[str, Any]]:
    return {row["id"]: row for row in table.select(TableQuery(**query))}


def loss(run: str, value: float) -> Any:
    return of(run, Metrics("", ["loss"], [value], 1.0, 2.0))


def test_rows_have_the_settings_and_last_metrics_of_their_runs(store: RunStore) -> None:
    begin(store, "a", config={"lr": 0.1, "model": {"depth": 2}}, labels=["x", "y"])
    store.apply([*loss("a", 0.5), *of("a", Metrics("valid", ["acc"], [0.9], 1.0, 2.0)),
                 *of("a", Metrics("system", ["cpu"], [1.0], 1.0, 2.0))])  # fmt: skip
    table = RunTable()
    table.refresh(store)
    row = rows(table)["a"]
    assert (row["config.lr"], row["config.model.depth"], row["labels"]) == (0.1, 2, "x, y")
    assert (row["metric.loss"], row["metric.valid/acc"]) == (0.5, 0.9) and "metric.system/cpu" not in row


def test_a_refresh_without_a_change_keeps_the_version(store: RunStore) -> None:
    begin(store, "a", StateIs("done", 2.0))
    table = RunTable()
    assert table.refresh(store) == table.refresh(store) == 1


def test_what_changes_is_read(store: RunStore) -> None:
    begin(store, "a", own_process(), StateIs("running", 2.0))
    begin(store, "b", StateIs("done", 2.0))
    table = RunTable()
    table.refresh(store)
    store.apply(loss("a", 0.5))
    table.refresh(store)
    assert rows(table)["a"]["metric.loss"] == 0.5
    store.apply(of("a", StateIs("failed", 3.0, "Traceback\nValueError: bad")))
    store.apply(of("b", LabelsAre(["paper"])))
    table.refresh(store)
    assert (rows(table)["a"]["state"], rows(table)["a"]["why"]) == ("failed", "ValueError: bad")
    assert rows(table)["b"]["labels"] == "paper"
    store.archive("b")
    table.refresh(store)
    assert set(rows(table)) == {"a"} and set(rows(table, archived=True)) == {"b"}
    store.delete("a")
    begin(store, "c")
    table.refresh(store)
    assert set(rows(table)) == {"c"}


def test_runs_that_became_lost_are_noticed_and_not_read_again_and_again(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        ticks = start_ticks(process.pid)
        owner = msgspec.structs.replace(own_process(), pid=process.pid, start_ticks=ticks)
        begin(store, "a", owner, StateIs("running", 2.0))
        table = RunTable()
        table.refresh(store)
        assert rows(table)["a"]["state"] == "running"
        assert process.stdin
        process.stdin.close()
    table.refresh(store)
    assert rows(table)["a"]["state"] == "lost"
    monkeypatch.setattr(store, "runs", lambda **_: pytest.fail("runs are read although none has changed"))
    table.refresh(store)


def test_columns_are_those_of_frequent_metrics_and_of_settings_that_differ(store: RunStore) -> None:
    for number in range(3):
        begin(store, f"r{number}", config={"lr": number, "same": 1, "opt": "adam"})
        store.apply(loss(f"r{number}", 0.5))
    table = RunTable()
    table.refresh(store)
    shown = {column.id: column.is_usual for column in table.columns if "." in column.id}
    assert shown == {"metric.loss": True, "config.lr": True, "config.same": False, "config.opt": False}
    numbers = {column.id for column in table.columns if column.is_number and "." in column.id}
    assert numbers == {"metric.loss", "config.lr", "config.same"}
    store.apply(of("r0", ConfigIs({"late": 1})))
    store.archive("r1")  # the run is done, and nobody hears it otherwise
    table.refresh(store)
    assert "config.late" in {column.id for column in table.columns}


def test_the_column_of_projects_is_shown_where_there_are_several(store: RunStore) -> None:
    begin(store, "a", StateIs("done", 2.0), project="digits")
    table = RunTable()
    table.refresh(store)
    assert not {column.id: column.is_usual for column in table.columns}["project"]
    begin(store, "b", StateIs("done", 2.0), project="letters")
    table.refresh(store)
    assert {column.id: column.is_usual for column in table.columns}["project"]


def test_settings_of_runs_are_shown_and_those_of_searches_are_not_unless_there_is_nothing_else(store: RunStore) -> None:
    for at in range(2):
        begin(store, f"s{at}", kind="search", config={"metric": ["loss", "cost"], "seed": at})
    table = RunTable()
    table.refresh(store)
    assert rows(table)["s0"]["config.metric"] == "loss, cost"
    assert {one.id for one in table.columns if one.is_usual and one.id.startswith("config.")} == {"config.seed"}
    for at in range(2):
        begin(store, f"r{at}", config={"lr": at})
    table.refresh(store)
    assert {one.id for one in table.columns if one.is_usual and one.id.startswith("config.")} == {"config.lr"}
    assert "config.seed" in {one.id for one in table.columns}
