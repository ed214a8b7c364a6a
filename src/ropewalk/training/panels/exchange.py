"""The panel "exchange": what the averaging of gradients over replicas costs, if `Trainer(exchange=...)` does it.

Data, of which "rows" grow (see `Observable.view`), a row for each look at which steps had been exchanged:

    {"cursor": 7,
     "rows": [[at, step, sent_step_bytes, dense_step_bytes, error_norm], ...],
     "members": {"stage 0, worker 0.0": {"steps": 117, "sent_bytes": 1, "received_bytes": 1, "header_bytes": 1,
                                         "dense_bytes": 5, "density": 0.2, "error_norm": 0.3,
                                         "seconds": {"encode": 0.1}, "layers": {"0.weight": 1},
                                         "modes": {"sparse": 117}}}}

"sent_step_bytes" are those of one step, over all members: after compression. "dense_step_bytes" are those that a dense
ring all-reduce of the same gradients would have sent: before compression. "error_norm" is the Euclidean norm of what
compression keeps back, over all members. "layers" has the 20 parameters that sent most.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import Any

from ropewalk.exchange.exchange import ExchangeReport
from ropewalk.pipeline.plans import PlanWorker
from ropewalk.training.worker_sample import WorkerSample

_NUM_ROWS = 2000
_NUM_LAYERS = 20


class ExchangePanel:
    """Makes the data of the panel from sample to sample: costs are totals, and rows their differences."""

    def __init__(self) -> None:
        self._rows: deque[tuple[int, list[float]]] = deque(maxlen=_NUM_ROWS)
        self._num_rows = 0
        self._reports: dict[tuple[PlanWorker, int], ExchangeReport] = {}
        self._epoch = -1

    def take(self, samples: Mapping[PlanWorker, WorkerSample], now: float) -> None:
        """Take the samples of all workers.

        Args:
            samples: of the workers, all of one epoch.
            now: Unix time in seconds.
        """
        epoch = max((sample.epoch for sample in samples.values()), default=self._epoch)
        if epoch != self._epoch:  # all counters begin again
            self._epoch, self._reports = epoch, {}
        self._take_reports(samples, now)

    def _take_reports(self, samples: Mapping[PlanWorker, WorkerSample], now: float) -> None:
        reports = {
            (worker, stage): report for worker, sample in samples.items() for stage, report in sample.exchanges.items()
        }
        before, self._reports = self._reports, reports
        sent = dense = 0.0
        for key, report in reports.items():
            last = before.get(key, ExchangeReport())
            steps = report.steps - last.steps
            if steps > 0:
                sent += (report.sent_bytes - last.sent_bytes) / steps
                dense += (report.dense_bytes - last.dense_bytes) / steps
        if sent:
            step = max(sample.step for sample in samples.values())
            error_norm = math.sqrt(math.fsum(report.error_norm**2 for report in reports.values()))
            self._num_rows += 1
            self._rows.append((self._num_rows, [round(now, 3), step, sent, dense, error_norm]))

    def data(self, cursor: int) -> dict[str, Any]:
        """Return the data, with the rows after a cursor."""
        return {
            "cursor": self._num_rows,
            "rows": [row for number, row in self._rows if number > cursor],
            "members": {
                f"stage {stage}, worker {worker}": _member(report)
                for (worker, stage), report in sorted(self._reports.items(), key=lambda item: (item[0][1], item[0][0]))
            },
        }


def _member(report: ExchangeReport) -> dict[str, Any]:
    layers = sorted(report.layers.items(), key=lambda item: -item[1])[:_NUM_LAYERS]
    return {
        "steps": report.steps,
        "sent_bytes": report.sent_bytes,
        "received_bytes": report.received_bytes,
        "header_bytes": report.header_bytes,
        "dense_bytes": report.dense_bytes,
        "density": report.density,
        "error_norm": report.error_norm,
        "seconds": dict(report.seconds),
        "layers": dict(layers),
        "modes": dict(report.modes),
    }
