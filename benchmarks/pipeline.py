"""Measures training in pipelines against torch.distributed.pipelining, one process and the ideal, as ratios of one run.

    python benchmarks/pipeline.py                        the whole table, an hour and a half on 2 cores
    python benchmarks/pipeline.py --only slope-1f1b mlp  some rows
    python benchmarks/pipeline.py --quick                fewer steps and rounds: shows that all rows run, proves nothing
    python benchmarks/pipeline.py --json FILE --markdown FILE

Each row runs in an interpreter of its own, under a time limit: a row that hangs or fails is a line of the table like
any other. A group of rows is a module with a dictionary `ROWS`; it is listed in `GROUPS`. pipeline.md says how it is
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

import emulated_rows
import prediction_rows
import recovery_rows
import slope_rows
import throughput_rows
from pipeline_bench import Bench, Row, with_load
from pool_rows import Line
from steady_memory import VARIABLES
from table import machine, measured_alone, tell

LIMIT_S = 2400
GROUPS = (slope_rows, throughput_rows, emulated_rows, prediction_rows, recovery_rows)
ROWS: dict[str, Row] = {name: row for group in GROUPS for name, row in group.ROWS.items()}
#: The columns of contenders, ours first; each line fills some of them.
CONTENDERS = ("ropewalk", "torch", "single", "ideal", "predicted", "without", "load")


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure training in pipelines.")
    parser.add_argument("--only", nargs="+", metavar="ROW", choices=ROWS, default=list(ROWS), help=", ".join(ROWS))
    parser.add_argument(
        "--repeats", type=int, default=5, metavar="N", help="rounds of five blocks of each contender (default 5)"
    )
    parser.add_argument("--quick", action="store_true", help="fewer steps and rounds")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write the lines as JSON")
    parser.add_argument("--markdown", type=pathlib.Path, metavar="FILE", help="write the table for pipeline.md")
    parser.add_argument("--here", type=pathlib.Path, metavar="FILE", help=argparse.SUPPRESS)
    options = parser.parse_args()
    # An installed package has its byte code; a checkout gets it on the first import, unless this forbids it.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    # One thread in each process, and allocators that keep their memory, for everybody.
    os.environ.update(OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1", **VARIABLES)
    if options.here:
        bench = Bench(options.repeats, options.quick)
        with options.here.open("w") as file:
            for line in ROWS[options.only[0]](bench):
                print(json.dumps(dataclasses.asdict(with_load(line))), file=file, flush=True)
        return 0

    lines = (line for name in options.only for line in run_alone(name, options))
    return tell(lines, CONTENDERS, machine(), as_json=options.json, as_markdown=options.markdown)


def run_alone(name: str, options: argparse.Namespace) -> Iterator[Line]:
    """The lines of one row, measured by another interpreter."""
    command = [sys.executable, __file__, "--only", name]
    command += ["--repeats", str(options.repeats), *["--quick"] * options.quick]
    return measured_alone(name, command, LIMIT_S)


if __name__ == "__main__":
    sys.exit(main())
