"""The crowd uses what workers are made of from within, and should not rot between two long runs of the benchmark."""

from __future__ import annotations

import importlib
import time
from pathlib import Path
from typing import Any

import pytest

import ropewalk as rw

_BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def crowd(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(_BENCHMARKS))
    return importlib.import_module("population_crowd").crowd


def test_workers_of_one_process_sleep_side_by_side_and_in_their_own_time(crowd: Any) -> None:
    rest = importlib.import_module("population_work").rest
    durations = [0.2 + 0.001 * number for number in range(40)]
    with crowd(40) as session, rw.Pool(40, session=session) as pool:
        pool.wait_until_ready(30)
        start = time.perf_counter()
        assert pool.map(rest, durations, chunksize=1) == durations
        assert 0.239 <= time.perf_counter() - start < 5.0  # one after the other it would be 8.8 s
        assert pool.status().num_deaths == 0
        assert len({worker.pid for worker in pool.status().workers}) == 1
