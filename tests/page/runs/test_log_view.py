"""The log of a run in a real browser: it is followed at its end, and stays where it is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from ropewalk.tracking.records import AttemptBegan, StateIs
from ropewalk.tracking.store.opening import open_store
from tests.lab.browser import Browser, ServedPage
from tests.tracking.store.making import begin

_NUM_LINES = 2000
_TOP = """
    const box = document.querySelector(".rw-log");
    const line = [...box.children].find((one) => one.textContent === arguments[0]);
    return line && Math.round(line.getBoundingClientRect().top - box.getBoundingClientRect().top);"""
"""Where a line is below the top of the log, in pixels; null if it is not there."""
_IS_AT_END = """
    const box = document.querySelector(".rw-log");
    return box.scrollTop + box.clientHeight >= box.scrollHeight - 2;"""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """The output of the run `talks`."""
    with open_store(tmp_path / "runs.db") as store:
        file = store.folder / "talks" / "output" / "1.txt"
        file.parent.mkdir(parents=True)
        file.write_text("".join(f"line {number}\n" for number in range(_NUM_LINES)))
        records = (AttemptBegan(1, "h", 1, 1.0), StateIs("done", 2.0))
        begin(store, "talks", *records, name="talks", folder=str(file.parent.parent))
    return file


def append(log: Path, text: str) -> None:
    with open(log, "a") as file:
        file.write(f"{text}\n")


def test_a_log_is_followed_by_who_sees_its_end_and_stays_for_who_reads_above(
    browser: Browser, served: ServedPage, log: Path
) -> None:
    browser.open(served.url)
    browser.open(f"{served.base}/runs/talks?tab=Logs")
    browser.wait_for("the last 500 lines", f"line {_NUM_LINES - 1}")
    append(log, "followed")
    browser.until(lambda: browser.script(_TOP, "followed"), "the new line")
    assert browser.script(_IS_AT_END)
    browser.script("document.querySelector('.rw-log').scrollTop = 0")
    top = browser.script(_TOP, "line 1501")
    append(log, "not followed")
    browser.until(lambda: browser.script(_TOP, "not followed"), "the second new line")
    assert browser.script(_TOP, "line 1501") == top
    browser.click("earlier lines", ".q-btn .block")
    browser.until(lambda: browser.script(_TOP, "line 10") is not None, "the earlier lines")
    first = browser.script(_TOP, "line 1501")
    assert abs(first - top) < 40, "what is read stays in sight"


def test_what_is_searched_for_in_a_log_is_marked(browser: Browser, served: ServedPage, log: Path) -> None:
    log.write_text("a Needle\nERROR: no needle\nhay\n")
    browser.open(served.url)
    browser.open(f"{served.base}/runs/talks?tab=Logs&find=needle")
    browser.wait_for("a Needle", "2 lines")
    marked = "return [...document.querySelectorAll('.rw-log .rw-hit')].map((one) => one.textContent)"
    assert browser.script(marked) == ["Needle", "needle"]
    append(log, "needle again")
    browser.until(lambda: browser.script(marked) == ["Needle", "needle", "needle"], "the new line")
