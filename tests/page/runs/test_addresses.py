"""The address of each view of runs leads to the same view in a browser that has never been there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ropewalk.tracking.records import AttemptBegan, Metrics, StateIs
from ropewalk.tracking.store.opening import open_store
from tests.lab.browser import Browser, ServedPage
from tests.tracking.store.making import begin, of

FETCHED = (
    "return performance.getEntriesByType('resource').filter((e) => e.name.includes('/data/runs?')).map((e) => e.name);"
)
SEEN_CARDS = """
return [...document.querySelectorAll('.curve-card')].filter((card) => card.offsetParent).map(
    (card) => card.querySelector('.text-bold').innerText);"""

LIMITS = """
return getElement(parseInt(document.querySelector('.nicegui-echart').id.slice(1))).chart
    .getModel().getComponent("xAxis", 0).axis.scale.getExtent();"""


@pytest.fixture
def store(tmp_path: Path) -> None:
    with open_store(tmp_path / "runs.db") as made:
        for number in range(3):
            folder = made.folder / f"r{number}"
            (folder / "output").mkdir(parents=True)
            for attempt in (1, 2):
                (folder / "output" / f"{attempt}.txt").write_text(f"INFO of attempt {attempt}\nERROR: no space\n")
            begin(made, f"r{number}", AttemptBegan(1, "h", 1, 1.0), name=f"run-{number}", folder=str(folder),
                  config={"lr": number / 10, "seed": 7})  # fmt: skip
            for step in range(5):
                made.apply(of(f"r{number}", Metrics("", ["loss", "speed"], [0.5 + number, 1.0], float(step), 2.0)))
            made.apply(of(f"r{number}", StateIs("done", 9.0)))


def again(browser: Browser, served: ServedPage) -> None:
    """Open the address that the browser shows as somebody to whom it was sent."""
    address = browser.driver.current_url
    browser.leave()
    browser.forget_cookies()
    browser.open(served.reader_url)
    # The token of a reader is at a path of its own.
    base, reader = served.base, served.reader_url.partition("/?")[0]
    browser.open(address.replace(base, reader))


@pytest.mark.usefixtures("store")
def test_rows_for_the_filters_of_an_address_are_asked_for_once(browser: Browser, served: ServedPage) -> None:
    filters = {"metric.loss": {"filterType": "number", "type": "lessThan", "filter": 2}}
    browser.open(served.url)
    browser.open(f"{served.base}/runs?filters={json.dumps(filters)}")
    text = browser.wait_for("2 runs", "run-0", "run-1")
    assert "run-2" not in text
    assert len(browser.script(FETCHED)) == 1, browser.script(FETCHED)
    assert json.loads(browser.script("return JSON.stringify(ropewalkTable.api.getFilterModel())")) == filters
    browser.script("ropewalkTable.api.setFilterModel(null)")
    browser.wait_for("3 runs", "run-2")
    assert "filters" not in browser.driver.current_url


@pytest.mark.usefixtures("store")
def test_what_is_hidden_and_found_in_a_comparison_is_in_its_address(browser: Browser, served: ServedPage) -> None:
    browser.open(served.url)
    browser.open(f"{served.base}/compare?runs=r0,r1,r2&zoom+%2Floss=1:3")
    browser.until(lambda: [len(chart["series"]) for chart in browser.charts()] == [3, 3], "three lines")
    browser.driver.find_element("css selector", "[aria-label='show curves of run 2']").click()
    browser.until(lambda: [len(chart["series"]) for chart in browser.charts()] == [2, 2], "two lines")
    assert browser.script(LIMITS) == [1, 3]  # with other lines the picture is drawn anew, and keeps its part
    browser.click("equal ones, too")
    browser.driver.find_element("css selector", "[aria-label='find metrics']").send_keys("loss")
    browser.until(lambda: browser.script(SEEN_CARDS) == ["loss"], "one chart")
    browser.until(lambda: "metrics=loss" in browser.driver.current_url, "what is found in the address")
    again(browser, served)
    browser.until(lambda: browser.script(SEEN_CARDS) == ["loss"], "one chart again")
    browser.until(lambda: len(browser.charts()[0]["series"]) == 2, "two lines again")
    assert "seed" in browser.text
    box = browser.driver.find_element("css selector", "[aria-label='show curves of run 2']")
    assert box.get_attribute("aria-checked") == "false"
    box.click()
    browser.until(lambda: len(browser.charts()[0]["series"]) == 3, "all lines")
    assert "hidden" not in browser.driver.current_url


@pytest.mark.usefixtures("store")
def test_what_is_searched_for_in_a_log_is_in_its_address(browser: Browser, served: ServedPage) -> None:
    browser.open(served.url)
    browser.open(f"{served.base}/runs/r1?tab=Logs&attempt=1&level=error")
    text = browser.wait_for("ERROR: no space", "attempt 1", "errors")
    assert "INFO of" not in text
    browser.driver.find_element("css selector", "[aria-label='search in the log']").send_keys("nothing")
    browser.wait_for("no line is like that")
    browser.until(lambda: "find=nothing" in browser.driver.current_url, "what is searched for in the address")
    again(browser, served)
    browser.wait_for("no line is like that", "attempt 1", "errors")
    assert {"attempt=1", "level=error", "find=nothing"} <= set(browser.driver.current_url.partition("?")[2].split("&"))


COLUMNS = """
return ropewalkTable.api.getColumnState().filter((c) => !c.hide && !c.colId.startsWith("ag-Grid")).map(
    (c) => [c.colId, c.width]);"""


@pytest.mark.usefixtures("store")
def test_columns_stay_as_they_were_made_when_those_of_new_runs_come(
    browser: Browser, served: ServedPage, tmp_path: Path
) -> None:
    asked = ["name", "metric.speed", "state", "metric.loss", "config.lr"]
    browser.open(served.url)
    browser.open(f"{served.base}/runs?columns={','.join(asked)}")
    browser.wait_for("3 runs", "run-0")
    assert [id for id, _ in browser.script(COLUMNS)] == asked
    browser.script("""
        ropewalkTable.api.setColumnsVisible(["state"], false);
        ropewalkTable.api.moveColumns(["config.lr"], 2);
        ropewalkTable.api.setColumnWidths([{key: "metric.loss", newWidth: 321}]);""")
    before = browser.script(COLUMNS)
    assert [id for id, _ in before] == ["name", "config.lr", "metric.speed", "metric.loss"]
    with open_store(tmp_path / "runs.db") as made:
        begin(made, "r3", StateIs("done", 9.0), name="run-3")
        made.apply(of("r3", Metrics("", ["another"], [1.0], 1.0, 2.0)))
    browser.wait_for("4 runs", "run-3")
    browser.until(lambda: browser.script("return !!ropewalkTable.api.getColumn('metric.another')"), "the new column")
    assert browser.script(COLUMNS) == before
