"""Measures calls between the nodes of a program against the ways people call other processes, as ratios from one run.

    python benchmarks/calls.py                         the whole table, about ten minutes
    python benchmarks/calls.py --rows empty window     some rows
    python benchmarks/calls.py --soak                  also a million calls, a minute or two
    python benchmarks/calls.py --quick                 smaller and fewer rounds: shows that all rows run, proves nothing
    python benchmarks/calls.py --against bare managers only these baselines
    python benchmarks/calls.py --subject managers      the harness against itself
    python benchmarks/calls.py --json FILE --markdown FILE

The baselines are a bare unix socket with threads (`bare_calls.py` says exactly what that floor does),
`multiprocessing.managers`, gRPC and Ray actors. One that is missing has "not installed" in its column. Each row runs
in an interpreter of its own, under a time limit: a row that hangs or fails is a line of the table like any other.
calls.md says how it is measured.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.metadata
import json
import os
import pathlib
import sys
from collections.abc import Iterator

from call_contenders import LIBRARIES
from call_rows import ROWS, Bench
from pool_rows import Line
from table import machine, measured_alone, tell

LIMIT_S = 600
BASELINES = [name for name in LIBRARIES if name != "ropewalk"]
#: The columns of contenders, ours first.
CONTENDERS = ("ropewalk", *BASELINES)


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure calls between nodes against other ways to call a process.")
    parser.add_argument("--rows", nargs="+", metavar="ROW", choices=ROWS, help=f"some of: {', '.join(ROWS)}")
    parser.add_argument("--repeats", type=int, default=7, metavar="N", help="rounds of each measurement (default 7)")
    parser.add_argument(
        "--against", nargs="*", choices=BASELINES, default=BASELINES, help="baselines beside the bare socket"
    )
    parser.add_argument("--quick", action="store_true", help="smaller and fewer rounds")
    parser.add_argument("--soak", action="store_true", help="also the row of a million calls")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write the lines as JSON")
    parser.add_argument("--markdown", type=pathlib.Path, metavar="FILE", help="write the table for calls.md")
    parser.add_argument("--subject", default="ropewalk", choices=LIBRARIES, help="who is measured against the others")
    parser.add_argument("--here", type=pathlib.Path, metavar="FILE", help=argparse.SUPPRESS)
    options = parser.parse_args()
    # An installed package has its byte code; a checkout gets it on the first import, unless this forbids it.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    # Products are compared, not OpenBLAS's threads; our nodes get one each anyway.
    os.environ.update(OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1")
    rows: list[str] = options.rows or [name for name in ROWS if name != "soak"]
    if options.soak and "soak" not in rows:
        rows.append("soak")
    if options.here:
        bench = Bench(
            subject=options.subject,
            against=("bare", *options.against),
            repeats=min(2, options.repeats) if options.quick else options.repeats,
            quick=options.quick,
        )
        with options.here.open("w") as file:
            for line in ROWS[rows[0]](bench):
                print(json.dumps(dataclasses.asdict(line)), file=file, flush=True)
        return 0

    lines = (line for name in rows for line in run_alone(name, options))
    return tell(lines, CONTENDERS, place(), as_json=options.json, as_markdown=options.markdown)


def run_alone(name: str, options: argparse.Namespace) -> Iterator[Line]:
    """The lines of one row, measured by another interpreter."""
    command = [sys.executable, __file__, "--rows", name, "--subject", options.subject]
    command += ["--repeats", str(options.repeats), "--against", *options.against, *["--quick"] * options.quick]
    return measured_alone(name, command, LIMIT_S)


def place() -> str:
    """What was measured, where and when, in one line."""
    try:
        return f"{machine()}, grpcio {importlib.metadata.version('grpcio')}"
    except importlib.metadata.PackageNotFoundError:
        return machine()


if __name__ == "__main__":
    sys.exit(main())
