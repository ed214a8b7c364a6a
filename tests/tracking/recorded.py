"""Sinks that keep records in memory, for tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from ropewalk.tracking.records import MetricColumns, Record, RunRecord
from ropewalk.tracking.run import Run, RunIdentity
from ropewalk.tracking.writer import StoreWriter

R = TypeVar("R")


class Recorded:
    """A `RecordSink` that keeps everything in a list."""

    def __init__(self) -> None:
        self.records: list[Record] = []

    def put(self, run: str, record: Record) -> None:
        self.records.append(record)

    def flush(self, timeout_s: float) -> bool:
        return True

    settle = flush

    def of(self, kind: type[R]) -> list[R]:
        return [one for one in self.records if isinstance(one, kind)]


class Batches:
    """A target of a `StoreWriter`, which can fail."""

    def __init__(self) -> None:
        self.batches: list[list[RunRecord]] = []
        self.failure: Exception | None = None

    def apply(self, batch: Sequence[RunRecord]) -> None:
        if self.failure is not None:
            raise self.failure
        self.batches.append(list(batch))

    @property
    def records(self) -> list[Record | MetricColumns]:
        return [one.record for batch in self.batches for one in batch]


def put(writer: StoreWriter, one: RunRecord) -> None:
    """Give a writer a record of a run, as it comes from a process."""
    assert not isinstance(one.record, MetricColumns)
    writer.put(one.run, one.record)


def make_run(folder: Path, sink: Recorded | None = None, **options: Any) -> Run:
    """A run with a sink in memory."""
    of_identity = {name: options.pop(name) for name in ("forked_from", "forked_at", "attempt") if name in options}
    identity = RunIdentity("a1", "digits", "first", folder, **of_identity)
    return Run(identity, options.pop("config", {}), sink or Recorded(), **options)
