"""Measures `ropewalk.tracking`: what logging costs, and how fast a store takes metrics and gives them back.

    python benchmarks/tracking.py                             the whole table
    python benchmarks/tracking.py --rows store_metrics        some rows
    python benchmarks/tracking.py --quick                     small and short: shows that all rows run, proves nothing
    python benchmarks/tracking.py --postgres URL              the store's rows also on this empty database
    python benchmarks/tracking.py --json FILE --markdown FILE

Each row runs in an interpreter of its own, under a time limit: a row that hangs or fails is a line of the table like
any other. A group of rows is a module with a dictionary `ROWS`; it is listed in `GROUPS`.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pathlib
import sys
from collections.abc import Iterator

import tracking_log_rows
import tracking_store_rows
from pool_rows import Bench, Line
from table import machine, measured_alone, tell

LIMIT_S = 600
GROUPS = (tracking_log_rows, tracking_store_rows)
ROWS = {name: row for group in GROUPS for name, row in group.ROWS.items()}
CONTENDERS = ("ropewalk", "store", "CPU time", "load")
"""The columns after the verdict; each line fills some of them."""


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure tracking.")
    parser.add_argument("--rows", nargs="+", metavar="ROW", choices=ROWS, default=list(ROWS), help=", ".join(ROWS))
    parser.add_argument("--quick", action="store_true", help="smaller and fewer rounds")
    parser.add_argument("--postgres", default="", metavar="URL", help="an empty database for the rows of the store")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write the lines as JSON")
    parser.add_argument("--markdown", type=pathlib.Path, metavar="FILE", help="write the table for tracking.md")
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
    if options.postgres:
        os.environ["BENCHMARK_POSTGRES"] = options.postgres
    lines = (line for name in options.rows for line in run_alone(name, quick=options.quick))
    return tell(lines, CONTENDERS, machine(), as_json=options.json, as_markdown=options.markdown, details=True)


def run_alone(name: str, *, quick: bool) -> Iterator[Line]:
    """The lines of one row, measured by another interpreter."""
    threads = str(tracking_log_rows.THREADS.get(name, 1))
    os.environ.update(OPENBLAS_NUM_THREADS=threads, OMP_NUM_THREADS=threads)
    return measured_alone(name, [sys.executable, __file__, "--rows", name, *["--quick"] * quick], LIMIT_S)


if __name__ == "__main__":
    sys.exit(main())
