"""The costs of an exchange come as totals, and are shown by step."""

from __future__ import annotations

import pytest

from ropewalk.exchange.exchange import ExchangeReport
from ropewalk.pipeline.plans import PlanWorker
from ropewalk.training.panels.exchange import ExchangePanel
from ropewalk.training.worker_sample import WorkerSample

MEMBERS = PlanWorker(0, 0), PlanWorker(0, 1)


def samples(steps: int, sent: int, *, epoch: int = 0, error: float = 3.0) -> dict[PlanWorker, WorkerSample]:
    layers = {f"layer{number}": number for number in range(30)}
    report = ExchangeReport(steps=steps, sent_bytes=sent, dense_bytes=100 * steps, error_norm=error, layers=layers)
    return {worker: WorkerSample(worker, epoch, step=steps, exchanges={0: report}) for worker in MEMBERS}


def test_rows_are_the_bytes_of_a_step_since_the_last_look_over_all_members() -> None:
    panel = ExchangePanel()
    panel.take(samples(10, 200), 1.0)
    panel.take(samples(10, 200), 2.0)  # the same reports: nothing new is known
    panel.take(samples(14, 220, error=4.0), 3.0)
    data = panel.data(0)
    assert data["rows"] == [
        [1.0, 10, 40.0, 200.0, pytest.approx(18**0.5)],
        [3.0, 14, 10.0, 200.0, pytest.approx(32**0.5)],
    ]
    assert data["cursor"] == 2 and panel.data(1)["rows"] == data["rows"][1:] and panel.data(2)["rows"] == []


def test_after_a_new_deployment_totals_count_from_zero_again() -> None:
    panel = ExchangePanel()
    panel.take(samples(10, 200), 1.0)
    panel.take(samples(5, 50, epoch=1), 2.0)
    assert [row[2] for row in panel.data(0)["rows"]] == [40.0, 20.0]


def test_members_show_their_totals_and_the_largest_layers() -> None:
    panel = ExchangePanel()
    panel.take(samples(10, 200), 1.0)
    members = panel.data(0)["members"]
    assert list(members) == ["stage 0, worker 0.0", "stage 0, worker 0.1"]
    one = members["stage 0, worker 0.1"]
    assert (one["steps"], one["sent_bytes"], one["dense_bytes"], one["error_norm"]) == (10, 200, 1000, 3.0)
    assert next(iter(one["layers"].items())) == ("layer29", 29) and len(one["layers"]) == 20
