"""Ten thousand runs in the table, in a real browser, which gets the rows that are seen."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ropewalk.tracking import open_store
from ropewalk.tracking.records import Metrics, RunCreated, RunRecord, StateIs
from tests.lab.browser import Browser, ServedPage

NUM = 10_000
SHOWN = "return Array.from(document.querySelectorAll('.ag-pinned-left-cols-container a')).map((a) => a.innerText);"
FETCHED = "return performance.getEntriesByType('resource').filter((e) => e.name.includes('/data/runs?')).length;"


def records(number: int) -> Iterator[RunRecord]:
    run, now = f"run{number:05d}", time.time()
    yield RunRecord(run, RunCreated("digits", f"name-{number}", "script", now, {"lr": 1e-3}, {"argv": ["train.py"]}))
    yield RunRecord(run, Metrics("", ["loss"], [float(number)], 1.0, now))
    yield RunRecord(run, StateIs("done", now))


@pytest.fixture
def store(tmp_path: Path) -> None:
    with open_store(tmp_path / "runs.db") as made:
        for begin in range(0, NUM, 1000):
            made.apply([record for number in range(begin, begin + 1000) for record in records(number)])


@pytest.mark.usefixtures("store")
def test_ten_thousand_runs_are_sorted_filtered_and_scrolled(browser: Browser, served: ServedPage) -> None:
    browser.open(served.url)
    browser.open(f'{served.base}/runs?sort=[{{"colId":"metric.loss","sort":"desc"}}]')
    browser.wait_for(f"{NUM:,} runs")
    names = browser.until(lambda: browser.script(SHOWN), "rows")
    assert names[:2] == [f"name-{NUM - 1}", f"name-{NUM - 2}"]
    assert len(names) < 200 and browser.script(FETCHED) == 1, "the block asked for ahead was of use, and no other came"
    browser.script(f"ropewalkTable.api.ensureIndexVisible({NUM - 1});")
    browser.until(lambda: "name-0" in browser.script(SHOWN), "the last run")
    browser.script("ropewalkTable.set({q: 'name-1234'});")
    browser.wait_for("1 run", "name-1234")
