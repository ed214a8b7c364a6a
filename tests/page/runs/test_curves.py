"""The curves of a run in a real browser: many of them, enlarged, and zoomed into while the run goes on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ropewalk.tracking.records import Metrics
from ropewalk.tracking.store.opening import open_store
from ropewalk.tracking.store.store import RunStore
from tests.lab.browser import Browser, ServedPage
from tests.page.runs.test_addresses import LIMITS, SEEN_CARDS
from tests.tracking.store.making import of, running


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RunStore]:
    """A store with the run `goes-on`, which is this process."""
    with open_store(tmp_path / "runs.db") as store:
        running(store, "goes-on", name="goes-on")
        log(store, 0, 100)
        yield store


def log(store: RunStore, first: int, last: int, *names: str) -> None:
    names = names or ("loss",)
    metrics = (Metrics("", [*names], [1.0] * len(names), float(step), 1e6 + step) for step in range(first, last))
    store.apply(of("goes-on", *metrics))


def num_points(browser: Browser, css: str = "") -> int:
    """How many points the first line of the first picture has that matches."""
    code = """
        const place = document.querySelector(arguments[0] + " .nicegui-echart");
        const chart = place && getElement(parseInt(place.id.slice(1)))?.chart;
        return chart?.getOption().series[0]?.data.length || 0;"""
    return int(browser.script(code, css))


def open_run(browser: Browser, served: ServedPage, query: str = "") -> None:
    browser.open(served.url)
    browser.open(f"{served.base}/runs/goes-on{query}")
    browser.until(lambda: num_points(browser), "the curve")


def test_each_of_many_metrics_can_be_found(browser: Browser, served: ServedPage, store: RunStore) -> None:
    log(store, 0, 3, *(f"metric-{number:03d}" for number in range(100)))
    open_run(browser, served)
    browser.wait_for("60 of 101 metrics are drawn")
    assert "metric-099" not in browser.text
    box = browser.driver.find_element("css selector", "[aria-label='find metrics']")
    box.send_keys("metric-09")
    browser.until(lambda: browser.script(SEEN_CARDS) == [f"metric-{number:03d}" for number in range(90, 100)], "ten")
    assert "are drawn" not in browser.text


def test_an_enlarged_curve_goes_on_and_leaves_its_part_behind(
    browser: Browser, served: ServedPage, store: RunStore
) -> None:
    open_run(browser, served)
    browser.driver.find_element("css selector", "[aria-label=larger]").click()
    browser.until(lambda: num_points(browser, ".q-dialog") == 100, "the enlarged curve")
    log(store, 100, 150)
    browser.until(lambda: num_points(browser, ".q-dialog") == 150, "what was logged since")
    zoom: Any = """
        const place = document.querySelector(".q-dialog .nicegui-echart");
        const chart = getElement(parseInt(place.id.slice(1))).chart;
        chart.dispatchAction({type: "dataZoom", startValue: 20, endValue: 40});"""
    browser.script(zoom)
    browser.until(lambda: "=20%3A40" in browser.driver.current_url, "the part in the address")
    browser.driver.find_element("css selector", ".q-dialog [aria-label=close]").click()
    browser.until(lambda: browser.script(LIMITS) == [20, 40], "the part in the small picture")
    browser.until(lambda: not browser.driver.find_elements("css selector", ".q-dialog"), "the end of the large one")


def test_the_part_that_is_zoomed_into_stays_while_a_run_goes_on(
    browser: Browser, served: ServedPage, store: RunStore
) -> None:
    open_run(browser, served, "?zoom+%2Floss=20:40")
    browser.until(lambda: browser.script(LIMITS) == [20, 40], "the part")
    log(store, 100, 200)
    browser.wait_for("200 points")
    assert browser.script(LIMITS) == [20, 40]
    browser.click("time", ".q-btn .block")
    browser.until(lambda: browser.script(LIMITS)[1] > 3, "another axis, and the whole of it")
    browser.until(lambda: "zoom" not in browser.driver.current_url, "an address without the part")


def test_an_address_of_a_part_without_points_shows_the_whole(
    browser: Browser, served: ServedPage, store: RunStore
) -> None:
    open_run(browser, served, "?zoom+%2Floss=5000:6000")
    browser.until(lambda: browser.script(LIMITS) == [0, 99], "the whole")
