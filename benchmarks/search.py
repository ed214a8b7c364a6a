"""Measures `ropewalk.search`: what a trial costs beside a bare task, and what stopping early saves.

    python benchmarks/search.py                      the whole table, about six minutes on 2 cores
    python benchmarks/search.py --rows short         some rows
    python benchmarks/search.py --quick              small and short: shows that all rows run, proves nothing
    python benchmarks/search.py --ray PYTHON         with Ray Tune, in an environment of its own
    python benchmarks/search.py --json FILE --markdown FILE

`short`: 200 trials of 50 ms on two workers, in turn with `Pool.map` over the same function, Optuna's `n_jobs=2`
(threads with an in-memory study) and Ray Tune.

`digits`: ASHA with six times as many configurations as random search, which trains each of them for 81 epochs: the
share of random search's epochs that all trials of ASHA take together, if ASHA has found the accuracy of random search's
best trial; else infinity. The digit classifier is that of examples/search_digits.py, with two workers; mean of five
seeds.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator

import search_subject
from pool_rows import Bench, Line
from table import machine, measured_alone, tell

import ropewalk as rw
from ropewalk.search import ASHA, Search, SearchResults, Uniform

LIMIT_S = 1200
CONTENDERS = ("ropewalk", "Pool.map", "Optuna", "Ray Tune", "random search", "load")
WORKERS = 2


def short(bench: Bench) -> Iterator[Line]:
    trials, rounds = (20, 2) if bench.quick else (200, 3)
    ways: dict[str, Callable[[], float]] = {
        "ropewalk": lambda: searched(trials),
        "Pool.map": lambda: mapped(trials),
        "Optuna": lambda: by_optuna(trials),
    }
    if python := os.environ.get("BENCHMARK_RAY_PYTHON"):
        ways["Ray Tune"] = lambda: by_ray(python, trials)
    names, seconds = list(ways), {name: [0.0] * rounds for name in ways}
    for turn in range(rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            seconds[name][turn] = ways[name]()
    middle = {name: statistics.median(values) for name, values in seconds.items()}
    ratio = middle["ropewalk"] / middle["Pool.map"]
    values = {name: f"{value:.2f} s" for name, value in middle.items()}
    what = f"{trials} trials of {search_subject.PAUSE_S * 1e3:.0f} ms, {WORKERS} workers"
    yield Line(what, "at most 1.15 x Pool.map", f"{ratio:.2f} x", ratio <= 1.15, values)


def searched(trials: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        search = Search(
            search_subject.paused,
            {"x": Uniform(0, 1)},
            metric="score",
            trials=trials,
            max_concurrent=WORKERS,
            store=pathlib.Path(folder, "runs.db"),
            progress=False,
        )
        begun = time.perf_counter()
        search.run()
        return time.perf_counter() - begun


def mapped(trials: int) -> float:
    begun = time.perf_counter()
    with rw.Pool(WORKERS) as pool:
        pool.map(search_subject.pause, range(trials), chunksize=1)
    return time.perf_counter() - begun


def by_optuna(trials: int) -> float:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.RandomSampler(seed=0))
    begun = time.perf_counter()
    study.optimize(search_subject.objective, n_trials=trials, n_jobs=WORKERS)
    return time.perf_counter() - begun


def by_ray(python: str, trials: int) -> float:
    script = pathlib.Path(__file__).with_name("search_ray.py")
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([python, script, str(trials)], capture_output=True, text=True, check=True, env=clean)
    return float(json.loads(done.stdout.splitlines()[-1])["seconds"])


def digits(bench: Bench) -> Iterator[Line]:
    seeds, trials, epochs = (1, 6, 9) if bench.quick else (5, 32, 81)
    shares: list[float] = []
    for seed in range(seeds):
        random = digits_searched(seed, trials, epochs, "none")
        early = digits_searched(seed, 6 * trials, epochs, ASHA(R=epochs, eta=3))
        target = random.best.best or 0.0
        shares.append(epochs_until(early, target) / sum(trial.step for trial in random))
    share = statistics.mean(shares)
    what = f"epochs until random search's best accuracy, {trials} configurations x {epochs} epochs, {seeds} seeds"
    shown = ", ".join(f"{each:.2f}" for each in shares)
    yield Line(what, "at most 0.4 x", f"{share:.2f} x", share <= 0.4, {"ropewalk": shown, "random search": "1"})


def digits_searched(seed: int, trials: int, epochs: int, scheduler: str | ASHA) -> SearchResults:
    example = search_subject.digits()
    with tempfile.TemporaryDirectory() as folder:
        search = Search(
            example.train,
            example.SPACE,
            metric="accuracy",
            scheduler=scheduler,
            trials=trials,
            max_concurrent=WORKERS,
            seed=seed,
            store=pathlib.Path(folder, "runs.db"),
            preload=["torch"],
            progress=False,
        )
        return search.run()


def epochs_until(results: SearchResults, target: float) -> float:
    """Epochs of all trials, if one of them has the accuracy; else infinity."""
    is_reached = any(trial.best is not None and trial.best >= target for trial in results)
    return sum(trial.step for trial in results) if is_reached else float("inf")


ROWS: dict[str, Callable[[Bench], Iterator[Line]]] = {"short": short, "digits": digits}


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure searches.")
    parser.add_argument("--rows", nargs="+", metavar="ROW", choices=ROWS, default=list(ROWS), help=", ".join(ROWS))
    parser.add_argument("--quick", action="store_true", help="smaller and fewer rounds")
    parser.add_argument("--ray", default="", metavar="PYTHON", help="one that has ray[tune]")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write the lines as JSON")
    parser.add_argument("--markdown", type=pathlib.Path, metavar="FILE", help="write the table for search.md")
    parser.add_argument("--here", type=pathlib.Path, metavar="FILE", help=argparse.SUPPRESS)
    options = parser.parse_args()
    # An installed package has its byte code; a checkout gets it on the first import, unless this forbids it.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    if options.here:
        with options.here.open("w") as file:
            for line in ROWS[options.rows[0]](Bench(quick=options.quick)):
                line.values["load"] = f"{os.getloadavg()[0]:.1f}"
                print(json.dumps(dataclasses.asdict(line)), file=file, flush=True)
        return 0
    path = os.pathsep.join(
        [str(pathlib.Path(__file__).resolve().parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    os.environ.update(OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1", PYTHONPATH=path, BENCHMARK_RAY_PYTHON=options.ray)
    lines = (line for name in options.rows for line in run_alone(name, quick=options.quick))
    return tell(lines, CONTENDERS, machine(), as_json=options.json, as_markdown=options.markdown, details=True)


def run_alone(name: str, *, quick: bool) -> Iterator[Line]:
    """The lines of one row, measured by another interpreter."""
    return measured_alone(name, [sys.executable, __file__, "--rows", name, *["--quick"] * quick], LIMIT_S)


if __name__ == "__main__":
    sys.exit(main())
