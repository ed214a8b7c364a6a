"""Metrics of a run as a CSV file, one row for each number: group, name, step, time, value."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from ropewalk.tracking.records import Metrics, RunRecord
from ropewalk.tracking.sinks.appended_file import AppendedFile


class CsvFile(AppendedFile):
    """Appends to a file, which spreadsheets and `pandas.read_csv` can read at any time.

    Args:
        path: the file; None: metrics.csv in the folder of the run.
    """

    default_name: str = "metrics.csv"
    heading: bytes = b"group,name,step,time,value\n"

    def encoded(self, batch: Sequence[RunRecord]) -> bytes:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(
            (record.group, name, repr(record.step), f"{record.time:.6f}", repr(value))
            for record in (one.record for one in batch)
            if isinstance(record, Metrics)
            for name, value in zip(record.names, record.values, strict=True)
        )
        return text.getvalue().encode()


__all__ = ["CsvFile"]
