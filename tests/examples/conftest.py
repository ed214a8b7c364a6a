"""Examples are imported by name, like a program of several files: the processes of nodes find them in the same way."""

from __future__ import annotations

import importlib
import types
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.pipeline.conftest import one_thread

__all__ = ["load_example", "mode", "one_thread"]

FOLDER = Path(__file__).parents[2] / "examples"


@pytest.fixture(params=["threads", pytest.param("processes", marks=pytest.mark.soak)])
def mode(request: pytest.FixtureRequest) -> str:
    """Threads; as files, in `test_examples_run.py`, the same programs run in processes."""
    return request.param


@pytest.fixture
def load_example(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], types.ModuleType]:
    monkeypatch.syspath_prepend(FOLDER)
    return importlib.import_module
