"""Measures the page in a real Chromium: `python -m benchmarks.page [--rows idle truth table curve] [--json FILE]`.

    idle     CPU of the page's process with 50 running processes, without a tab and with one on them; of their launcher
    truth    from SIGKILL of a worker until a person can read its death on the page
    table    until the first rows of 10,000 runs can be read
    curve    until a curve of 10^6 points is drawn

CPU is measured over ten seconds; the others are medians of five rounds. The load of the machine stands beside them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import psutil
from tests.lab.browser import Browser, ServedPage, chromium, served_page

from ropewalk.page.source import Launchers
from ropewalk.tracking import open_store
from ropewalk.tracking.records import Metrics, RunCreated, RunRecord, StateIs

ROUNDS = 5
_SPAN_S = 10.0
_LAUNCHER = """
import sys, time, ropewalk as rw
with rw.Pool(int(sys.argv[1]), name="measured") as pool:
    pool.map(len, [""] * 1000)
    print("up", flush=True)
    while True:
        pool.map(time.sleep, [0.05] * len(pool.status().workers))
        time.sleep(1.0)
"""


@contextlib.contextmanager
def launcher(workers: int) -> Generator[subprocess.Popen[str]]:
    """A pool that does little, in a process of its own."""
    command = [sys.executable, "-P", "-c", _LAUNCHER, str(workers)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            process.stdout.readline()
            yield process
        finally:
            process.kill()


def cpu_share(process: psutil.Process) -> float:
    """CPU seconds in a second, of one process."""
    before, began = process.cpu_times(), time.perf_counter()
    time.sleep(_SPAN_S)
    after, took_s = process.cpu_times(), time.perf_counter() - began
    return (after.user + after.system - before.user - before.system) / took_s


def idle(browser: Browser) -> Iterator[tuple[str, str]]:
    """CPU of the page and of what it looks at."""
    with launcher(50) as process, served_page() as page:
        server, pool = psutil.Process(page.process.pid), psutil.Process(process.pid)
        yield "page, no tab", percent(cpu_share(server))
        yield "launcher of 50 workers, not looked at", percent(cpu_share(pool))
        open_pool(browser, page)
        time.sleep(5.0)
        yield "page, a tab on 50 workers", percent(cpu_share(server))
        yield "launcher of 50 workers, looked at", percent(cpu_share(pool))
        browser.leave()


def truth(browser: Browser) -> Iterator[tuple[str, str]]:
    """How old what a person reads is."""
    seen: list[float] = []
    with launcher(4) as process, served_page() as page:
        open_pool(browser, page)
        for number in range(1, ROUNDS + 1):
            worker = next(one for one in psutil.Process(process.pid).children(recursive=True) if is_worker(one))
            began = time.perf_counter()
            worker.send_signal(signal.SIGKILL)
            browser.until(lambda: count_of(browser, "deaths") >= number, "its death")  # noqa: B023
            seen.append(time.perf_counter() - began)
            time.sleep(2.0)
        browser.leave()
    yield "death of a worker is read after", shown(seen)


def table(browser: Browser) -> Iterator[tuple[str, str]]:
    """10,000 runs."""
    seen = opened(browser, fill_runs, "/runs", lambda: browser.driver.find_elements("css selector", ".ag-row .ag-cell"))
    yield "first rows of 10,000 runs are read after", shown(seen)


def curve(browser: Browser) -> Iterator[tuple[str, str]]:
    """A million points."""
    seen = opened(browser, fill_curve, "/runs/long", lambda: any(map(has_points, browser.charts())))
    yield "a curve of 10^6 points is drawn after", shown(seen)


ROWS: dict[str, Callable[[Browser], Iterator[tuple[str, str]]]] = {
    "idle": idle, "truth": truth, "table": table, "curve": curve,
}  # fmt: skip


def opened(
    browser: Browser, fill: Callable[[], Iterator[RunRecord]], path: str, is_there: Callable[[], object]
) -> list[float]:
    """Seconds until a page of a store shows what it should, in each round."""
    seen: list[float] = []
    with stored(fill) as store, served_page("--store", store) as page:
        browser.open(page.url)
        for _ in range(ROUNDS):
            began = time.perf_counter()
            browser.open(f"{page.base}{path}")
            browser.until(is_there, path)
            seen.append(time.perf_counter() - began)
        browser.leave()
    return seen


def open_pool(browser: Browser, page: ServedPage) -> None:
    with Launchers() as launchers:
        id = next(look.id for look in launchers.look({}) if look.view and look.view.name == "measured")
    browser.open(page.url)
    browser.open(f"{page.base}/now/{id}")
    browser.wait_for("Processes", "measured.0")


def is_worker(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return "measured" in " ".join(process.cmdline()) or "measured" in process.name()
    return False


def count_of(browser: Browser, fact: str) -> int:
    code = """for (const f of document.querySelectorAll('.rw-fact')) {
        const l = f.innerText.split('\\n'); if (l[0].trim() === arguments[0]) return parseInt(l[1]); } return -1;"""
    return int(browser.script(code, fact))


def has_points(option: dict[str, object]) -> bool:
    series = option.get("series")
    return isinstance(series, list) and any(len(one.get("data") or ()) > 100 for one in series)


@contextlib.contextmanager
def stored(fill: Callable[[], Iterator[RunRecord]]) -> Generator[str]:
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, "runs.db"))
        with open_store(path) as store:
            batch: list[RunRecord] = []
            for record in fill():
                batch.append(record)
                if len(batch) == 2000:
                    store.apply(batch)
                    batch = []
            store.apply(batch)
        yield path


def created(run: str) -> RunRecord:
    config = {"lr": 1e-3, "model": {"width": 64, "depth": 3}, "optimizer": "adam", "batch": 128}
    return RunRecord(run, RunCreated("digits", f"name-of-{run}", "script", time.time(), config, {"argv": ["train.py"]}))


def fill_runs() -> Iterator[RunRecord]:
    for number in range(10_000):
        run = f"run{number:05d}"
        yield created(run)
        yield RunRecord(
            run, Metrics("", ["loss", "accuracy"], [1 / (number + 1), number / 1e4], float(number), time.time())
        )
        yield RunRecord(run, StateIs("done", time.time()))


def fill_curve() -> Iterator[RunRecord]:
    yield created("long")
    for step in range(1_000_000):
        yield RunRecord("long", Metrics("", ["loss"], [1000 / (step + 1000)], float(step), time.time()))
    yield RunRecord("long", StateIs("done", time.time()))


def percent(share: float) -> str:
    return f"{100 * share:.2f} % of a core"


def shown(seconds: list[float]) -> str:
    return f"{statistics.median(seconds):.2f} s ({min(seconds):.2f} to {max(seconds):.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    lines: list[dict[str, str]] = []
    with chromium() as browser:
        for name in options.rows:
            for what, value in ROWS[name](browser):
                load = f"{os.getloadavg()[0]:.1f}"
                lines.append({"row": name, "what": what, "value": value, "load": load})
                print(f"{name:6} {what:45} {value}   (load {load})", flush=True)
    if options.json:
        options.json.write_text(json.dumps(lines, indent=2))


if __name__ == "__main__":
    main()
