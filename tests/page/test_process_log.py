"""The dialog of a process in a real browser: its log, and what becomes of it when the process or the page changes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.control.pretend import Pretence, controlled
from tests.lab.browser import Browser, ServedPage


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Pretence]:
    """A program whose process `replay.0` has a log."""
    target = Pretence("talks")
    log = tmp_path / "replay.0.log"
    log.write_text("hello\n")
    target.files = {"replay.0": log}
    with controlled(target):
        yield target


def open_process(browser: Browser, served: ServedPage, target: Pretence) -> None:
    browser.open(served.url)
    browser.wait_for(target.name)
    browser.open(f"{served.base}/now/{target.id}#replay.0")
    browser.wait_for("hello")


def num_open(served: ServedPage, file: Path) -> int:
    """How many descriptors of the page are of a file."""
    paths: list[str] = []
    for descriptor in Path(f"/proc/{served.process.pid}/fd").iterdir():
        try:
            paths.append(os.readlink(descriptor))
        except FileNotFoundError:  # closed by now
            continue
    return paths.count(str(file))


def test_a_log_is_opened_once_although_the_page_was_made_anew(
    browser: Browser, served: ServedPage, target: Pretence
) -> None:
    open_process(browser, served, target)
    for offers in (("graph", "memory"), ("graph", "memory", "loss")):
        target.now = replace(target.now, offers=offers)
        # The pictures, and the line of time of the events.
        num = len(offers) + 1
        found = lambda num=num: len(browser.driver.find_elements("class name", "nicegui-echart")) == num  # noqa: E731
        browser.until(found, "another picture")
        browser.wait_for("hello")  # the process of the address is open again
    assert num_open(served, target.files["replay.0"]) == 1


def test_a_process_that_is_gone_says_so_and_keeps_its_log(
    browser: Browser, served: ServedPage, target: Pretence
) -> None:
    open_process(browser, served, target)
    browser.wait_for("replay.0", "service · running")
    target.now = replace(target.now, processes=target.now.processes[1:])
    text = browser.wait_for("gone; this is its last state")
    assert "hello" in text and "Last end: killed by SIGKILL" in text
