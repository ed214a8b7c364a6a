"""Trials on a GPU: their checkpoints, and what is measured of the GPU."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import ropewalk as rw
from ropewalk.search import ASHA, Search, Uniform
from ropewalk.tracking.gpu_metrics import GpuMetrics
from ropewalk.tracking.store.opening import open_store


def train(run: Any, rate: float, dies: bool) -> None:
    """Train a small network on the GPU; a trial may kill its first process in the middle."""
    torch.manual_seed(run.seed)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1)).cuda()
    optimizer = torch.optim.Adam(model.parameters(), rate)
    saved = run.restore()
    if saved:
        model.load_state_dict(saved.state["model"])
        optimizer.load_state_dict(saved.state["optimizer"])
    for step in run.steps(8):
        generator = torch.Generator("cuda").manual_seed(step)
        x = torch.randn(64, 16, generator=generator, device="cuda")
        loss = F.mse_loss(model(x), x.sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss)
        run.checkpoint(lambda: {"model": model.state_dict(), "optimizer": optimizer.state_dict()})
        if dies and saved is None and step == 3:
            os.kill(os.getpid(), signal.SIGKILL)


def searched(folder: Path, *, dies: bool, scheduler: Any = "none") -> Any:
    search = Search(
        train,
        {"rate": Uniform(1e-4, 1e-2), "dies": dies},
        metric="loss",
        mode="min",
        trials=4,
        scheduler=scheduler,
        max_concurrent=1,
        store=folder / "runs.db",
        progress=False,
    )
    return search.run()


def test_trials_that_died_have_the_losses_of_those_that_did_not(tmp_path: Path) -> None:
    whole = searched(tmp_path / "whole", dies=False)
    torn = searched(tmp_path / "torn", dies=True)
    assert [trial.attempts for trial in torn] == [2] * 4
    assert [trial.scores for trial in torn] == [trial.scores for trial in whole]


def test_paused_trials_go_on_with_their_optimizers(tmp_path: Path) -> None:
    whole = {trial.number: trial for trial in searched(tmp_path / "whole", dies=False)}
    halved = searched(tmp_path / "halved", dies=False, scheduler=ASHA(R=8, eta=2))
    promoted = [trial for trial in halved if trial.step > 1]
    assert promoted
    for trial in promoted:
        assert list(trial.scores.values()) == list(whole[trial.number].scores.values())[: len(trial.scores)]


def test_what_the_driver_says_of_the_gpu_is_measured() -> None:
    metrics = GpuMetrics()
    before = metrics.read()
    held = torch.zeros(256 << 20, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    after = metrics.read()
    index = torch.cuda.current_device()
    assert after[f"gpu{index}/memory_bytes"] - before[f"gpu{index}/memory_bytes"] >= 200 << 20
    assert held.numel() and 0 <= after[f"gpu{index}/utilisation_percent"] <= 100


def test_a_run_has_the_metrics_of_its_gpu(tmp_path: Path) -> None:

    with rw.track(project="gpu", store=tmp_path / "runs.db") as run:
        run.log(loss=torch.tensor(0.5, device="cuda"))
    with open_store(tmp_path / "runs.db") as store:
        names = {series.name for series in store.series(run.id)}
    assert "loss" in names
    if not any(name.startswith("gpu0/") for name in names):
        pytest.fail(f"nothing of the GPU among {sorted(names)}")
