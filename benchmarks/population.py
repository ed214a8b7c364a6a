"""Measures `ropewalk.population` against other pools, independent processes and the ideal, as ratios of one run.

    python benchmarks/population.py                          the whole table, about an hour on 2 cores
    python benchmarks/population.py --only launcher wire     some rows
    python benchmarks/population.py --sleep 0.46             evaluations of the protocol as long as the paper's
    python benchmarks/population.py --quick                  small and short: shows that all rows run, proves nothing
    python benchmarks/population.py --json FILE --markdown FILE

Each row runs in an interpreter of its own, under a time limit: a row that hangs or fails is a line of the table like
any other. population.md says how it is measured.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pathlib
import sys
from collections.abc import Iterator

import population_rollouts
import population_rows
from pool_rows import Line
from population_contenders import OTHERS
from population_rows import Bench, Row
from table import machine, measured_alone, tell

LIMIT_S = 7200
ROWS: dict[str, Row] = {**population_rows.ROWS, **population_rollouts.ROWS}
#: The columns of contenders, ours first; each line fills some of them.
CONTENDERS = (
    "ropewalk",
    "multiprocessing",
    "loky",
    "ipyparallel",
    "ray",
    "two processes",
    "one process",
    "ideal",
    "load",
)


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure population methods.")
    parser.add_argument("--only", nargs="+", metavar="ROW", choices=ROWS, default=list(ROWS), help=", ".join(ROWS))
    parser.add_argument("--sleep", type=float, default=0.1, metavar="S", help="of an evaluation (default 0.1)")
    parser.add_argument(
        "--memory", type=float, default=6.0, metavar="GB", help="of one contender's workers (default 6)"
    )
    parser.add_argument("--against", nargs="+", choices=OTHERS, default=list(OTHERS), help="pools that take part")
    parser.add_argument("--quick", action="store_true", help="small and short")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write the lines as JSON")
    parser.add_argument("--markdown", type=pathlib.Path, metavar="FILE", help="write the table for population.md")
    parser.add_argument("--here", type=pathlib.Path, metavar="FILE", help=argparse.SUPPRESS)
    options = parser.parse_args()
    # An installed package has its byte code; a checkout gets it on the first import, unless this forbids it.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    # One thread in each process, and these modules found by everybody's workers.
    path = os.pathsep.join(
        [str(pathlib.Path(__file__).resolve().parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    os.environ.update(OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1", PYTHONPATH=path)
    if options.here:
        bench = Bench(options.quick, options.sleep, options.memory, tuple(options.against))
        with options.here.open("w") as file:
            for line in ROWS[options.only[0]](bench):
                line.values["load"] = f"{os.getloadavg()[0]:.1f}"
                print(json.dumps(dataclasses.asdict(line)), file=file, flush=True)
        return 0

    lines = (line for name in options.only for line in run_alone(name, options))
    return tell(lines, CONTENDERS, machine(), as_json=options.json, as_markdown=options.markdown, details=True)


def run_alone(name: str, options: argparse.Namespace) -> Iterator[Line]:
    """The lines of one row, measured by another interpreter."""
    command = [sys.executable, __file__, "--only", name]
    command += ["--sleep", str(options.sleep), "--memory", str(options.memory)]
    command += ["--against", *options.against, *["--quick"] * options.quick]
    return measured_alone(name, command, LIMIT_S)


if __name__ == "__main__":
    sys.exit(main())
