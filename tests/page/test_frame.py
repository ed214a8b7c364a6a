"""What all pages have: keys, a focus that is seen, addresses that lead back, and tables that can be saved."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from ropewalk.page.frame import zone_of
from ropewalk.quantities import shown_moment
from ropewalk.tracking.records import Metrics, StateIs
from ropewalk.tracking.relaunch_commands import settings_of
from ropewalk.tracking.store.opening import open_store
from tests.control.pretend import Pretence, controlled
from tests.lab.browser import Browser, ServedPage
from tests.tracking.store.making import NOW, begin

WIDTHS = (1024, 500)
"""Of windows, in pixels; 500 are also what 1000 are with a text that is made twice as large."""
_FOCUS = """
    const e = document.activeElement, style = getComputedStyle(e);
    return {what: e.getAttribute("aria-label") || e.innerText, tag: e.tagName,
            is_seen: style.outlineStyle !== "none" || style.boxShadow !== "none"};"""
_LIMITS = """
    const place = document.querySelector(".nicegui-echart");
    const chart = place && getElement(parseInt(place.id.slice(1))).chart;
    const isDrawn = chart && chart.getOption().series.length;
    return isDrawn && chart.getModel().getComponent("xAxis", 0).axis.scale.getExtent();"""


_CLIPBOARD = """
    const writeText = (text) => { window.copied = text; return Promise.resolve(); };
    Object.defineProperty(navigator, "clipboard", {value: {writeText}, configurable: true});"""


def press(browser: Browser, *keys: str) -> None:
    from selenium.webdriver.common.action_chains import ActionChains

    ActionChains(browser.driver).send_keys(*keys).perform()


def focus(browser: Browser) -> dict[str, Any]:
    return browser.script(_FOCUS)


def is_saved(browser: Browser, button: Any) -> str:
    """Press a button that saves a table; the text of the file."""
    browser.script(
        "window.saved = null; URL.createObjectURL = (blob) => { blob.text().then((text) => { window.saved = text; }); }"
    )
    button.click()
    return browser.until(lambda: browser.script("return window.saved"), "a file")


@pytest.fixture
def store(tmp_path: Path) -> None:
    with open_store(tmp_path / "runs.db") as store:
        for name in ("first", "second"):
            metrics = [Metrics("", ["loss"], [1.0 / step], float(step), 1.0 + step) for step in range(1, 101)]
            begin(store, name, *metrics, StateIs("done", 200.0), name=name, config={"lr": "=1+1", "note": 'a, "b"'})


@pytest.mark.usefixtures("store")
def test_keys_reach_what_a_click_does_and_addresses_lead_back(browser: Browser, served: ServedPage) -> None:
    from selenium.webdriver.common.keys import Keys

    browser.open(served.url)
    browser.wait_for("Doctor")
    for _ in range(6):
        press(browser, Keys.TAB)
        assert focus(browser)["is_seen"], focus(browser)
    press(browser, "?")
    browser.wait_for("this help", "close a dialog")
    press(browser, Keys.ESCAPE)
    browser.until(lambda: "this help" not in browser.text, "the end of the dialog")
    press(browser, "g", "r")
    browser.wait_for("2 runs", "first")
    press(browser, "/")
    assert (focus(browser)["tag"], focus(browser)["what"]) == ("INPUT", "filter")
    press(browser, "second")
    browser.wait_for("1 run")
    press(browser, Keys.ESCAPE)
    assert focus(browser)["tag"] == "BODY"
    browser.driver.refresh()
    browser.wait_for("1 run", "second")
    browser.script("document.querySelector('.ag-center-cols-container .ag-cell').focus()")
    press(browser, Keys.SPACE)
    browser.until(lambda: browser.script("return ropewalkTable.selected()") == ["second"], "a selection")
    press(browser, Keys.ENTER)
    browser.wait_for("Curves", "Settings", "Archive")
    address = browser.driver.current_url
    assert address.endswith("/runs/second")
    browser.open(f"{address}?zoom+%2Floss=10:20")
    browser.until(lambda: browser.script(_LIMITS) == [10, 20], "the part that the address names")
    browser.script("document.querySelector('.nicegui-echart').focus()")
    press(browser, "0")
    browser.until(lambda: browser.script(_LIMITS) == [1, 100], "the whole")
    press(browser, "+")
    browser.until(lambda: "zoom+%2Floss=" in browser.driver.current_url, "the new part in the address")
    first, last = browser.script(_LIMITS)
    assert 20 < first < 30 and 70 < last < 80
    browser.open(f"{address}?tab=Settings")
    browser.wait_for("Code and host", "=1+1")
    button = browser.driver.find_element("css selector", "[aria-label='save as CSV']")
    assert is_saved(browser, button).splitlines() == ["name,value", "lr,'=1+1", 'note,"a, ""b"""']
    browser.script(_CLIPBOARD)
    browser.driver.find_element("css selector", "[aria-label='copy settings as lines']").click()
    copied = browser.until(lambda: browser.script("return window.copied"), "the settings")
    assert settings_of(copied.splitlines()) == {"lr": "=1+1", "note": 'a, "b"'}


_TAKEN = """
    const place = document.querySelector(".nicegui-echart");
    return [{}, {ctrlKey: true}, {metaKey: true}].map((held) => {
        const press = new KeyboardEvent("keydown", {key: "+", bubbles: true, cancelable: true, ...held});
        return !place.dispatchEvent(press);
    });"""
"""Whether each of these keys is kept from the browser by a picture that has the focus."""


@pytest.mark.usefixtures("store")
def test_keys_of_the_browser_stay_its_own_while_a_picture_has_the_focus(browser: Browser, served: ServedPage) -> None:
    browser.open(served.url)
    browser.open(f"{served.base}/runs/first")
    browser.until(lambda: browser.script(_LIMITS) == [1, 100], "the curve")
    assert browser.script(_TAKEN) == [True, False, False]  # Ctrl and + makes the whole page larger


@pytest.mark.usefixtures("store")
def test_pages_fit_a_narrow_window(browser: Browser, served: ServedPage) -> None:
    size = browser.driver.get_window_size()
    target = Pretence("a-name-that-is-too-long-for-a-narrow-window-" + 50 * "x")
    with controlled(target):
        try:
            browser.open(served.url)
            browser.wait_for("a-name-that")
            for width, (path, words) in itertools.product(WIDTHS, (
                ("/", "Doctor"), (f"/now/{target.id}", "Processes"), ("/runs", "2 runs"), ("/runs/first", "smoothing"),
                ("/compare?runs=first,second", "Metrics"), ("/searches", "No search yet"),
            )):  # fmt: skip
                browser.driver.set_window_size(width, 900)
                browser.open(f"{served.base}{path}")
                browser.wait_for(words)
                widths = browser.script("return [document.documentElement.scrollWidth, innerWidth]")
                assert widths[0] <= widths[1] == width, path
                assert browser.script("return document.querySelector('header').offsetHeight") < 80, "one line"
                if path.startswith("/now/"):
                    assert browser.script("return document.querySelector('.rw-title').offsetHeight") < 150, "few lines"
        finally:
            browser.driver.set_window_size(size["width"], size["height"])


@pytest.mark.usefixtures("store")
def test_what_is_chosen_is_readable_in_the_dark(browser: Browser, served: ServedPage) -> None:
    browser.open(served.url)
    browser.driver.add_cookie({"name": "ropewalk_theme", "value": "dark", "path": "/"})
    browser.open(f"{served.base}/runs/first")
    browser.wait_for("smoothing")
    color = browser.script("return getComputedStyle(document.querySelector('.q-btn-toggle .bg-primary')).color")
    assert color == "rgb(17, 17, 17)"  # on a light blue


@pytest.mark.usefixtures("store")
def test_moments_are_those_of_the_clock_of_the_browser(browser: Browser, served: ServedPage) -> None:
    def set_zone(name: str) -> None:
        browser.driver.execute("devtools", {"cmd": "Emulation.setTimezoneOverride", "params": {"timezoneId": name}})

    zone = zone_of("Asia/Tokyo")
    assert zone is not None and shown_moment(NOW, zone) != shown_moment(NOW)
    set_zone("Asia/Tokyo")
    try:
        browser.open(served.url)
        browser.wait_for("Doctor")
        browser.open(f"{served.base}/runs")
        browser.wait_for(shown_moment(NOW, zone)[:16])
        browser.open(f"{served.base}/runs/first")
        browser.wait_for(f"started {shown_moment(NOW, zone)}")
    finally:
        set_zone("")


def test_what_is_no_time_zone_is_none() -> None:
    names = ("", "Nowhere/City", "../passwd", "/etc/passwd", "a\0b", "x" * 5000)
    assert [zone_of(name) for name in names] == [None] * len(names)


def test_a_browser_without_scripts_is_told_what_to_do(browser: Browser, served: ServedPage) -> None:
    def allow_scripts(allowed: bool) -> None:
        command = {"cmd": "Emulation.setScriptExecutionDisabled", "params": {"value": not allowed}}
        browser.driver.execute("devtools", command)

    browser.open(served.url)
    browser.wait_for("Doctor")
    allow_scripts(False)
    try:
        browser.driver.refresh()
        browser.until(lambda: "needs JavaScript" in browser.text and "ropewalk top" in browser.text, "what to do")
    finally:
        allow_scripts(True)
