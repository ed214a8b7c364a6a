"""DEAP over a pool's map: the same individuals as in one process."""

from __future__ import annotations

import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("deap")
LoadExample = Callable[[str], types.ModuleType]
FILE = Path(__file__).parents[2] / "examples" / "deap_onemax.py"


def test_the_pool_changes_nothing_but_who_evaluates(load_example: LoadExample) -> None:
    example = load_example("deap_onemax")
    here = example.evolve(example.make_toolbox(), seed=1, generations=10)
    assert example.main(generations=10) == here


def test_it_evolves_ones(load_example: LoadExample) -> None:
    assert sum(load_example("deap_onemax").main(generations=40)) >= 57


def test_the_file_runs(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, FILE], cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[0].endswith("of 60 bits are ones after 40 generations")
