"""All that a store has of a run, and runs beside each other."""

from __future__ import annotations

from pathlib import Path

from ropewalk.tracking.records import Metrics, NoteAdded
from ropewalk.tracking.run_reports import Comparison, RunReport, flattened
from tests.tracking.store.making import begin, new_store, of


def test_a_report_has_curves_of_some_points(tmp_path: Path) -> None:
    with new_store(tmp_path) as store:
        begin(store, "a", NoteAdded("good", 1.0), facts={"argv": ["train.py"]})
        store.apply([one for at in range(100) for one in of("a", Metrics("", ["loss"], [at], at, at))])
        report = RunReport.of(store, store.run("a"), 10)
        assert report.facts == {"argv": ["train.py"]} and report.notes[0].text == "good"
        assert len(report.curves["", "loss"]) <= 10 and RunReport.of(store, store.run("a")).curves == {}


def test_runs_differ_in_some_settings(tmp_path: Path) -> None:
    with new_store(tmp_path) as store:
        begin(store, "a", config={"lr": 0.1, "model": {"depth": 2}})
        begin(store, "b", config={"lr": 0.1, "model": {"depth": 4}, "new": 1})
        runs = [store.run("a"), store.run("b")]
        last = {"a": {"loss": 0.5}, "b": {}}
        differing = Comparison.of(runs, last, everything=False)
        assert differing.config == {"model.depth": [2, 4], "new": [None, 1]}
        assert differing.metrics == {"loss": [0.5, None]}
        assert list(Comparison.of(runs, last, everything=True).config) == ["lr", "model.depth", "new"]


def test_nested_settings_get_dotted_names() -> None:
    assert flattened({"a": {"b": {"c": 1}}, "d": {}}) == {"a.b.c": 1, "d": {}}
