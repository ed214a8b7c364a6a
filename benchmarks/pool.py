"""Measures `ropewalk.Pool` against the pools people use, and prints one table with ratios from one run.

    python benchmarks/pool.py                          the whole table, about ten minutes
    python benchmarks/pool.py --only noop round-trip   some rows
    python benchmarks/pool.py --quick                  smaller and fewer rounds: shows that all rows run, proves nothing
    python benchmarks/pool.py --floor                  with a bare fork + socketpair pool, the physical floor
    python benchmarks/pool.py --json FILE --markdown FILE

Each row runs in an interpreter of its own, under a time limit: a row that hangs
or fails is a line of the table like any other, and no row pays for what an
earlier one has left behind. README.md says how it is measured.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib.metadata
import json
import os
import pathlib
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence

from pool_rows import ALL, ROWS, Bench, Line

LIMIT_S = 300


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure ropewalk.Pool against the pools people use.")
    parser.add_argument("--only", nargs="+", metavar="ROW", choices=ROWS, default=list(ROWS), help=", ".join(ROWS))
    parser.add_argument("--quick", action="store_true", help="smaller and fewer rounds")
    parser.add_argument("--floor", action="store_true", help="also measure the bare pool")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write the lines as JSON")
    parser.add_argument("--markdown", type=pathlib.Path, metavar="FILE", help="write the table for README.md")
    parser.add_argument("--pool", default="ropewalk", metavar="MODULE", help="module whose Pool is the subject")
    parser.add_argument("--here", type=pathlib.Path, metavar="FILE", help=argparse.SUPPRESS)
    options = parser.parse_args()
    os.environ["BENCHMARK_POOL"] = options.pool
    # An installed package has its byte code; a checkout gets it on the first import, unless this forbids it.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    bench = Bench(quick=options.quick, floor=options.floor)
    if options.here:
        with options.here.open("w") as file:
            for line in ROWS[options.only[0]](bench):
                print(json.dumps(dataclasses.asdict(line)), file=file, flush=True)
        return 0

    print(machine(), flush=True)
    lines: list[Line] = []
    for name in options.only:
        for line in run_alone(name, options):
            lines.append(line)
            print(f"{verdict(line):5}  {line.what}: {line.measured}  (reach {line.reach})", flush=True)
    print()
    show(lines, CONTENDERS)
    if options.json:
        content = {"machine": machine(), "lines": [dataclasses.asdict(line) for line in lines]}
        options.json.write_text(json.dumps(content, indent=1) + "\n")
    if options.markdown:
        options.markdown.write_text(f"{machine()}\n\n{markdown(lines, CONTENDERS)}")
    return int(any(line.holds is False for line in lines))


def run_alone(name: str, options: argparse.Namespace) -> Iterator[Line]:
    """The lines of one row, measured by another interpreter."""
    flags = [flag for flag in ("--quick", "--floor") if getattr(options, flag[2:])]
    with tempfile.TemporaryDirectory() as folder:
        answer, words = pathlib.Path(folder, "lines"), pathlib.Path(folder, "words.txt")
        command = [sys.executable, __file__, "--only", name, "--here", str(answer), "--pool", options.pool, *flags]
        with words.open("w") as output:
            process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
            try:
                code: int | str = process.wait(LIMIT_S)
            except subprocess.TimeoutExpired:
                code = f"no end in {LIMIT_S} s"
            # By now all of the row's processes that stand in its group are needless; a killed worker's pool may hang.
            kill_group(process)
        if answer.exists():
            yield from (Line(**json.loads(line)) for line in answer.read_text().splitlines())
        if code != 0:
            print(words.read_text(), file=sys.stderr)
            last = next(iter(reversed(words.read_text().strip().splitlines())), "")
            yield Line(name, "", f"failed ({code}): {last[:120]}", False)


def kill_group(leader: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader.pid, signal.SIGKILL)
    leader.wait()


def machine() -> str:
    """What was measured, where and when, in one line."""
    versions = [f"Python {platform.python_version()}"]
    for name in ("numpy", "loky", "ray", "torch"):
        try:
            versions.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    cores, load = len(os.sched_getaffinity(0)), os.getloadavg()[0]
    day = time.strftime("%Y-%m-%d")
    return f"{day}, {cores} cores, load {load:.1f}, Linux {platform.release()}, {', '.join(versions)}"


def verdict(line: Line) -> str:
    return {True: "ok", False: "SHORT", None: "-"}[line.holds]


#: The columns of contenders, ours first.
CONTENDERS = ("ropewalk", *(name for name in ALL if name != "ropewalk"), "bare", "ideal")


def cells(lines: Sequence[Line], contenders: Sequence[str]) -> list[list[str]]:
    """The table, with a column for each contender that appears."""
    names = [name for name in contenders if any(name in line.values for line in lines)]
    rows = [["what", "reach", "measured", "verdict", *names]]
    for line in lines:
        rows.append([line.what, line.reach, line.measured, verdict(line), *(line.values.get(n, "") for n in names)])
    return rows


def markdown(lines: Sequence[Line], contenders: Sequence[str]) -> str:
    head, *body = cells(lines, contenders)
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *body]) + "\n"


def show(lines: Sequence[Line], contenders: Sequence[str]) -> None:
    if not sys.stdout.isatty():
        print(markdown(lines, contenders))
        return
    # Inside: the interpreters that measure rows import this module too, and should stay small.
    from rich.console import Console
    from rich.table import Table

    head, *body = cells(lines, contenders)
    table = Table(*head, show_lines=True)
    for row in body:
        table.add_row(*row, style="red" if "SHORT" in row else None)
    Console().print(table)


if __name__ == "__main__":
    sys.exit(main())
