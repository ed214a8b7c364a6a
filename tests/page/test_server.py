"""The page as it is served, in a real browser, of programs that run."""

from __future__ import annotations

import contextlib
import http.server
import importlib.resources
import io
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Generator, Iterator
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlparse

import psutil
import pytest

import ropewalk as rw
from ropewalk.control.launchers import find_launchers, usual_parents
from ropewalk.page.server import escape_record, is_no_visitor_who_left
from tests.lab.browser import Browser, ServedPage, served_page


class Counter:
    def add(self, number: int) -> int:
        return number + 1


@pytest.fixture
def program() -> Iterator[rw.RunningProgram]:
    program = rw.Program("counting")
    program.add(rw.Service(Counter), name="counter")
    running = program.launch()
    running.wait_ready()
    try:
        yield running
    finally:
        running.stop()


def test_running_program_is_shown(browser: Browser, served: ServedPage, program: rw.RunningProgram):
    browser.open(served.url)
    browser.wait_for("counting", "running")
    assert "token" not in browser.driver.current_url


def test_end_of_a_program_is_told_and_its_last_state_is_kept(
    browser: Browser, served: ServedPage, program: rw.RunningProgram
):
    browser.open(served.url)
    browser.wait_for("counting", "running")
    program.stop()
    browser.wait_for("counting", "ended")


def test_nothing_runs(browser: Browser, served: ServedPage):
    browser.open(served.url)
    browser.wait_for("Now", "Runs")


def request(page: ServedPage, path: str = "/", method: str = "GET", **headers: str) -> int:
    place = urlparse(page.base)
    connection = HTTPConnection(place.hostname or "", place.port or 0, timeout=30.0)
    try:
        connection.request(
            method, place.path + path, headers={name.replace("_", "-"): value for name, value in headers.items()}
        )
        return connection.getresponse().status
    finally:
        connection.close()


def test_strangers_are_refused(served: ServedPage):
    token = served.url.partition("token=")[2]
    port = urlparse(served.base).port
    cookie = f"ropewalk_{port}={token}"
    assert request(served) == 403
    assert request(served, "/?token=wrong") == 403
    assert request(served, Cookie=f"ropewalk_{port}=wrong") == 403
    assert request(served, Cookie=cookie) == 200
    assert request(served, Cookie=cookie, Host=f"evil.example:{port}") == 421
    assert request(served, Cookie=cookie, Origin="http://evil.example") == 403
    assert request(served, "/_nicegui_ws/socket.io/?EIO=4&transport=polling", "POST", Cookie=cookie) == 403
    for path in ("/runs", "/docs", "/openapi.json", "/_nicegui_ws/socket.io/?EIO=4&transport=polling", "/favicon.ico"):
        assert request(served, path) == 403
    for place in ("", urlparse(served.reader_url).path.rstrip("/")):  # at which other ports could have got the cookie
        served.url = f"http://127.0.0.1:{port}{place}/?token={token}"
        assert request(served, Cookie=cookie) == 403


def test_a_page_of_another_site_cannot_open_a_socket(browser: Browser, served: ServedPage):
    browser.open(served.url)
    browser.wait_for("Now")
    browser.driver.get("data:text/html,<p>another site</p>")
    code = """
        var done = arguments[arguments.length - 1];
        var s = new WebSocket(arguments[0]);
        s.onopen = function () { done("opened"); }; s.onerror = function () { done("refused"); };"""
    address = served.base.replace("http", "ws") + "/_nicegui_ws/socket.io/?EIO=4&transport=websocket"
    assert browser.driver.execute_async_script(code, address) == "refused"
    assert browser.problems()


SEND = """
    const [tab, done] = arguments;
    const event = {client_id: tab, id: -1, listener_id: "", args: []};
    window.socket.emit("event", event, (answer) => done(answer === false ? "refused" : "taken"));"""


def test_the_link_that_an_owner_copies_shows_a_reader_the_same_view(browser: Browser, served: ServedPage):
    # What stands in the address line of an owner is refused to everybody else.
    browser.open(served.url)
    browser.wait_for("Now")
    browser.driver.get(f"{browser.driver.current_url.rstrip('/')}/doctor?x=1")
    browser.until(lambda: browser.script("return window.did_handshake"), "a socket")
    here = browser.driver.current_url
    browser.script("navigator.clipboard.writeText = (text) => { window.copied = text; return Promise.resolve(); }")
    browser.script("""document.querySelector('[aria-label="copy a link for readers"]').click()""")
    link = browser.until(lambda: browser.script("return window.copied"), "a link")
    assert served.url.partition("token=")[2] not in link
    browser.forget_cookies()
    browser.open(here)
    browser.wait_for("Refused")
    browser.open(link)
    browser.wait_for("read only")
    assert browser.driver.current_url.endswith("/doctor?x=1")


def test_a_reader_who_knows_the_tab_of_an_owner_cannot_act_through_it(browser: Browser, served: ServedPage):
    browser.open(served.url)
    browser.wait_for("Now")
    browser.until(lambda: browser.script("return window.did_handshake"), "a socket")
    tab = browser.script("return window.clientId")
    assert browser.driver.execute_async_script(SEND, tab) == "taken"
    browser.forget_cookies()
    browser.open(served.reader_url)
    browser.wait_for("read only")
    browser.until(lambda: browser.script("return window.did_handshake"), "a socket")
    own_tab = browser.script("return window.clientId")
    assert browser.driver.execute_async_script(SEND, own_tab) == "taken"
    assert browser.driver.execute_async_script(SEND, tab) == "refused"


@contextlib.contextmanager
def other_port(content: str) -> Generator[tuple[int, list[str]]]:
    """Serve a page at another port of this host, as any user of it can; yields the port, and the cookies that come."""
    came: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            came.append(self.headers.get("Cookie", ""))
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(content.encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server.server_port, came
        finally:
            server.shutdown()
            thread.join()


def test_token_is_not_sent_to_other_ports_of_this_host(browser: Browser, served: ServedPage):
    browser.open(served.url)
    browser.wait_for("Now")
    with other_port("<p>a page of another user") as (port, came):
        browser.open(f"http://127.0.0.1:{port}/runs")
        browser.wait_for("a page of another user")
    assert came
    assert all(served.url.partition("token=")[2] not in cookies for cookies in came)


def test_link_of_another_site_opens_the_page(browser: Browser, served: ServedPage):
    with other_port(f'<a href="{served.url}">the page</a>') as (port, _):
        browser.open(f"http://localhost:{port}/")
        browser.click("the page")
        browser.wait_for("Now", "Runs")
    assert "token" not in browser.driver.current_url


def test_scripts_name_no_path_without_the_place_of_the_token():
    scripts = list(importlib.resources.files("ropewalk.page.browser").iterdir())
    texts = {script.name: script.read_text("utf-8") for script in scripts if script.name.endswith(".js")}
    assert len(texts) > 1
    wrong = [(name, *re.findall(r'(?:(?:href|src) = |fetch\()["\']/.*', text)) for name, text in texts.items()]
    assert [one for one in wrong if one[1:]] == []


def test_killed_page_leaves_the_program_alone(program: rw.RunningProgram):
    with served_page() as page:
        page.process.kill()
        page.process.wait()
    find_launchers(usual_parents(Path(os.environ["TMPDIR"])))  # as `ropewalk ps` does, which removes its folder
    assert program.client("counter").add(1) == 2


def test_sigterm_ends_the_page_and_removes_what_it_made(served: ServedPage):
    served.process.send_signal(signal.SIGTERM)
    assert served.process.wait(60.0) == 143


def test_page_of_a_script_ends_with_it():
    code = (
        "import ropewalk as rw, os\n"
        "page = rw.page()\n"
        "print(page.url, page._process.pid, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    said = subprocess.run([sys.executable, "-P", "-c", code], stdout=subprocess.PIPE, text=True).stdout
    url, pid = said.split()
    assert url.startswith("http://127.0.0.1:")
    wait_for_end(int(pid))


def test_page_opened_by_a_script_answers_and_closes():
    with rw.page() as page:
        place = urllib.request.Request(page.reader_url)
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        with opener.open(place) as answer:
            assert answer.status == 200
        assert page.url not in repr(page)
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(page.url)


@pytest.mark.parametrize(("error", "kept"), [("No response returned.", False), ("No response", True), (None, True)])
def test_browser_that_does_not_wait_for_its_answer_is_no_error(error: str | None, kept: bool):
    raised = RuntimeError(error) if error else None
    info = (type(raised), raised, None) if raised else None
    record = logging.LogRecord("uvicorn.error", logging.ERROR, "", 1, "Exception in ASGI application", (), info)
    assert is_no_visitor_who_left(record) is kept


def test_visitors_do_not_control_the_terminal():
    logger = logging.Logger("of the page")
    said = io.StringIO()
    logger.addHandler(logging.StreamHandler(said))
    logger.addFilter(escape_record)
    logger.warning("http://127.0.0.1/%s not found", "\x1b]0;owned\x07\nforged")
    try:
        raise ValueError("\x1b[31mred")
    except ValueError as error:
        logger.exception(error)
    assert "\x1b" not in said.getvalue()
    assert said.getvalue().splitlines()[0] == r"http://127.0.0.1/\x1b]0;owned\x07\nforged not found"
    assert r"ValueError: \x1b[31mred" in said.getvalue()


def wait_for_end(pid: int) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(pid).wait(60.0)
