"""`CSVLogger`: rows in files that any table program reads, one file for each label."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from ropewalk.atomic_files import replace_file
from ropewalk.trusted_files import make_folder


class CSVLogger:
    """Appends rows to `<folder>/<label>.csv`, with a column for each name that a row has had.

    The first rows of an experiment have no metrics of the learner, since nothing was learned yet. A row with a new name
    adds a column, which is empty in the rows before; the file is then written anew, whole or not at all.

    Args:
        folder: made if it is missing.
    """

    def __init__(self, folder: Path | str) -> None:
        self._folder = Path(folder)
        self._columns: dict[str, list[str]] = {}

    def __repr__(self) -> str:
        return f"CSVLogger({str(self._folder)!r})"

    def __call__(self, label: str, row: Mapping[str, float | int | str | None]) -> None:
        """See `Logger`.

        Raises:
            OSError: the file cannot be written.
        """
        path = self._folder / f"{label}.csv"
        columns = self._columns.get(label) or self._begin(path, label)
        if new := [name for name in row if name not in columns]:
            columns = self._columns[label] = _add_columns(path, new)
        with path.open("a", newline="") as file:
            csv.writer(file).writerow([row.get(column) for column in columns])

    def _begin(self, path: Path, label: str) -> list[str]:
        make_folder(self._folder)
        rows = _rows(path)
        self._columns[label] = rows[0] if rows else []
        return self._columns[label]


def _add_columns(path: Path, new: Sequence[str]) -> list[str]:
    """Write a file anew with further columns; returns all columns."""
    columns, *rows = _rows(path) or [[]]
    empty = [""] * len(new)
    # A row that was cut off, because its writer was killed or the disk was full, is shorter.
    full = ([*row, *[""] * (len(columns) - len(row)), *empty] for row in rows)
    replace_file(path, [_text([[*columns, *new], *full]).encode()])
    return [*columns, *new]


def _rows(path: Path) -> list[list[str]]:
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.reader(file))


def _text(rows: Iterable[Iterable[str]]) -> str:
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    return text.getvalue()


__all__ = ["CSVLogger"]
