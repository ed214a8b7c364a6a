"""Gathers metrics of many moments as columns, which take less time to encode and to store, and fewer bytes.

    Metrics([loss, acc], [0.7, 0.6], step=1, time=8.0)      names [loss, acc]   steps [1, 2]   times [8.0, 8.5]
    Metrics([loss, acc], [0.5, 0.8], step=2, time=8.5)  ─▶  numbers [0.7, 0.6, 0.5, 0.8]

A training that logs a hundred names a thousand times a second spends longer on encoding the names than the numbers.
Only a writer makes columns, of what it gathers for its journal and its store; sinks and processes never see them.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import cast

from ropewalk.tracking.records import MetricColumns, Metrics, RunRecord, packed

_columns = attrgetter("numbers", "step", "time")


def gathered(records: Sequence[RunRecord]) -> list[RunRecord]:
    """Return records with columns in place of metrics that follow each other and share the list of their names."""
    found: list[RunRecord] = []
    begin, num = 0, len(records)
    while begin < num:
        one = records[begin]
        end = begin + 1
        if type(one.record) is Metrics:
            end = _end_of_same(one.run, one.record, records, end)
        found += records[begin:end] if end == begin + 1 else _joined(records[begin:end])
        begin = end
    return found


def _joined(records: Sequence[RunRecord]) -> Sequence[RunRecord]:
    try:
        columns = columns_of([cast("Metrics", one.record) for one in records])
    except (TypeError, ValueError):  # one is not as it should be, which the store says of that one alone
        return records
    return [RunRecord(records[0].run, columns)]


def _end_of_same(run: str, first: Metrics, records: Sequence[RunRecord], at: int) -> int:
    """Return where the metrics end that begin before `at`."""
    names, group = first.names, first.group
    for index in range(at, len(records)):
        one = records[index]
        record = one.record
        if type(record) is not Metrics or record.names is not names or record.group != group or one.run != run:
            return index
    return len(records)


def columns_of(metrics: Sequence[Metrics]) -> MetricColumns:
    """Return columns with a row for each of some metrics, which have the group and the names of the first.

    Raises:
        ValueError: one has not as many numbers as names.
        TypeError: a value is no number.
    """
    names = metrics[0].names
    numbers, steps, times = zip(*map(_columns, metrics), strict=True)
    rows = [row if type(row) is bytes else packed(row) for row in numbers]
    if set(map(len, rows)) != {8 * len(names)}:
        words = f"{', '.join(names[:5])}..."
        raise ValueError(f"there are {len(names)} metrics ({words}), and a row has another number of values")
    return MetricColumns(metrics[0].group, names, b"".join(rows), packed(steps), packed(times))


def num_records(records: Sequence[RunRecord]) -> int:
    """Return how many records there were before they were gathered."""
    return sum(one.record.num_rows if isinstance(one.record, MetricColumns) else 1 for one in records)


def num_numbers(one: RunRecord) -> int:
    """Return how many numbers a record has; 0 if it has no metrics."""
    record = one.record
    if isinstance(record, MetricColumns):
        return len(record.numbers) // 8
    return len(record.names) if isinstance(record, Metrics) else 0


__all__ = ["columns_of", "gathered", "num_numbers", "num_records"]
