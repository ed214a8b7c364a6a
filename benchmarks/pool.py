"""Measures `ropewalk.Pool` against the pools people use, and prints one table with ratios from one run.

    python benchmarks/pool.py                          the whole table, about ten minutes
    python benchmarks/pool.py --only noop round-trip   some rows
    python benchmarks/pool.py --quick                  smaller and fewer rounds: shows that all rows run, proves nothing
    python benchmarks/pool.py --against futures loky   without Ray, whose 20,000 no-op tasks alone take minutes
    python benchmarks/pool.py --floor                  with a bare fork + socketpair pool, the physical floor
    python benchmarks/pool.py --json FILE --markdown FILE

Each row runs in an interpreter of its own, under a time limit: a row that hangs
or fails is a line of the table like any other, and no row pays for what an
earlier one has left behind. pool.md says how it is measured.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pathlib
import sys
from collections.abc import Iterator

from pool_rows import OTHERS, ROWS, Bench, Line
from table import machine, measured_alone, tell

LIMIT_S = 300
#: The columns of contenders, ours first.
CONTENDERS = ("ropewalk", *OTHERS, "bare", "ideal")


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure ropewalk.Pool against the pools people use.")
    parser.add_argument("--only", nargs="+", metavar="ROW", choices=ROWS, default=list(ROWS), help=", ".join(ROWS))
    parser.add_argument("--quick", action="store_true", help="smaller and fewer rounds")
    parser.add_argument("--floor", action="store_true", help="also measure the bare pool")
    parser.add_argument(
        "--against",
        nargs="+",
        choices=OTHERS,
        default=list(OTHERS),
        help="libraries that take part, beside multiprocessing",
    )
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write the lines as JSON")
    parser.add_argument("--markdown", type=pathlib.Path, metavar="FILE", help="write the table for pool.md")
    parser.add_argument("--pool", default="ropewalk", metavar="MODULE", help="module whose Pool is the subject")
    parser.add_argument("--here", type=pathlib.Path, metavar="FILE", help=argparse.SUPPRESS)
    options = parser.parse_args()
    os.environ["BENCHMARK_POOL"] = options.pool
    # An installed package has its byte code; a checkout gets it on the first import, unless this forbids it.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    against = tuple(name for name in OTHERS if name in {"multiprocessing", *options.against})
    bench = Bench(quick=options.quick, floor=options.floor, against=against)
    if options.here:
        with options.here.open("w") as file:
            for line in ROWS[options.only[0]](bench):
                print(json.dumps(dataclasses.asdict(line)), file=file, flush=True)
        return 0

    lines = (line for name in options.only for line in run_alone(name, options))
    return tell(lines, CONTENDERS, machine(), as_json=options.json, as_markdown=options.markdown)


def run_alone(name: str, options: argparse.Namespace) -> Iterator[Line]:
    """The lines of one row, measured by another interpreter."""
    flags = [flag for flag in ("--quick", "--floor") if getattr(options, flag[2:])]
    command = [sys.executable, __file__, "--only", name, "--pool", options.pool, "--against", *options.against, *flags]
    return measured_alone(name, command, LIMIT_S)


if __name__ == "__main__":
    sys.exit(main())
