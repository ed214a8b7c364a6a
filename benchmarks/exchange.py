"""Measures exchanges of gradients against memory, gloo, DDP and dense exchanges, as ratios from one run.

    python benchmarks/exchange.py                      the whole table
    python benchmarks/exchange.py --rows kernel        some rows
    python benchmarks/exchange.py --quick              smaller and fewer rounds: shows that all rows run, proves nothing
    python benchmarks/exchange.py --json FILE --markdown FILE

Each row runs in an interpreter of its own, under a time limit: a row that hangs or fails is a line of the table like
any other. A group of rows is a module with a dictionary `ROWS`; it is listed in `GROUPS`. exchange.md says how it is
measured.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pathlib
import sys
from collections.abc import Iterator

import ddp_rows
import kernel_rows
import link_rows
import sparse_rows
from exchange_bench import Bench, Row
from pool_rows import Line
from table import machine, measured_alone, tell

LIMIT_S = 600
GROUPS = (kernel_rows, sparse_rows, ddp_rows, link_rows)
ROWS: dict[str, Row] = {name: row for group in GROUPS for name, row in group.ROWS.items()}
#: The columns of contenders, ours first; each line fills some of them.
CONTENDERS = ("ropewalk", "bare", "DDP", "gloo", "numpy", "torch", "copy")


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure exchanges of gradients.")
    parser.add_argument("--rows", nargs="+", metavar="ROW", choices=ROWS, default=list(ROWS), help=", ".join(ROWS))
    parser.add_argument("--repeats", type=int, default=9, metavar="N", help="rounds of each measurement (default 9)")
    parser.add_argument("--quick", action="store_true", help="smaller and fewer rounds")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write the lines as JSON")
    parser.add_argument("--markdown", type=pathlib.Path, metavar="FILE", help="write the table for exchange.md")
    parser.add_argument("--here", type=pathlib.Path, metavar="FILE", help=argparse.SUPPRESS)
    options = parser.parse_args()
    # An installed package has its byte code; a checkout gets it on the first import, unless this forbids it.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    # Our kernels run in one thread; so does what they are compared with.
    os.environ.update(OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1")
    if options.here:
        bench = Bench(min(2, options.repeats) if options.quick else options.repeats, options.quick)
        with options.here.open("w") as file:
            for line in ROWS[options.rows[0]](bench):
                print(json.dumps(dataclasses.asdict(line)), file=file, flush=True)
        return 0

    lines = (line for name in options.rows for line in run_alone(name, options))
    return tell(lines, CONTENDERS, machine(), as_json=options.json, as_markdown=options.markdown)


def run_alone(name: str, options: argparse.Namespace) -> Iterator[Line]:
    """The lines of one row, measured by another interpreter."""
    command = [sys.executable, __file__, "--rows", name]
    command += ["--repeats", str(options.repeats), *["--quick"] * options.quick]
    return measured_alone(name, command, LIMIT_S)


if __name__ == "__main__":
    sys.exit(main())
