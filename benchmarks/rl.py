"""Measures `ropewalk.rl` against bare environments, one process, Stable-Baselines3, Reverb and RLlib, in one run.

    python benchmarks/rl.py                             the whole table, about twelve minutes on 2 cores
    python benchmarks/rl.py --rows actor distributed    some rows
    python benchmarks/rl.py --quick                    small and short: shows that all rows run, proves nothing
    python benchmarks/rl.py --reverb PYTHON --rllib PYTHON      with these, each in an environment of its own
    python benchmarks/rl.py --json FILE --markdown FILE

Each row runs in an interpreter of its own, under a time limit: a row that hangs or fails is a line of the table like
any other. A group of rows is a module with a dictionary `ROWS`; it is listed in `GROUPS`. rl.md says how it is
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

import rl_actor_rows
import rl_inference_rows
import rl_recovery_rows
import rl_replay_rows
import rl_sb3_rows
import rl_service_rows
import rl_training_rows
from exchange_bench import Bench, Row
from pool_rows import Line
from table import machine, measured_alone, tell

LIMIT_S = 600
GROUPS = (
    rl_actor_rows,
    rl_training_rows,
    rl_sb3_rows,
    rl_inference_rows,
    rl_replay_rows,
    rl_service_rows,
    rl_recovery_rows,
)
ROWS: dict[str, Row] = {name: row for group in GROUPS for name, row in group.ROWS.items()}
CONTENDERS = (
    "ropewalk",
    "bare",
    "one process",
    "own policies",
    "direct",
    "plain",
    "row by row",
    "Reverb",
    "copy",
    "not saved",
    "SB3",
    "RLlib",
    "load",
)
"""The columns of contenders, ours first; each line fills some of them."""


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure reinforcement learning.")
    parser.add_argument("--rows", nargs="+", metavar="ROW", choices=ROWS, default=list(ROWS), help=", ".join(ROWS))
    parser.add_argument("--repeats", type=int, default=7, metavar="N", help="rounds of short measurements (default 7)")
    parser.add_argument("--quick", action="store_true", help="smaller and fewer rounds")
    parser.add_argument("--reverb", default="", metavar="PYTHON", help="one that has dm-reverb and tensorflow-cpu")
    parser.add_argument("--rllib", default="", metavar="PYTHON", help="one that has ray[rllib] and torch")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write the lines as JSON")
    parser.add_argument("--markdown", type=pathlib.Path, metavar="FILE", help="write the table for rl.md")
    parser.add_argument("--here", type=pathlib.Path, metavar="FILE", help=argparse.SUPPRESS)
    options = parser.parse_args()
    # An installed package has its byte code; a checkout gets it on the first import, unless this forbids it.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    if options.here:
        bench = Bench(min(2, options.repeats) if options.quick else options.repeats, options.quick)
        with options.here.open("w") as file:
            for line in ROWS[options.rows[0]](bench):
                line.values["load"] = f"{os.getloadavg()[0]:.1f}"
                print(json.dumps(dataclasses.asdict(line)), file=file, flush=True)
        return 0

    # One thread in each process, and these modules found by everybody's processes.
    path = os.pathsep.join(
        [str(pathlib.Path(__file__).resolve().parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    os.environ.update(OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1", PYTHONPATH=path)
    os.environ.update(BENCHMARK_REVERB_PYTHON=options.reverb, BENCHMARK_RLLIB_PYTHON=options.rllib)
    lines = (line for name in options.rows for line in run_alone(name, options))
    return tell(lines, CONTENDERS, machine(), as_json=options.json, as_markdown=options.markdown, details=True)


def run_alone(name: str, options: argparse.Namespace) -> Iterator[Line]:
    """The lines of one row, measured by another interpreter."""
    command = [sys.executable, __file__, "--rows", name, "--repeats", str(options.repeats)]
    return measured_alone(name, [*command, *["--quick"] * options.quick], LIMIT_S)


if __name__ == "__main__":
    sys.exit(main())
