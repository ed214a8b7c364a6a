"""The examples of searches, with small arguments: as files, and as a notebook in a kernel of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest

from ropewalk.search import load_results
from tests.needed_packages import needs

needs("sklearn")

FOLDER = Path(__file__).parents[2] / "examples"
EXECUTE = """
import sys
import nbclient, nbformat
notebook = nbformat.read(sys.argv[1], 4)
nbclient.NotebookClient(notebook, timeout=None).execute()
nbformat.write(notebook, sys.argv[2])
"""


def ran(tmp_path: Path, *command: str) -> str:
    """Run a program in a folder of its own, whose store is there; returns what it prints."""
    environment = os.environ | {"ROPEWALK_STORE": str(tmp_path / "runs.db"), "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, *command], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.soak  # a process that imports torch, and 3 s of a regression forest for the picture
def test_digits_are_searched_and_drawn(
    load_example: Callable[[str], types.ModuleType],
    one_thread: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    main = load_example("search_digits").main
    monkeypatch.setenv("ROPEWALK_STORE", str(tmp_path / "runs.db"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["search_digits.py", "--trials", "3", "--workers", "1"])
    main()
    assert "5 epochs; best accuracy 0." in capsys.readouterr().out  # of three trials, one is promoted to three epochs
    assert (tmp_path / "search_digits.png").read_bytes().startswith(b"\x89PNG")
    results = load_results("digits-asha-random-0", tmp_path / "runs.db")
    assert sorted(trial.step for trial in results) == [1, 1, 3]


@pytest.mark.soak
def test_asha_finds_a_good_classifier_among_64(tmp_path: Path) -> None:
    ran(tmp_path, str(FOLDER / "search_digits.py"))
    results = load_results("digits-asha-random-0", tmp_path / "runs.db")
    assert len(results) == 64 and (results.best.best or 0) > 0.97
    assert sum(trial.step for trial in results) < 0.1 * 64 * 81


@pytest.mark.soak
def test_trials_that_are_pipelines_go_on_from_their_checkpoints(tmp_path: Path) -> None:
    ran(tmp_path, str(FOLDER / "search_pipelines.py"), "--trials", "4")
    results = load_results("pipelines", tmp_path / "runs.db")
    assert results.best.step == 4 and results.best.attempts == 3 and (results.best.best or 0) > 0.8


@pytest.mark.soak  # a kernel; that of the first tutorial runs by default
def test_the_notebook_runs_in_a_kernel(tmp_path: Path) -> None:
    for needed in ("nbclient", "ipykernel"):
        pytest.importorskip(needed)
    ran(tmp_path, "-c", EXECUTE, str(FOLDER / "search_notebook.ipynb"), str(tmp_path / "ran.ipynb"))
    cells = {cell["id"]: cell for cell in json.loads((tmp_path / "ran.ipynb").read_text())["cells"]}
    assert "best loss" in "".join(cells["results"]["outputs"][0]["text"])
    assert all("image/png" in cells[name]["outputs"][-1]["data"] for name in ("curve", "picture"))
    assert max(trial.step for trial in load_results("notebook", tmp_path / "runs.db")) == 9
