"""The report of a run and of a search of the store."""

from __future__ import annotations

from pathlib import Path

import pytest

from ropewalk.errors import RunNotFound
from ropewalk.html_table import StateCell
from ropewalk.page.report_document import ReportChart, ReportDocument, ReportTable, ReportText
from ropewalk.page.run_report import run_document
from ropewalk.page.style import Style
from ropewalk.tracking.records import (
    AttemptBegan,
    AttemptEnded,
    CheckpointKept,
    EventHappened,
    Metrics,
    NoteAdded,
    Record,
    RunRecord,
    StateIs,
)
from tests.tracking.store.making import NOW, created, new_store


@pytest.fixture
def where(tmp_path: Path) -> str:
    """A store with one run that has failed."""
    config = {"lr": 0.1, "model": {"depth": 3}}
    facts = {"host": "n1", "diff": "line one\nline two"}
    records: list[Record] = [
        created(name="brisk-otter", config=config, facts=facts),
        *(Metrics("", ["loss", "accuracy"], [1 / step, step / 9], step, NOW + step) for step in range(1, 10)),
        *(Metrics("validation", ["loss"], [2 / step], step, NOW + step) for step in (3, 6, 9)),
        *(Metrics("system", ["cpu_percent"], [50.0], step, NOW + step) for step in (5, 10)),
        Metrics("system", ["once"], [50.0], 5, NOW),
        NoteAdded("a remark", NOW),
        AttemptBegan(1, "n1", 77, NOW),
        CheckpointKept(6, "checkpoints/6", 3 << 20, NOW + 60),
        EventHappened("checkpoint", "written", NOW + 60),
        AttemptEnded(1, "failed", NOW + 90, "Traceback\nMemoryError", "MemoryError", 9),
        StateIs("failed", NOW + 90, "it ran out of memory"),
    ]
    with new_store(tmp_path) as store:
        store.apply([RunRecord("a1", record) for record in records])
        return store.where


def charts(document: ReportDocument) -> dict[str, ReportChart]:
    return {part.title: part for part in document.parts if isinstance(part, ReportChart)}


def tables(document: ReportDocument) -> dict[str, ReportTable]:
    return {part.title: part for part in document.parts if isinstance(part, ReportTable) and part.rows}


def test_the_header_says_what_the_run_is_and_why_it_failed(where: str) -> None:
    document = run_document("brisk-otter", where, NOW + 1000)
    assert (document.name, document.kind, document.state) == ("brisk-otter", "script", "failed")
    assert document.failure == "it ran out of memory"
    facts = dict(document.facts)
    assert facts["run"] == "a1" and facts["project"] == "digits" and facts["took"] == "1m30s"


def test_a_paused_run_does_not_go_on_in_its_report(tmp_path: Path) -> None:
    with new_store(tmp_path) as store:
        store.apply([RunRecord("p", created()), RunRecord("p", StateIs("paused", NOW + 90))])
        where = store.where
    facts = dict(run_document("p", where, NOW + 1000).facts)
    assert facts["took"] == "1m30s" and "running for" not in facts


def test_each_metric_is_a_chart_in_which_groups_are_lines(where: str) -> None:
    found = charts(run_document("a1", where))
    assert list(found) == ["accuracy", "loss", "system/cpu_percent"]  # one point of a system makes no curve
    option = found["loss"].option(Style())
    assert [series["name"] for series in option["series"]] == ["training", "validation"]
    assert option["series"][1]["data"] == [[3.0, 0.666667], [6.0, 0.333333], [9.0, 0.222222]]
    assert found["system/cpu_percent"].option(Style())["xAxis"]["name"] == "time (s)"


def test_steps_that_were_done_again_after_a_death_are_drawn_once(tmp_path: Path) -> None:
    with new_store(tmp_path) as store:
        store.apply([RunRecord("r", created())])
        for number, step in enumerate((1, 2, 3, 2, 3, 4)):
            store.apply([RunRecord("r", Metrics("", ["loss"], [float(number)], step, NOW + number))])
        where = store.where
    (line,) = charts(run_document("r", where))["loss"].option(Style())["series"]
    assert line["data"] == [[1.0, 0.0], [2.0, 3.0], [3.0, 4.0], [4.0, 5.0]]


def test_settings_metrics_and_facts_are_tables_and_long_facts_texts(where: str) -> None:
    document = run_document("a1", where)
    found = tables(document)
    assert list(found["Configuration"].rows) == [("lr", "0.1"), ("model.depth", "3")]
    first = dict(zip(found["Metrics"].head, found["Metrics"].rows[1], strict=True))
    assert (first["group"], first["metric"], first["last"], first["points"]) == ("training", "loss", "0.111111", "9")
    assert ("host", "n1") in found["Code, host and packages"].rows
    texts = {part.title: part.text for part in document.parts if isinstance(part, ReportText)}
    assert texts["diff"] == "line one\nline two"
    assert "a remark" in texts.values()


def test_attempts_checkpoints_and_events_are_tables(where: str) -> None:
    found = tables(run_document("a1", where))
    attempt = dict(zip(found["Attempts"].head, found["Attempts"].rows[0], strict=True))
    assert attempt["outcome"] == StateCell("failed") and attempt["cause"] == "Traceback\nMemoryError"
    assert (attempt["host"], attempt["pid"], attempt["to step"], attempt["took"]) == ("n1", "77", "9", "1m30s")
    assert found["Checkpoints"].rows[0][:2] == ("6", "3 MiB")
    assert found["Events"].rows[0][1:] == ("checkpoint", "written")


def test_runs_that_belong_to_a_run_are_listed(tmp_path: Path) -> None:
    with new_store(tmp_path) as store:
        store.apply([RunRecord("p", created(name="parent"))])
        store.apply([RunRecord(f"c{n}", created(name=f"child-{n}", parent="p", kind="trial")) for n in range(3)])
        where = store.where
    rows = tables(run_document("p", where))["Runs that belong to it"].rows
    assert [row[0] for row in rows] == ["c0", "c1", "c2"]


def test_a_search_without_trials_has_a_report(tmp_path: Path) -> None:
    config = {"metric": ["loss"], "mode": ["min"], "scheduler": "none"}
    with new_store(tmp_path) as store:
        store.apply([RunRecord("s", created(name="lr", kind="search", config=config))])
        where = store.where
    document = run_document("s", where)
    assert document.kind == "search"
    assert dict(document.facts)["trials"] == "0"
    assert not any(chart.option(Style()) for chart in charts(document).values())


def test_an_unknown_run_is_an_error(where: str) -> None:
    with pytest.raises(RunNotFound):
        run_document("nobody", where)
