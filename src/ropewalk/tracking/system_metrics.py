"""Use of the machine while a run goes on: a thread that measures every few seconds, in the group "system".

Steps of these metrics are seconds since the run began in this process.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable

import psutil

from ropewalk.tracking.gpu_metrics import GpuMetrics
from ropewalk.tracking.records import SYSTEM, Metrics
from ropewalk.tracking.run_clock import RunClock

_INTERVAL_S = 5.0


class SystemMetrics:
    """Measures until it is closed.

    Args:
        put: takes the measurements, from the thread.
        interval_s: seconds between them.
    """

    def __init__(self, put: Callable[[Metrics], None], interval_s: float = _INTERVAL_S) -> None:
        self._put, self._interval_s = put, interval_s
        self._began, self._clock = time.monotonic(), RunClock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ropewalk-system-metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread, after a last measurement; may be called twice."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        readings = _Readings()
        is_over = False
        while not is_over:
            is_over = self._ended.wait(self._interval_s)
            found = readings.read()
            step = round(time.monotonic() - self._began, 3)
            self._put(Metrics(SYSTEM, list(found), list(found.values()), step, self._clock()))


class _Readings:
    """Counters grow; what is of use are differences between two readings."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._gpus = GpuMetrics()
        self._process.cpu_percent()  # the first calls only begin the measurement
        psutil.cpu_percent()
        self._before = time.monotonic(), _counters()

    def read(self) -> dict[str, float]:
        with self._process.oneshot():
            found = {
                "cpu_percent": psutil.cpu_percent(),
                "process_cpu_percent": self._process.cpu_percent(),
                "process_memory_bytes": float(self._process.memory_info().rss),
                "process_threads": float(self._process.num_threads()),
            }
        found["memory_percent"] = psutil.virtual_memory().percent
        now, counters = time.monotonic(), _counters()
        then, earlier = self._before
        self._before = now, counters
        passed_s = max(now - then, 1e-3)
        for name, value in counters.items():
            found[f"{name}_per_s"] = max(0.0, value - earlier.get(name, value)) / passed_s
        return found | self._gpus.read()


def _counters() -> dict[str, float]:
    found: dict[str, float] = {}
    # Some containers hide these files.
    with contextlib.suppress(OSError, RuntimeError, AttributeError):
        disk = psutil.disk_io_counters()
        if disk is not None:
            found |= {"disk_read_bytes": float(disk.read_bytes), "disk_written_bytes": float(disk.write_bytes)}
    with contextlib.suppress(OSError, RuntimeError, AttributeError):
        network = psutil.net_io_counters()
        found |= {"network_received_bytes": float(network.bytes_recv), "network_sent_bytes": float(network.bytes_sent)}
    return found


__all__ = ["SystemMetrics"]
