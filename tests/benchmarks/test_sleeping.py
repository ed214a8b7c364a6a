"""A trainer trains the emulated devices of the benchmark, which are nobody's code between two long runs of it."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

_BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(_BENCHMARKS))
    return importlib.import_module


@pytest.mark.parametrize("schedule", ["one_f_one_b", "zb_h1"])
def test_each_half_of_a_micro_batch_takes_its_time(module: Any, schedule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sleeping, jobs, contenders = map(module, ("sleeping", "pipeline_jobs", "pipeline_contenders"))
    slept: list[float] = []
    monkeypatch.setenv("BENCHMARK_INLINE", "1")  # the stages are in this thread, so that their sleeps are seen
    monkeypatch.setattr(sleeping, "sleep_until", slept.append)
    job = jobs.emulated(schedule, 1.0, shares=(1.0, 1.0), micro_batches=3)
    ours = contenders.Ours(job, jobs.mean_of, plan=job.plan(jobs.emulated_profile(job)))
    try:
        slept.clear()
        ours.steps(2)
    finally:
        ours.close()
    assert len(slept) == 2 * 3 * 2 * 3  # F, I and W of 3 micro-batches on 2 devices in 2 steps
