"""Rows of the table of tracking that concern a script: what `log` costs its caller, and a training that logs a lot.

Beside ours stand MLflow, Trackio and W&B offline, where they are installed, each used as its first example shows.
"""

from __future__ import annotations

import contextlib
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from pool_rows import Bench, Line

import ropewalk as rw
from ropewalk.tracking import open_store

LIMIT_US = 20.0
CALLS = 3000
PER_STEP = 100
"""Metrics that a step of training logs; with 1000 steps a second they are 10^5 a second."""
STEP_S = 1e-3
PAIRS, SEGMENT_S = 30, 2.0
"""Segments with and without logging take turns: a minute of each."""
MOST_COST = 0.02
"""In a run in which a quarter of the pairs is faster by this with logging than without, other work has decided."""
LOST_S = 0.1

Log = Callable[[dict[str, float], int], object]


# --- who logs ---------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def ours(folder: str) -> Generator[Log]:
    with rw.track("bench", store=Path(folder, "runs.db")) as run:
        yield lambda values, step: run.log(values, step=step)


@contextlib.contextmanager
def mlflow(folder: str) -> Generator[Log]:
    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
    import mlflow

    mlflow.set_tracking_uri(Path(folder, "mlruns").as_uri())
    mlflow.set_experiment("bench")
    with mlflow.start_run():
        yield lambda values, step: mlflow.log_metrics(values, step=step)


@contextlib.contextmanager
def trackio(folder: str) -> Generator[Log]:
    os.environ.update(TRACKIO_DIR=folder, HF_HUB_OFFLINE="1")
    import trackio

    trackio.init(project="bench", embed=False)
    yield lambda values, step: trackio.log(values, step=step)
    trackio.finish()


@contextlib.contextmanager
def wandb(folder: str) -> Generator[Log]:
    import wandb

    run = wandb.init(project="bench", mode="offline", dir=folder, settings=wandb.Settings(silent=True, console="off"))
    yield lambda values, step: run.log(values, step=step)
    run.finish()


LOGGERS: dict[str, Callable[[str], contextlib.AbstractContextManager[Log]]] = {
    "ropewalk": ours,
    "mlflow": mlflow,
    "trackio": trackio,
    "wandb": wandb,
}


# --- rows -------------------------------------------------------------------------------------------------------------


def log(bench: Bench) -> Iterator[Line]:
    """What a call with ten numbers costs the caller, with a millisecond between calls, as in training."""
    seen: dict[str, str] = {}
    median_us = 0.0
    for name, begin in LOGGERS.items():
        calls = bench.tasks(CALLS) if name == "ropewalk" else bench.tasks(CALLS) // 3
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            try:
                found_us, cpu_us = _call_us(begin, folder, calls)
            except ImportError:
                seen[name] = "not installed"
                continue
        middle = statistics.median(found_us)
        seen[name] = f"{middle:.1f} µs, worst of a hundred {np.percentile(found_us, 99):.0f} µs, CPU {cpu_us:.0f} µs"
        if name == "ropewalk":
            median_us = middle
    yield Line(
        "log of ten numbers, for its caller", f"<= {LIMIT_US:g} µs", f"{median_us:.1f} µs", median_us <= LIMIT_US, seen
    )


def _call_us(begin: Callable[[str], contextlib.AbstractContextManager[Log]], folder: str, calls: int) -> Any:
    found: list[float] = []
    with begin(folder) as log:
        before = time.process_time()
        for step in range(1, calls + 1):
            values = {f"metric-{number}": step + 0.1 * number for number in range(10)}
            begun = time.perf_counter()
            log(values, step)
            found.append(1e6 * (time.perf_counter() - begun))
            time.sleep(1e-3)
        cpu_us = 1e6 * (time.process_time() - before) / calls
    return found, cpu_us


def load(bench: Bench) -> Iterator[Line]:
    """A training that logs 10^5 metrics a second for a minute, beside itself without logging; it uses one core."""
    yield from _load(bench, "in one thread")


def load_on_all_cores(bench: Bench) -> Iterator[Line]:
    """The same with each matrix product on all cores, so that other threads take their time from it."""
    yield from _load(bench, f"on all {os.cpu_count()} cores")


def _load(bench: Bench, where_it_runs: str) -> Iterator[Line]:
    pairs, segment_s = (2, 0.5) if bench.quick else (PAIRS, SEGMENT_S)
    step = _step_of(STEP_S)
    names = [f"metric-{number}" for number in range(PER_STEP)]
    rates: dict[bool, list[float]] = {False: [], True: []}
    caller: dict[bool, list[float]] = {False: [], True: []}  # CPU time of a step in the training's own thread
    others: dict[bool, list[float]] = {False: [], True: []}  # CPU time of all other threads, by second
    with tempfile.TemporaryDirectory() as folder:
        where = Path(folder, "runs.db")
        with rw.track("bench", store=where) as run:
            values = dict.fromkeys(names, 0.5)
            logged = 0
            for number in range(2 * pairs):
                is_logging = number % 4 in (1, 2)  # off, on, on, off: a drift of the machine's speed cancels out
                begun, steps = time.perf_counter(), 0
                before = time.thread_time(), time.process_time()
                while time.perf_counter() - begun < segment_s:
                    step()
                    if is_logging:
                        logged += 1
                        run.log(values, step=logged)
                    steps += 1
                took_s, own_s = time.perf_counter() - begun, time.thread_time() - before[0]
                rates[is_logging].append(steps / took_s)
                caller[is_logging].append(own_s / steps)
                others[is_logging].append((time.process_time() - before[1] - own_s) / took_s)
                if is_logging:
                    run.flush()
        with open_store(where) as store:
            kept = sum(series.count for series in store.series(run.id) if not series.group)
    ratios = sorted(without / with_ - 1 for without, with_ in zip(rates[False], rates[True], strict=True))
    cost = statistics.median(ratios)
    a_second = statistics.median(rates[True]) * PER_STEP
    low, high = (100 * ratios[len(ratios) * part // 4] for part in (1, 3))
    own, other = _median(caller, True) / _median(caller, False) - 1, _median(others, True) - _median(others, False)
    yield Line(
        f"training {where_it_runs} that logs {a_second:,.0f} metrics a second for {pairs * segment_s:.0f} s",
        "<= 2 % slower, none lost",
        f"{100 * cost:.2f} % slower, {logged * PER_STEP - kept} of {logged * PER_STEP:,} lost",
        ratios[len(ratios) // 4] >= -MOST_COST and cost <= MOST_COST and kept == logged * PER_STEP,
        {
            "ropewalk": f"quartiles {low:.2f} to {high:.2f} %; CPU time of the training's thread {100 * own:.2f} % "
            f"more, of other threads {100 * other:.1f} % of a core"
        },
    )


def _median(found: dict[bool, list[float]], is_logging: bool) -> float:
    return statistics.median(found[is_logging])


def _step_of(duration_s: float) -> Callable[[], object]:
    """Return a step of training: products of matrices, which let other threads run, for a duration."""
    matrix = np.random.default_rng(1).random((160, 160), dtype=np.float32)
    out = np.empty_like(matrix)

    def products(count: int) -> None:
        for _ in range(count):
            np.matmul(matrix, matrix, out=out)

    begun = time.perf_counter()
    products(2000)
    count = max(1, round(2000 * duration_s / (time.perf_counter() - begun)))
    return lambda: products(count)


LOSS_SCRIPT = """
import sys, time
import ropewalk as rw

run = rw.track("bench", store=sys.argv[1])
print(run.id, flush=True)
step = 0
while True:
    step += 1
    run.log(time=time.time(), step=step)
    time.sleep(0.001)
"""


def lost(bench: Bench) -> Iterator[Line]:
    """How much of what a script has logged is lost when it is killed with SIGKILL."""
    ages: list[float] = []
    for _ in range(bench.rounds(10)):
        with tempfile.TemporaryDirectory() as folder:
            where = Path(folder, "runs.db")
            command = [sys.executable, "-c", LOSS_SCRIPT, str(where)]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
                assert process.stdout is not None
                run = process.stdout.readline().strip()
                time.sleep(1.0)
                process.send_signal(signal.SIGKILL)
                killed = time.time()
            with open_store(where) as store:
                ages.append(killed - float(store.points(run, "time").values[-1]))
    worst = max(ages)
    yield Line(
        f"lost of a script after SIGKILL, worst of {len(ages)}",
        f"<= the last {1e3 * LOST_S:.0f} ms",
        f"the last {1e3 * worst:.0f} ms",
        worst <= LOST_S,
        {"ropewalk": f"median {1e3 * statistics.median(ages):.0f} ms"},
    )


ROWS = {"log": log, "load": load, "load_on_all_cores": load_on_all_cores, "lost": lost}
THREADS = {"load_on_all_cores": os.cpu_count() or 1}
"""Threads of a matrix product, where it is more than one."""
