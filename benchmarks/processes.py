"""Measures processes and what they share against `multiprocessing`, and prints one table with ratios from one run.

    python benchmarks/processes.py                          the whole table, some minutes
    python benchmarks/processes.py --only queue manager     some rows
    python benchmarks/processes.py --repeats 9              more rounds of each measurement (default 5)
    python benchmarks/processes.py --quick                  smaller and fewer rounds: shows that all rows run
    python benchmarks/processes.py --subject forkserver     the harness against itself: ratios near 1
    python benchmarks/processes.py --json FILE --markdown FILE

The floor beside them is a bare socket pair between two processes (`process_rows.Bare`), and a copy of the memory. Each
row runs in an interpreter of its own, under a time limit: a row that hangs or fails is a line of the table like any
other. processes.md says how it is measured.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pathlib
import sys
from collections.abc import Iterator

from pool_rows import Line
from process_rows import FLOOR, METHODS, ROWS, Bench
from table import machine, measured_alone, tell

HERE = pathlib.Path(__file__).parent
LIMIT_S = 300


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure processes and what they share against multiprocessing.")
    parser.add_argument("--only", nargs="+", metavar="ROW", choices=ROWS, default=list(ROWS), help=", ".join(ROWS))
    parser.add_argument("--repeats", type=int, default=5, metavar="N", help="rounds of each measurement (default 5)")
    parser.add_argument("--quick", action="store_true", help="smaller and fewer rounds")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write the lines as JSON")
    parser.add_argument("--markdown", type=pathlib.Path, metavar="FILE", help="write the table for processes.md")
    parser.add_argument("--subject", default="ropewalk", metavar="LIBRARY", help="who is measured against spawn")
    parser.add_argument("--here", type=pathlib.Path, metavar="FILE", help=argparse.SUPPRESS)
    options = parser.parse_args()
    # An installed package has its byte code; a checkout gets it on the first import, unless this forbids it.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    if options.here:
        repeats = min(2, options.repeats) if options.quick else options.repeats
        with options.here.open("w") as file:
            for line in ROWS[options.only[0]](Bench(options.subject, repeats, options.quick)):
                print(json.dumps(dataclasses.asdict(line)), file=file, flush=True)
        return 0

    lines = (line for name in options.only for line in run_alone(name, options))
    contenders = tuple(dict.fromkeys((options.subject, *METHODS, FLOOR, "memcpy")))
    return tell(lines, contenders, machine(), as_json=options.json, as_markdown=options.markdown)


def run_alone(name: str, options: argparse.Namespace) -> Iterator[Line]:
    """The lines of one row, measured by another interpreter."""
    # Not as a script: `spawn` would run that again in each process it starts, and be measured with all its imports.
    command = [sys.executable, "-c", "import sys, processes; sys.exit(processes.main())", "--only", name]
    command += ["--subject", options.subject, "--repeats", str(options.repeats)]
    command += ["--quick"] * options.quick
    return measured_alone(name, command, LIMIT_S, HERE)


if __name__ == "__main__":
    sys.exit(main())
