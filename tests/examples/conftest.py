"""Examples are imported by name, like a program of several files: the processes of nodes find them in the same way."""

from __future__ import annotations

import importlib
import runpy
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.pipeline.conftest import one_thread
from tests.shared_session import one_session

__all__ = ["load_example", "mode", "one_thread", "run_file"]

FOLDER = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="package")
def shared_session() -> Iterator[None]:
    """One for all modules of this folder that want it; see `tests/shared_session.py`."""
    yield from one_session("tests.examples.preloaded")


@pytest.fixture(params=["threads", pytest.param("processes", marks=pytest.mark.soak)])
def mode(request: pytest.FixtureRequest) -> str:
    """Threads; as files, in `test_examples_run.py`, the same programs run in processes."""
    return request.param


@pytest.fixture
def load_example(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], types.ModuleType]:
    monkeypatch.syspath_prepend(FOLDER)
    return importlib.import_module


@pytest.fixture
def run_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., list[str]]:
    """Runs the file of an example as `__main__`, in `tmp_path`; gives the lines that it prints.

    Here, where torch and others are imported already: in a process of its own it would take 2 to 4 s of CPU time more.
    """

    def run(name: str, *arguments: str, tells_progress: bool = False) -> list[str]:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", [f"{name}.py", *arguments])
        capsys.readouterr()
        runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
        out, err = capsys.readouterr()
        said = [line for line in err.splitlines() if "times vary by" not in line]  # others may be at work here
        assert said == [] or tells_progress
        return out.splitlines()

    return run
