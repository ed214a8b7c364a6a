"""Processes that compute beside a measured one do so until it is measured, and no longer."""

from __future__ import annotations

import os
import time
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

from ropewalk.errors import ProfileInvalid
from ropewalk.pipeline.profiler import profile
from ropewalk.pipeline.profiling_load import computing_beside
from tests.patience import wait_until


def test_other_processes_compute_over_and_over_until_the_block_ends(tmp_path: Path) -> None:
    def counts() -> dict[int, int]:
        return {int(file.name): file.stat().st_size for file in tmp_path.iterdir()}

    with computing_beside(2, partial(_count, tmp_path)):
        first = counts()
        assert len(first) == 2 and os.getpid() not in first and min(first.values()) >= 1
        wait_until(lambda: all(counts()[pid] > num + 2 for pid, num in first.items()))
    after = counts()
    time.sleep(0.05)
    assert counts() == after


def test_a_process_that_fails_in_its_first_computation_is_named(tmp_path: Path) -> None:
    with (
        pytest.raises(ProfileInvalid, match=r"beside the measured one ended: beside-0 .*ValueError: no weights"),
        computing_beside(1, _fail),
    ):
        raise AssertionError("the block began")


def test_a_process_that_dies_while_the_block_runs_spoils_the_measurement(tmp_path: Path) -> None:
    with pytest.raises(ProfileInvalid, match=r"ended: beside-0 .*SIGKILL"):
        _measure_until_one_dies(tmp_path)


def _measure_until_one_dies(folder: Path) -> None:
    with computing_beside(1, partial(_die_later, folder)):
        (folder / "die").touch()
        wait_until(lambda: (folder / "done").exists())


def test_a_profile_with_concurrency_is_measured_beside_other_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ropewalk.pipeline.profiler.usable_cpus", lambda: 2 * torch.get_num_threads())
    lines: list[str] = []
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    found = profile(model, torch.zeros(16, 4), repeats=1, concurrency=2, report=lines.append)
    assert "starting 1 process that computes beside this one" in lines
    assert lines.index("counting bytes") > lines.index("starting 1 process that computes beside this one")
    assert found.device.endswith(", 2 processes at the same time")
    assert sum(one.forward_s > 0 for one in found.operators) >= 2


@pytest.mark.parametrize("concurrency", [0, -1])
def test_concurrency_counts_the_measuring_process(concurrency: int) -> None:
    with pytest.raises(ProfileInvalid, match=f"at least 1, not {concurrency}"):
        profile(nn.Sequential(nn.Linear(4, 2)), torch.zeros(3, 4), concurrency=concurrency)


def test_processes_that_would_wait_for_each_others_cores_measure_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = torch.get_num_threads()
    monkeypatch.setattr("ropewalk.pipeline.profiler.usable_cpus", lambda: 3 * threads - 1)
    with pytest.raises(ProfileInvalid, match=f"needs {3 * threads} cores, and {3 * threads - 1} can be used here"):
        profile(nn.Sequential(nn.Linear(4, 2)), torch.zeros(3, 4), concurrency=3)


def _count(folder: Path) -> None:
    with (folder / str(os.getpid())).open("a") as file:
        file.write(".")


def _fail() -> None:
    raise ValueError("no weights")


def _die_later(folder: Path) -> None:
    if (folder / "die").exists():
        (folder / "done").touch()
        os.kill(os.getpid(), 9)
