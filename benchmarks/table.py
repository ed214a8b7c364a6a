"""The table that a benchmark prints, and its rows, each measured in an interpreter of its own.

A row that hangs or fails is a line of the table like any other, and no row pays for what an earlier one has left.
"""

from __future__ import annotations

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
from collections.abc import Iterable, Iterator, Sequence

from pool_rows import Line


def measured_alone(
    name: str, command: Sequence[str], limit_s: float, cwd: pathlib.Path | None = None
) -> Iterator[Line]:
    """The lines of one row, measured by another interpreter, which writes them to the file after `--here`."""
    with tempfile.TemporaryDirectory() as folder:
        answer, words = pathlib.Path(folder, "lines"), pathlib.Path(folder, "words.txt")
        command = [*command, "--here", str(answer)]
        with words.open("w") as output:
            process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True, cwd=cwd)
            try:
                code: int | str = process.wait(limit_s)
            except subprocess.TimeoutExpired:
                code = f"no end in {limit_s} s"
            # By now all of the row's processes that stand in its group are needless; a killed worker's pool may hang.
            kill_group(process)
        if answer.exists():
            yield from (Line(**json.loads(line)) for line in answer.read_text().splitlines())
        if code != 0:
            print(words.read_text(), file=sys.stderr)
            last = next(iter(reversed(words.read_text().strip().splitlines())), "")
            yield Line(name, "", f"failed ({code}): {last[:120]}", False)


def tell(
    lines: Iterable[Line],
    contenders: Sequence[str],
    place: str,
    *,
    as_json: pathlib.Path | None,
    as_markdown: pathlib.Path | None,
    details: bool = False,
) -> int:
    """Print lines as they come, then the table; says as an exit code whether all that has to hold does.

    Args:
        lines: of all rows.
        contenders: the columns after the verdict.
        place: what was measured, where and when.
        as_json: a file for the lines.
        as_markdown: a file for the table.
        details: whether to print what is in the columns with each line.
    """
    print(place, flush=True)
    told: list[Line] = []
    for line in lines:
        told.append(line)
        print(f"{verdict(line):5}  {line.what}: {line.measured}  (reach {line.reach or '-'})", flush=True)
        if details:
            print("".join(f"         {name}: {value}\n" for name, value in line.values.items()), end="", flush=True)
    print()
    show(told, contenders)
    if as_json:
        content = {"machine": place, "lines": [dataclasses.asdict(line) for line in told]}
        as_json.write_text(json.dumps(content, indent=1) + "\n")
    if as_markdown:
        as_markdown.write_text(f"{place}\n\n{markdown(told, contenders)}")
    return int(any(line.holds is False for line in told))


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
