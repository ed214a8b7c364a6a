"""Five hundred real processes on the page, which shows each of them, and the death of one."""

from __future__ import annotations

import os
import signal

import pytest

import ropewalk as rw
from tests.control.looking import look_at
from tests.lab.browser import Browser, ServedPage

NUM = 500


def square(number: int) -> int:
    return number * number


@pytest.mark.soak
def test_five_hundred_processes_are_shown_and_the_death_of_one(browser: Browser, served: ServedPage):
    with rw.Pool(NUM, name="many") as pool:
        assert pool.map(square, range(4 * NUM), chunksize=1)[-1] == (4 * NUM - 1) ** 2
        pool.wait_until_ready()
        browser.open(served.url)
        browser.wait_for("many", f"{NUM}/{NUM}")
        browser.open(f"{served.base}/now/{look_at('pool').id}")
        browser.until(lambda: browser.facts().get("processes up") == f"{NUM} of {NUM}", "all processes")
        facts = browser.facts()
        assert (facts["done"], facts["workers"], facts["deaths"]) == (f"{4 * NUM:,}", str(NUM), "0")
        tiles = "return document.querySelectorAll('.rw-map .rw-tile').length"
        browser.until(lambda: browser.script(tiles) == NUM, "a tile for each process")
        victim = pool.status().workers[NUM // 2]
        os.kill(victim.pid, signal.SIGKILL)
        browser.wait_for("Last failure:", f"{victim.name} ", "killed by SIGKILL")
        browser.until(lambda: browser.facts().get("processes up") == f"{NUM} of {NUM}", "its successor")
        assert browser.facts()["deaths"] == "1"
        assert pool.map(square, range(NUM)) == [number * number for number in range(NUM)]
