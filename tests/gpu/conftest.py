"""Tests on a GPU: `make test-gpu`. They need one that torch can use, and are skipped anywhere else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

FOLDER = f"{Path(__file__).parent}{os.sep}"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if str(item.path).startswith(FOLDER):  # the items of the whole suite; to make paths of them takes 0.4 s
            item.add_marker("gpu")


@pytest.fixture(scope="session", autouse=True)
def _cuda() -> None:  # pyright: ignore[reportUnusedFunction]
    """What CUDA starts once in a process is there before any test looks at what it leaves behind."""
    if not torch.cuda.is_available():
        pytest.skip(f"torch {torch.__version__} sees no GPU here")
    layer = torch.nn.Linear(4, 4).cuda()
    layer(torch.zeros(4, 4, device="cuda")).sum().backward()
    torch.cuda.synchronize()
