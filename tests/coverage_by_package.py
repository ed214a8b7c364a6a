"""Which lines and branches of each package the tests run, in all processes that they start: a report, not a gate.

    python -m tests.coverage_by_package                       what `make test` runs
    python -m tests.coverage_by_package tests/pool -n 0       these tests, with these options of pytest

The table is kept in build/coverage, and the figures of each file beside it.

`patch` in pyproject.toml follows programs, forks and `os._exit`; what a process that was killed had run is not known.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "build" / "coverage"
PACKAGES = Path("src/ropewalk")
CHOSEN = ("-m", "not lab and not gpu and not soak and not timing")


@dataclass(slots=True)
class Counts:
    """How much of a package there is, and how much of it ran."""

    lines: int = 0
    lines_run: int = 0
    branches: int = 0
    branches_run: int = 0

    def add(self, other: Counts) -> None:
        self.lines, self.lines_run, self.branches, self.branches_run = (
            mine + its for mine, its in zip(astuple(self), astuple(other), strict=True)
        )


def by_package(files: Mapping[str, Mapping[str, Any]]) -> dict[str, Counts]:
    """Add up the files of a report (`coverage json`) by package; modules of `ropewalk` itself count as one."""
    found: dict[str, Counts] = {}
    for name, file in files.items():
        inside = Path(name).relative_to(PACKAGES).parts
        summary = file["summary"]
        found.setdefault(inside[0] if len(inside) > 1 else "(modules)", Counts()).add(
            Counts(
                summary["num_statements"],
                summary["covered_lines"],
                summary["num_branches"],
                summary["covered_branches"],
            )
        )
    return found


def table(packages: Mapping[str, Counts]) -> str:
    """A Markdown table, with the whole in its last line."""
    rows = ["| package | lines | run | branches | run |", "| --- | ---: | ---: | ---: | ---: |"]
    whole = Counts()
    for counts in packages.values():
        whole.add(counts)
    for name, counts in [*sorted(packages.items()), ("all", whole)]:
        lines, branches = (
            f"{run / max(num, 1):.1%}"
            for run, num in ((counts.lines_run, counts.lines), (counts.branches_run, counts.branches))
        )
        rows.append(f"| {name} | {counts.lines:,} | {lines} | {counts.branches:,} | {branches} |")
    return "\n".join(rows)


def coverage(*arguments: str) -> int:
    """Run coverage.py in the project's folder."""
    return subprocess.run([sys.executable, "-P", "-m", "coverage", *arguments], cwd=ROOT).returncode


def main(argv: Sequence[str]) -> int:
    """Run tests, and print the table; returns what pytest returned."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    code = coverage("run", "-m", "pytest", "-p", "no:cacheprovider", "-n", "2", *CHOSEN, *argv)
    for arguments in (["combine", "--quiet"], ["json", "--quiet", "-o", str(FOLDER / "files.json")]):
        if failed := coverage(*arguments):
            return failed
    shown = table(by_package(json.loads((FOLDER / "files.json").read_text())["files"]))
    (FOLDER / "packages.txt").write_text(shown + "\n")
    print(shown)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
