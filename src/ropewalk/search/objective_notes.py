"""`ObjectiveNotes`: what an attempt has reported of the metrics that the search looks at."""

from __future__ import annotations

from collections.abc import Callable

from ropewalk.tracking.records import Metrics, Record, RecordSink

_MOST_NAMES = 50


class ObjectiveNotes:
    """A sink that notes the objectives among the metrics of a run, and passes everything on.

    Args:
        sink: takes the records.
        names: names of the objectives.
        reported: called with each complete report.
    """

    def __init__(
        self,
        sink: RecordSink,
        names: tuple[str, ...],
        reported: Callable[[float, tuple[float, ...]], object] = lambda step, values: None,
    ) -> None:
        self._sink, self.names, self._reported = sink, names, reported
        self._step, self._partial = 0.0, dict[str, float]()
        self.reports: list[tuple[float, tuple[float, ...]]] = []
        self.logged: dict[str, None] = {}

    @property
    def step(self) -> float:
        """The last step with a report; 0 before the first."""
        return self.reports[-1][0] if self.reports else 0.0

    def put(self, run: str, record: Record) -> None:
        self._sink.put(run, record)
        if isinstance(record, Metrics):
            self.note(record)

    def flush(self, timeout_s: float) -> bool:
        return self._sink.flush(timeout_s)

    def settle(self, timeout_s: float) -> bool:
        return self._sink.settle(timeout_s)

    def note(self, metrics: Metrics) -> None:
        """Note the objectives of a record."""
        prefix = f"{metrics.group}/" if metrics.group else ""
        if len(self.logged) < _MOST_NAMES:
            self.logged.update(dict.fromkeys(f"{prefix}{name}" for name in metrics.names))
        for name, value in zip(metrics.names, metrics.values, strict=True):
            if f"{prefix}{name}" in self.names:
                if metrics.step != self._step:
                    self._step, self._partial = metrics.step, {}
                self._partial[f"{prefix}{name}"] = value
                if len(self._partial) == len(self.names):
                    report = tuple(self._partial[each] for each in self.names)
                    self.reports.append((metrics.step, report))
                    self._reported(metrics.step, report)


__all__ = ["ObjectiveNotes"]
