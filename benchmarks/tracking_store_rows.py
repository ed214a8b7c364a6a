"""Rows of the table of tracking that concern the store: how fast it takes metrics, and gives them and runs back.

Each row runs on a SQLite file, and on PostgreSQL too if `BENCHMARK_POSTGRES` is the URL of an empty database.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from pool_rows import Bench, Line

from ropewalk.tracking import RunStore, open_store
from ropewalk.tracking.records import Metrics, RunCreated, RunRecord, StateIs

NUM_POINTS = 1_000_000
NUM_RUNS = 10_000
DRAWN = 2000
"""Points of a curve that a page draws."""
BATCH = 500
"""Records of ten metrics that come within 50 ms at 10^5 metrics a second."""
ROUNDS = 5


def stores() -> Iterator[tuple[str, str]]:
    """Yield each database, and where to open it."""
    with tempfile.TemporaryDirectory() as folder:
        yield "SQLite", str(Path(folder, "runs.db"))
    if url := os.environ.get("BENCHMARK_POSTGRES"):
        yield "PostgreSQL", url


def times_of(work: Callable[[str], object], where: str, rounds: int) -> tuple[float, float]:
    """Return the median duration of some work with a store, and of its CPU time."""
    seen: list[tuple[float, float]] = []
    for _ in range(rounds):
        begun, begun_cpu = time.perf_counter(), time.process_time()
        work(where)
        seen.append((time.perf_counter() - begun, time.process_time() - begun_cpu))
    wall_s, cpu_s = (statistics.median(column) for column in zip(*seen, strict=True))
    return wall_s, cpu_s


def created(run: str) -> RunRecord:
    config = {"lr": 1e-3, "model": {"width": 64, "depth": 3}, "optimizer": "adam", "batch": 128}
    return RunRecord(run, RunCreated("digits", f"name-of-{run}", "trial", time.time(), config, {"argv": ["train.py"]}))


def fill(store: RunStore, run: str, num_series: int, num_points: int) -> float:
    """Store a run's metrics as a writer does; return the CPU time."""
    store.apply([created(run), RunRecord(run, StateIs("running", time.time()))])
    names = [f"metric-{number}" for number in range(num_series)]
    begun = time.process_time()
    for first in range(0, num_points // num_series, BATCH):
        steps = range(first, min(first + BATCH, num_points // num_series))
        store.apply([RunRecord(run, Metrics("", names, [float(s)] * num_series, s, time.time())) for s in steps])
    return time.process_time() - begun


def metrics(bench: Bench) -> Iterator[Line]:
    """A run of a million points: what it costs to store, and how fast it opens, in one series and in ten."""
    num_points = bench.tasks(NUM_POINTS)
    for database, where in stores():
        with open_store(where) as store:
            for num_series in (1, 10):
                run = f"run-{num_series}"
                cpu_s = fill(store, run, num_series, num_points)

                def show(where: str, run: str = run) -> None:
                    with open_store(where) as opened:
                        for series in opened.series(opened.run(run).id):
                            assert len(opened.points(run, series.name, max_points=DRAWN)) <= DRAWN

                opens_s, opens_cpu_s = times_of(show, where, bench.rounds(ROUNDS))
                yield Line(
                    f"open a run of {num_points:,} points in {num_series} series, {database}",
                    "< 0.5 s",
                    f"{opens_s:.3f} s",
                    opens_s < 0.5,
                    {
                        "CPU time": f"{opens_cpu_s:.3f} s",
                        "store": f"{cpu_s / num_points * 1e5:.3f} s CPU for 100,000 metrics",
                    },
                )


def runs(bench: Bench) -> Iterator[Line]:
    """A table of ten thousand runs, each with its settings, labels and the last values of five metrics."""
    num_runs = bench.tasks(NUM_RUNS)
    for database, where in stores():
        with open_store(where) as store:
            names = [f"metric-{number}" for number in range(5)]
            for first in range(0, num_runs, 100):
                batch: list[RunRecord] = []
                for number in range(first, first + 100):
                    run = f"{number:06x}"
                    point = Metrics("", names, [1.0] * 5, 1, time.time())
                    batch += [created(run), RunRecord(run, point), RunRecord(run, StateIs("done", time.time()))]
                store.apply(batch)

            def table(where: str) -> None:
                with open_store(where) as opened:
                    found = opened.runs(order="-created")
                    assert len(found) >= num_runs
                    assert len(opened.last_values([run.id for run in found])) == len(found)

            def page(where: str) -> None:
                with open_store(where) as opened:
                    assert len(opened.last_values([run.id for run in opened.runs(order="-created", limit=50)])) == 50

            (table_s, cpu_s), (page_s, _) = (times_of(work, where, bench.rounds(ROUNDS)) for work in (table, page))
            yield Line(
                f"list {num_runs:,} runs with 5 metrics each, {database}",
                "< 0.5 s",
                f"{table_s:.3f} s",
                table_s < 0.5,
                {"CPU time": f"{cpu_s:.3f} s", "store": f"the newest 50: {page_s:.3f} s"},
            )


ROWS = {"store_metrics": metrics, "store_runs": runs}
