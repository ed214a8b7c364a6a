"""The page of one thing, in a real browser, of a pool that works, loses a worker and is stopped."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

import ropewalk as rw
from tests.lab.browser import Browser, ServedPage
from tests.page.test_frame import is_saved

LOUD = "<img src=x onerror=alert(1)> \x1b[31mred"
NAME = LOUD[:28]


def say(text: str) -> int:
    print(text, flush=True)
    return os.getpid()


def wait_for(file: str) -> None:
    while not Path(file).exists():
        time.sleep(0.02)


@pytest.fixture
def pool() -> Iterator[rw.Pool]:
    with rw.Pool(2, name=NAME) as pool:
        yield pool


def open_thing(browser: Browser, url: str, process: str = "") -> None:
    """Open the page of the pool, which other tests may run beside, and perhaps one of its processes."""
    browser.open(url)
    links = "return [...document.querySelectorAll('a.rw-name')].filter(e => e.textContent == arguments[0])[0]?.href"
    address = str(browser.until(lambda: browser.script(links, NAME), "the pool"))
    browser.open(f"{address}#{quote(process)}" if process else address)
    browser.wait_for("Processes", "Task stream")


def test_page_of_a_pool_tells_the_truth_about_its_workers(
    browser: Browser, served: ServedPage, pool: rw.Pool, tmp_path: Path
):
    pids = {pool.apply(say, ("hello",)) for _ in range(8)}
    waiting = pool.apply_async(wait_for, (str(tmp_path / "go"),))
    open_thing(browser, served.url)
    browser.until(lambda: any(row["doing"] for row in browser.process_rows().values()), "a task")
    rows = browser.process_rows()
    known = {one.name: (one.pid, one.state, one.num_done) for one in pool.status().workers}
    assert {name: (int(row["pid"]), row["state"], int(row["done"])) for name, row in rows.items()} == known
    assert "wait_for" in next(row["doing"] for row in rows.values() if row["doing"])
    (tmp_path / "go").touch()
    waiting.get()
    browser.until(lambda: sum(int(row["done"]) for row in browser.process_rows().values()) == 9, "the ninth task")
    os.kill(min(pids), signal.SIGKILL)
    browser.wait_for("Last failure:", "killed by SIGKILL", "death")
    victim = pool.status().deaths[-1].name
    browser.script("location.hash = arguments[0]", victim)  # as a link does that leads to a process of this page
    browser.wait_for("Last end:", "hello")
    ends = browser.until(lambda: browser.driver.find_elements("css selector", ".rw-log .rw-life"), "the end of a life")
    assert [victim in end.text and "killed by SIGKILL" in end.text for end in ends] == [True]


def test_tables_are_saved_with_their_units(browser: Browser, served: ServedPage, pool: rw.Pool):
    os.kill(pool.apply(say, ("hello",)), signal.SIGKILL)
    open_thing(browser, served.url)
    browser.wait_for("Last failure:", "death")
    browser.until(lambda: len(browser.process_rows()) == 2, "both processes")
    processes, events = (
        is_saved(
            browser, browser.driver.find_element("css selector", f"{card} [aria-label='save as CSV']")
        ).splitlines()
        for card in (".panel:has(.rw-map)", ".panel:has([aria-label='filter events']) .justify-end")
    )
    head = processes[0].replace('"', "").split(",")
    assert {"name", "for (s)", "CPU (cores)", "memory (MiB)", "tasks", "pid"} <= set(head)
    assert len(processes) == 3
    head, first = (line.replace('"', "").split(",") for line in events[:2])
    assert head[0] == "time (UTC)" and first[0].startswith("20") and first[0].endswith("Z")


def test_text_of_users_and_processes_stays_text(browser: Browser, served: ServedPage, pool: rw.Pool):
    pid = pool.apply(say, (f"{LOUD}\nquiet",))
    open_thing(browser, served.url, next(one.name for one in pool.status().workers if one.pid == pid))
    browser.wait_for("<img src=x onerror=alert(1)> red", "quiet")  # the colour is left out
    browser.driver.find_element("css selector", "[aria-label=search]").send_keys("QUIET")
    browser.wait_for("1 line found")
    assert browser.script("return document.images.length") == 0


def test_owner_stops_a_pool_and_is_told(browser: Browser, served: ServedPage, pool: rw.Pool):
    open_thing(browser, served.reader_url)
    browser.wait_for("read only")
    assert "Stop" not in browser.text
    browser.forget_cookies()
    open_thing(browser, served.url)
    browser.click("stop\nStop", "button")  # an icon, and the word
    browser.wait_for("Stop the whole of it?")
    browser.click("Stop", ".q-dialog button")
    browser.wait_for("Action 1:", "ended", "last state kept")
