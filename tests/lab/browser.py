"""A real Chromium without a screen, and the page that it opens."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.lab.plugin import require, require_packages
from tests.left_behind import MARK

_DEADLINE_S = 60.0
"""After which a test gives up; how long things take is no test's business."""
_LOOK_S = 0.05
T = TypeVar("T")


class Browser:
    """One tab of a Chromium.

    Args:
        driver: selenium's.
    """

    def __init__(self, driver: Any) -> None:
        self.driver = driver
        self.left_problems: list[str] = []

    def open(self, url: str) -> None:
        """Go to an address, and forget what the console said before."""
        self.driver.get(url)
        self.console()

    def forget_cookies(self) -> None:
        """Forget who the visitor is."""
        self.driver.execute("devtools", {"cmd": "Network.clearBrowserCookies", "params": {}})

    def console(self) -> list[dict[str, Any]]:
        """What the console of the browser says since the last look."""
        return self.driver.execute("getLog", {"type": "browser"})["value"]

    @property
    def text(self) -> str:
        """All text that a person sees."""
        return str(self.driver.find_element("tag name", "body").text)

    def script(self, code: str, *arguments: object) -> Any:
        """Run JavaScript in the page; returns what it returns."""
        return self.driver.execute_script(code, *arguments)

    def wait_for(self, *words: str) -> str:
        """Wait until all these words are seen; returns all text."""

        def seen() -> str:
            text = self.text
            return text if all(word in text for word in words) else ""

        return self.until(seen, repr(words))

    def until(self, condition: Callable[[], T], what: str) -> T:
        """Wait until a condition holds; returns its value."""
        from selenium.common.exceptions import StaleElementReferenceException

        end = time.monotonic() + _DEADLINE_S
        while True:
            with contextlib.suppress(StaleElementReferenceException):
                if value := condition():
                    return value
            if time.monotonic() > end:
                raise AssertionError(f"{what} did not come; the page says:\n{self.text}")
            time.sleep(_LOOK_S)

    def click(self, text: str, css: str = "*") -> None:
        """Click on the innermost element that matches and has exactly this text."""

        def found() -> Any:
            for element in reversed(self.driver.find_elements("css selector", css)):
                if element.text.strip() == text and element.is_displayed():
                    return element
            return None

        self.until(found, f"something to click on that says {text!r}").click()

    def charts(self) -> list[dict[str, Any]]:
        """The options of all charts that were drawn, as ECharts has them."""
        code = """
            return Array.from(document.querySelectorAll('.nicegui-echart')).map(function (e) {
                var c = getElement(parseInt(e.id.slice(1))).chart; return c ? JSON.stringify(c.getOption()) : null;
            });"""
        return [json.loads(option) for option in self.script(code) if option]

    def facts(self) -> dict[str, str]:
        """The facts in the header of a thing, values by label, as a person reads them."""
        code = """
            const facts = document.querySelector('.rw-facts').querySelectorAll('.rw-fact');
            return Array.from(facts).map((fact) => Array.from(fact.children).map((part) => part.innerText.trim()));"""
        return dict(self.script(code))

    def process_rows(self) -> dict[str, dict[str, str]]:
        """The rows of the table of processes, by name of the process, as a person reads them."""
        code = """
            const rows = {};
            for (const cell of document.querySelectorAll('.rw-grid .ag-cell')) {
                const row = rows[cell.parentNode.getAttribute('row-id')] ||= {};
                row[cell.getAttribute('col-id')] = cell.innerText.trim();
            }
            return Object.values(rows);"""
        return {row["name"]: row for row in self.script(code)}

    def line(self, name: str) -> list[list[Any]]:
        """The points of the first line with this name in any chart that has some; [] if there is none yet."""
        lines = [each for chart in self.charts() for each in chart["series"] if each.get("name") == name]
        return next((each["data"] for each in lines if each.get("data")), [])

    def problems(self) -> list[str]:
        """What the console of the browser says of errors since the last look."""
        return [entry["message"] for entry in self.console() if entry["level"] == "SEVERE"]

    def leave(self) -> None:
        """Leave the page, before its server ends; keeps what the console said."""
        self.left_problems += self.problems()
        self.driver.get("about:blank")
        self.console()

    def screenshot(self, path: Path) -> Path:
        """Save what is seen as PNG."""
        self.driver.save_screenshot(str(path))
        return path


_KEEPER = """
chromedriver --port=0 </dev/null & driver=$!
cat >/dev/null
kill $driver; pkill -f "user-data-dir=$1"
"""
"""Runs the driver until its standard input is closed, however we end."""


@contextlib.contextmanager
def _driver_address(folder: str) -> Generator[str]:
    """Start chromedriver beside this process, and not below it: browsers start processes while tests run.

    Args:
        folder: of the browser's files.
    """
    environment = {key: value for key, value in os.environ.items() if key not in (MARK, "XDG_RUNTIME_DIR")}
    command = ["setsid", "--fork", "sh", "-c", _KEEPER, "sh", folder]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        env={**environment, "TMPDIR": folder, "HOME": folder},
    ) as process:  # fmt: skip
        assert process.stdin and process.stdout
        try:
            said = ""
            while not (found := re.search(r"successfully on port (\d+)", said)):
                line = process.stdout.readline()
                assert line, f"chromedriver ended, and said {said}"
                said += line
            yield f"http://127.0.0.1:{found[1]}"
        finally:
            process.stdin.close()
            process.stdout.read()


@contextlib.contextmanager
def chromium() -> Generator[Browser]:
    """Start a Chromium without a screen; its files are gone at the end of the block."""
    from selenium import webdriver
    from selenium.webdriver.remote.client_config import ClientConfig
    from selenium.webdriver.remote.remote_connection import RemoteConnection

    folder = tempfile.mkdtemp(prefix="rw-browser-", dir=os.environ.get("PYTEST_DEBUG_TEMPROOT"))
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1400,1000",
                     "--hide-scrollbars", "--disable-gpu", "--disable-extensions",
                     f"--user-data-dir={folder}"):  # fmt: skip
        options.add_argument(argument)
    with _driver_address(folder) as address:
        connection = RemoteConnection(client_config=ClientConfig(address))
        connection.add_command("devtools", "POST", "/session/$sessionId/goog/cdp/execute")
        driver = webdriver.Remote(connection, options=options)
        try:
            yield Browser(driver)
        finally:
            driver.quit()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def _chromium() -> Iterator[Browser]:
    require("chromium", "chromedriver")
    require_packages("selenium", "nicegui")
    with chromium() as started:
        yield started


@pytest.fixture
def browser(_chromium: Browser) -> Iterator[Browser]:
    """A browser that has no cookies; its errors fail the test, so look at `problems()` where some are expected."""
    _chromium.driver.get("about:blank")
    _chromium.forget_cookies()
    _chromium.left_problems = []
    _chromium.console()
    yield _chromium
    _chromium.leave()
    assert not _chromium.left_problems


class ServedPage:
    """A `ropewalk page` that runs.

    Attributes:
        url: for owners.
        reader_url: for readers.
    """

    def __init__(self, process: subprocess.Popen[str], urls: dict[str, str]) -> None:
        self.process = process
        self.url, self.reader_url = urls["url"], urls["reader_url"]

    @property
    def base(self) -> str:
        """The address without the token."""
        return self.url.partition("/?")[0]


@contextlib.contextmanager
def served_page(*arguments: str, **environment: str) -> Generator[ServedPage]:
    """Serve the page by its command, of what runs below the temporary folder of the tests.

    Args:
        arguments: of `ropewalk page`.
        environment: more variables.
    """
    command = [sys.executable, "-P", "-m", "ropewalk", "page", "--json", "--port", "0", *arguments]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, **environment}, stdin=subprocess.DEVNULL
    ) as process:
        try:
            assert process.stdout
            said = process.stdout.readline()
            assert said, f"the page ended with {process.wait()}"
            yield ServedPage(process, json.loads(said))
        finally:
            process.terminate()
            process.wait(_DEADLINE_S)


@pytest.fixture
def served(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[ServedPage]:
    """The page, with a store of its own; a browser leaves it before it ends."""
    with served_page("--store", str(tmp_path / "runs.db")) as page:
        yield page
        if "browser" in request.fixturenames:
            request.getfixturevalue("browser").leave()
