"""adaptive's runner over our executor: the points are where the curve bends."""

from __future__ import annotations

import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest

adaptive = pytest.importorskip("adaptive")
LoadExample = Callable[[str], types.ModuleType]
FILE = Path(__file__).parents[2] / "examples" / "executor_adaptive.py"


def test_points_gather_at_the_peak_and_bear_its_values(
    load_example: LoadExample, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Where mpi4py is installed, adaptive starts MPI to learn whether this is its executor, and nothing ever ends that.
    monkeypatch.setattr(adaptive.runner, "with_mpi4py", False)
    example = load_example("executor_adaptive")
    data = example.main()
    assert 60 <= len(data) < 80
    assert all(value == example.peak(x) for x, value in data.items())
    near = [x for x in data if abs(x - example.OFFSET) < 5 * example.WIDTH]
    assert len(near) > len(data) / 3  # a grid would have a tenth of its points there


def test_the_file_runs(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, FILE], cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) == 2
