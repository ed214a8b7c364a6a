"""Measures the page in a real Chromium: `python -m benchmarks.page [--rows idle truth table curve] [--json FILE]`.

    idle     CPU of the page's process with 50 running processes, without a tab and with one on them; of their launcher
    truth    from SIGKILL of a worker until a person can read its death on the page
    table    until the first rows of 10,000 runs can be read
    curve    until a curve of 10^6 points is drawn

CPU is measured over a minute; the others are medians of five rounds, with the CPU seconds of the page's process and of
the browser, which mean something on a busy machine too. The load of the machine stands beside them.
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
_SPAN_S = 60.0
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


def cpu_s(process: psutil.Process) -> float:
    """CPU seconds that a process has used."""
    times = process.cpu_times()
    return times.user + times.system


def cpu_shares(*processes: psutil.Process) -> list[str]:
    """CPU of each process over a minute, as text."""
    before, began = [cpu_s(process) for process in processes], time.perf_counter()
    time.sleep(_SPAN_S)
    used, took_s = [cpu_s(each) - at for each, at in zip(processes, before, strict=True)], time.perf_counter() - began
    return [f"{each:.2f} CPU s in {took_s:.0f} s, {100 * each / took_s:.2f} % of a core" for each in used]


def cpu_of_browser(browser: Browser) -> dict[int, float]:
    """CPU seconds of each process of a browser, by number."""
    folder = browser.driver.capabilities["chrome"]["userDataDir"]
    found: dict[int, float] = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, IndexError):
            words = process.cmdline()
            if any(word.endswith(folder) for word in words) and "chromedriver" not in words[0]:
                found[process.pid] = cpu_s(process)
    return found


def idle(browser: Browser) -> Iterator[tuple[str, str]]:
    """CPU of the page and of what it looks at."""
    with launcher(50) as process, served_page() as page:
        server, pool = psutil.Process(page.process.pid), psutil.Process(process.pid)
        names = ("page", "launcher of 50 workers")
        for name, used in zip(names, cpu_shares(server, pool), strict=True):
            yield f"{name}, no tab", used
        open_pool(browser, page)
        time.sleep(5.0)
        for name, used in zip(names, cpu_shares(server, pool), strict=True):
            yield f"{name}, a tab on it", used
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
    rows = lambda: browser.driver.find_elements("css selector", ".ag-row .ag-cell")  # noqa: E731
    yield from opened(browser, fill_runs, "/runs", rows, "first rows of 10,000 runs are read after")


def curve(browser: Browser) -> Iterator[tuple[str, str]]:
    """A million points."""
    drawn = lambda: any(map(has_points, browser.charts()))  # noqa: E731
    yield from opened(browser, fill_curve, "/runs/long", drawn, "a curve of 10^6 points is drawn after")


ROWS: dict[str, Callable[[Browser], Iterator[tuple[str, str]]]] = {
    "idle": idle, "truth": truth, "table": table, "curve": curve,
}  # fmt: skip


def opened(
    browser: Browser, fill: Callable[[], Iterator[RunRecord]], path: str, is_there: Callable[[], object], what: str
) -> Iterator[tuple[str, str]]:
    """How long until a page of a store shows what it should, and what that costs."""
    seen: list[float] = []
    costs: dict[str, list[float]] = {"page": [], "browser": []}
    with stored(fill) as store, served_page("--store", store) as page:
        browser.open(page.url)
        server = psutil.Process(page.process.pid)
        for _ in range(ROUNDS):
            browser.driver.get("about:blank")
            before, known, began = cpu_s(server), cpu_of_browser(browser), time.perf_counter()
            browser.open(f"{page.base}{path}")
            browser.until(is_there, path)
            seen.append(time.perf_counter() - began)
            costs["page"].append(cpu_s(server) - before)
            used = cpu_of_browser(browser)
            costs["browser"].append(sum(each - known.get(pid, 0.0) for pid, each in used.items()))
        browser.leave()
    yield what, shown(seen)
    for name, seconds in costs.items():
        yield f"  CPU of the {name} until then", shown(seconds)


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
