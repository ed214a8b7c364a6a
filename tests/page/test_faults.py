"""What the page does when what it shows is killed, in a real browser."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import pytest

import ropewalk as rw
from ropewalk.page.source import Launchers
from tests.lab.browser import Browser, ServedPage, served_page

SCRIPT = """
import ropewalk as rw, sys, time

def slow(x):
    time.sleep(0.05)
    return x

with rw.Pool(2, name="survivor") as pool:
    print("up", flush=True)
    while True:
        pool.map(slow, range(20))
"""


_CONTRAST = """
    const numbers = (color) => color.match(/[0-9.]+/g).map(Number);
    const light = (color) => color.slice(0, 3).reduce((sum, one, at) => {
        one /= 255;
        return sum + [0.2126, 0.7152, 0.0722][at] * (one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4);
    }, 0);
    let opacity = 1, back = null;
    for (let at = document.querySelector(arguments[0]); at; at = at.parentElement) {
        const style = getComputedStyle(at), own = numbers(style.backgroundColor);
        opacity *= style.opacity;
        if (!back && (own.length === 3 || own[3] === 1)) back = own;
    }
    const text = numbers(getComputedStyle(document.querySelector(arguments[0])).color);
    const seen = text.slice(0, 3).map((one, at) => opacity * one + (1 - opacity) * back[at]);
    const [less, more] = [light(seen), light(back)].sort((a, b) => a - b);
    return (more + 0.05) / (less + 0.05);"""
"""The ratio of contrast between a text and what is below it: WCAG 2.2, relative luminance."""


def started(folder: Path) -> subprocess.Popen[str]:
    """Run the script in a process of its own, as a user does; returns when its pool is there."""
    script = folder / "survivor.py"
    script.write_text(SCRIPT)
    process = subprocess.Popen([sys.executable, "-P", str(script)], stdout=subprocess.PIPE, text=True)
    assert process.stdout and process.stdout.readline() == "up\n"
    return process


def killed(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    assert process.stdout
    process.stdout.close()


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[list[subprocess.Popen[str]]]:
    processes = [started(tmp_path)]
    try:
        yield processes
    finally:
        for process in processes:
            killed(process)


def test_killed_launcher_is_told_with_its_last_state_and_found_when_it_runs_again(
    browser: Browser, served: ServedPage, launcher: list[subprocess.Popen[str]], tmp_path: Path
):
    browser.open(served.url)
    browser.wait_for("survivor", "running", "2/2")
    killed(launcher.pop())
    browser.wait_for("survivor", "ended", "last state kept")
    assert browser.script(_CONTRAST, ".rw-ended .rw-small") >= 4.5  # WCAG 2.2, 1.4.3
    launcher.append(started(tmp_path))
    browser.until(lambda: browser.text.count("survivor") == 2, "the new pool beside the old one")


def test_processes_are_in_the_page_before_anything_follows_it(
    browser: Browser, served: ServedPage, launcher: list[subprocess.Popen[str]]
):
    browser.open(served.url)
    browser.wait_for("survivor", "running", "2/2")
    link = "[...document.querySelectorAll('a.rw-name')].find((link) => link.textContent == 'survivor')"
    page = browser.script(f"return fetch({link}.href).then((answer) => answer.text());")
    assert "survivor.0" in page and "survivor.1" in page


def test_stopped_launcher_is_told_from_an_end_and_shown_again_when_it_goes_on(
    browser: Browser, served: ServedPage, launcher: list[subprocess.Popen[str]]
):
    browser.open(served.url)
    browser.wait_for("survivor", "2/2")
    launcher[0].send_signal(signal.SIGSTOP)
    try:
        browser.wait_for("survivor", "has not answered", "SIGSTOP")
    finally:
        launcher[0].send_signal(signal.SIGCONT)
    browser.until(lambda: "has not answered" not in browser.text, "an answer after SIGCONT")


def test_tab_of_a_page_that_was_started_again_says_where_to_go(browser: Browser):
    with served_page() as page:
        port = str(urlparse(page.url).port)
        browser.open(page.url)
        browser.wait_for("Now", "Doctor")
        browser.until(lambda: browser.script("return window.did_handshake"), "a socket")
        page.process.kill()
        page.process.wait()
        browser.wait_for("Connection lost")
    with served_page("--port", port) as again:
        browser.wait_for("another one is at its place", "Open the address that it printed")
        browser.leave()
        # Also of what the browser was still loading when the page was killed.
        broken = ("403", "ERR_CONNECTION_REFUSED", "ERR_CONNECTION_RESET", "ERR_EMPTY_RESPONSE")
        assert [said for said in browser.left_problems if not any(words in said for words in broken)] == []
        browser.left_problems.clear()
        browser.open(again.url)
        browser.wait_for("Now", "Doctor")
        browser.leave()


def press(browser: Browser, word: str) -> None:
    """Press the button in front that ends with a word; an icon is before it."""

    def found() -> Any:
        buttons = browser.driver.find_elements("css selector", "button")
        meant = [one for one in buttons if one.is_displayed() and one.text.strip().endswith(word)]
        return meant[-1] if meant else None

    browser.until(found, f"a button {word}").click()


class Counter:
    def __init__(self) -> None:
        self.number = 0

    def add(self) -> int:
        self.number += 1
        return self.number


def test_replica_is_killed_and_restarted_from_the_page(browser: Browser, served: ServedPage):
    program = rw.Program("patient")
    program.add(rw.Service(Counter), name="counter", restart="on_failure")
    running = program.launch()
    try:
        running.wait_ready()
        before = running.status().nodes[0].pid
        with Launchers() as launchers:
            (id,) = [look.id for look in launchers.look({}) if look.view and look.view.name == "patient"]
        browser.open(served.url)
        browser.wait_for("patient")
        browser.open(f"{served.base}/now/{id}#counter.0")
        press(browser, "Kill")
        browser.wait_for("Kill this process?")
        press(browser, "Kill")
        browser.wait_for("Action 1:")
        browser.until(lambda: running.status().nodes[0].pid not in (0, before), "another process")
        browser.wait_for("Last failure:")
        assert running.client("counter").add() == 1
    finally:
        running.stop()
