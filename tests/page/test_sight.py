"""What nobody sees costs nothing: pictures out of sight are not sent, and a tab that is hidden is not refreshed."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

import ropewalk as rw
from tests.control.looking import look_at
from tests.lab.browser import Browser, ServedPage

_COUNT = """
    window.sent = {};
    const chart = ropewalk.chart;
    ropewalk.chart = (id, ...rest) => { window.sent[id] = (window.sent[id] || 0) + 1; chart(id, ...rest); };
    document.querySelector('.rw-pictures').style.marginTop = '3000px';
    return document.querySelector('.nicegui-echart').id.slice(1);"""
_HIDE = """
    Object.defineProperty(document, 'hidden', {value: arguments[0], configurable: true});
    document.dispatchEvent(new Event('visibilitychange'));"""
_LOOKS_S = 2.5
"""In which the page is refreshed, if it is."""


@pytest.fixture
def pool() -> Iterator[rw.Pool]:
    with rw.Pool(1, name="seen") as pool:
        yield pool


def open_pool(browser: Browser, served: ServedPage) -> None:
    browser.open(served.url)
    browser.open(f"{served.base}/now/{look_at('pool').id}")
    browser.wait_for("Processes", "seen.0")


def test_a_picture_out_of_sight_is_sent_when_it_comes_into_sight(
    browser: Browser, served: ServedPage, pool: rw.Pool
) -> None:
    pool.map(abs, range(10))
    open_pool(browser, served)
    id = browser.until(lambda: browser.charts() and browser.script(_COUNT), "its pictures")

    def is_sent() -> bool:
        before = browser.script("return window.sent[arguments[0]] || 0", id)
        pool.map(abs, range(10))
        time.sleep(_LOOKS_S)
        return browser.script("return window.sent[arguments[0]] || 0", id) > before

    browser.until(lambda: not is_sent(), "an end of what is out of sight")
    browser.script("document.getElementById('c' + arguments[0]).scrollIntoView()", id)
    browser.until(is_sent, "the picture")


def test_a_hidden_tab_is_refreshed_when_it_is_shown_again(browser: Browser, served: ServedPage, pool: rw.Pool) -> None:
    open_pool(browser, served)
    browser.script(_HIDE, True)
    browser.until(lambda: not changes(browser, pool), "an end of what is hidden")
    browser.script(_HIDE, False)
    browser.until(lambda: browser.facts()["done"] == f"{pool.status().done:,}", "the truth")


def changes(browser: Browser, pool: rw.Pool) -> bool:
    """Whether the page shows that tasks have ended."""
    before = browser.facts()["done"]
    pool.map(abs, range(10))
    time.sleep(_LOOKS_S)
    return browser.facts()["done"] != before


def test_a_tab_that_is_opened_in_the_background_is_refreshed_when_it_is_shown(
    browser: Browser, served: ServedPage, pool: rw.Pool
) -> None:
    open_pool(browser, served)
    hidden = {"source": "Object.defineProperty(document, 'hidden', {value: true, configurable: true});"}
    command = {"cmd": "Page.addScriptToEvaluateOnNewDocument", "params": hidden}
    number = browser.driver.execute("devtools", command)["value"]
    try:
        browser.driver.refresh()
        browser.wait_for("Processes", "seen.0")
        browser.until(lambda: not changes(browser, pool), "an end of what is hidden")
        browser.script(_HIDE, False)
        browser.until(lambda: browser.facts()["done"] == f"{pool.status().done:,}", "the truth")
    finally:
        browser.driver.execute("devtools", {"cmd": "Page.removeScriptToEvaluateOnNewDocument", "params": number})
