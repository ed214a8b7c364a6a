"""`CSVLogger`: rows in files that any table program reads, one file for each label."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path

from ropewalk.trusted_files import make_folder


class CSVLogger:
    """Appends rows to `<folder>/<label>.csv`. Its columns are those of the first row; what later rows add is left out.

    Args:
        folder: made if it is missing.
    """

    def __init__(self, folder: Path | str) -> None:
        self._folder = Path(folder)
        self._columns: dict[str, list[str]] = {}

    def __call__(self, label: str, row: Mapping[str, float | int | str | None]) -> None:
        """See `Logger`.

        Raises:
            OSError: the file cannot be written.
        """
        path = self._folder / f"{label}.csv"
        columns = self._columns.get(label) or self._begin(path, label, row)
        with path.open("a", newline="") as file:
            csv.writer(file).writerow([row.get(column) for column in columns])

    def _begin(self, path: Path, label: str, row: Mapping[str, float | int | str | None]) -> list[str]:
        make_folder(self._folder)
        if path.exists() and path.stat().st_size:
            with path.open(newline="") as file:
                columns = next(csv.reader(file))
        else:
            columns = list(row)
            with path.open("w", newline="") as file:
                csv.writer(file).writerow(columns)
        self._columns[label] = columns
        return columns


__all__ = ["CSVLogger"]
