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
    durations = [0.6] + 39 * [0.1]
    with crowd(40) as session, rw.Pool(40, session=session) as pool:
        pool.wait_until_ready(120)
        start = time.perf_counter()
        found = list(pool.imap_unordered(rest, durations, chunksize=1))
        assert sorted(found, reverse=True) == durations
        assert found[-1] == 0.6, "the first one held up those after it"
        assert time.perf_counter() - start >= 0.6
        assert pool.status().num_deaths == 0
        assert len({worker.pid for worker in pool.status().workers}) == 1
