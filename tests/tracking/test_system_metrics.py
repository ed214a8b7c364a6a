from __future__ import annotations

import threading

import psutil
import pytest

from ropewalk.tracking.gpu_metrics import GpuMetrics
from ropewalk.tracking.records import Metrics
from ropewalk.tracking.system_metrics import SystemMetrics
from tests.patience import PATIENCE_S


def test_the_machine_is_measured_until_it_is_closed() -> None:
    found: list[Metrics] = []
    enough = threading.Event()

    def put(metrics: Metrics) -> None:
        found.append(metrics)
        if len(found) == 3:
            enough.set()

    measures = SystemMetrics(put, interval_s=0.01)
    assert enough.wait(PATIENCE_S)
    measures.close()
    measures.close()
    values = dict(zip(found[-1].names, found[-1].values, strict=True))
    assert found[0].group == "system" and found[0].step < found[1].step < found[2].step
    assert 0 <= values["memory_percent"] <= 100 and values["process_memory_bytes"] > 1e6
    assert all(value >= 0 for value in values.values())


def test_a_host_that_hides_its_counters_is_measured_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def hidden() -> None:
        raise OSError("/proc/diskstats")

    monkeypatch.setattr(psutil, "disk_io_counters", hidden)
    monkeypatch.setattr(psutil, "net_io_counters", hidden)
    found: list[Metrics] = []
    SystemMetrics(found.append, interval_s=60).close()
    assert "cpu_percent" in found[0].names and not any(name.endswith("_per_s") for name in found[0].names)


def test_without_a_driver_there_are_no_gpus() -> None:
    assert GpuMetrics("libno-such-library.so.1").read() == {}
