"""What became of the mutants of each decider, in `table.md`: written by `make mutants`, never by hand."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path

TABLE = Path(__file__).with_name("table.md")

_HEAD = """\
# Mutants of the deciders

Written by `make mutants`, which runs the tests that `deciders.toml` names with each mutant of a decider. A mutant is
killed if they fail, and equal if no test can tell it from the original (the reasons are in `deciders.toml`); the share
is that of the killed ones among those that are not equal. Where the first number is one "of" another, a random sample
was run, not all mutants (`--sample`; the seed is fixed). The last column is a digest of the decider, its tests and its
entry in the list: `make mutants NAMES=--stale` runs the deciders for which it has changed.

| decider | mutants | killed | equal | survived | share | date | digest |
| --- | ---: | ---: | ---: | ---: | ---: | --- | --- |
"""


def read_rows(path: Path = TABLE) -> dict[str, list[str]]:
    """Return the cells of each decider's row, by its name; none if there is no table yet."""
    text = path.read_text() if path.exists() else ""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:2] == "| "]
    return {cells[0]: cells for cells in rows[2:]}


def write_rows(rows: Mapping[str, Iterable[object]], path: Path = TABLE) -> None:
    """Write the table, with the rows by name."""
    lines = [f"| {' | '.join(map(str, rows[name]))} |\n" for name in sorted(rows)]
    path.write_text("".join([_HEAD, *lines]))


def digest_of(paths: Iterable[Path], entry: object) -> str:
    """Return a short digest of files, and of an entry in the list of deciders."""
    found = hashlib.sha256(repr(entry).encode())
    for path in paths:
        found.update(path.read_bytes())
    return found.hexdigest()[:10]
