"""Every program among the examples runs as a reader would run it: as a file, in processes and in threads."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "examples"
TEXTS = {path.stem: path.read_text(encoding="utf-8") for path in sorted(FOLDER.glob("*.py"))}


AS_A_FILE, IN_THREADS = ["{file}"], ["-m", "ropewalk", "run", "{file}", "--mode", "threads", "--"]
#: All exchanges, but not 40 steps of each.
SMALLER = {"gradient_exchange": ["--steps", "3"]}
#: As `__main__` of this process: their own would take seconds to import torch, beside those that they start.
WITH_TORCH = ("gradient_exchange",)


#: What computes for 3 to 7 s of CPU time, to a result that its own test judges, in threads. That a file with its
#: classes in `__main__` runs in processes, the lighter ones show.
HEAVY = ("actor_learner", "central_inference", "evolution_strategies", "parameter_server", "trainer_in_program")


# In processes, which is the default; their own tests run the same programs in threads. The other way round in soak.
@pytest.mark.parametrize(
    "command",
    [AS_A_FILE, pytest.param(IN_THREADS, marks=pytest.mark.soak)],
    ids=["python", "ropewalk-run"],
)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.soak] if name in HEAVY else [])
        for name, text in TEXTS.items()
        if "rw.Program" in text
    ],
)
def test_the_file_runs(name: str, command: list[str], tmp_path: Path, run_file: Callable[..., list[str]]) -> None:
    if name in WITH_TORCH and command == AS_A_FILE:
        assert 1 < len(run_file(name, *SMALLER.get(name, []))) < 20
    else:
        check(name, command, tmp_path)


def test_the_file_runs_in_threads(tmp_path: Path) -> None:
    check("hello", IN_THREADS, tmp_path)


def check(name: str, command: list[str], tmp_path: Path) -> None:
    for needed in ("numpy", "gymnasium"):
        if f"import {needed}" in TEXTS[name]:
            pytest.importorskip(needed)
    # In a folder of its own: a node must not find the example's classes by chance.
    arguments = [part.format(file=FOLDER / f"{name}.py") for part in command] + SMALLER.get(name, [])
    done = subprocess.run([sys.executable, *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=200)
    said = [line for line in done.stderr.splitlines() if "times vary by" not in line]  # others may be at work here
    assert (done.returncode, said) == (0, []), done.stdout
    assert 1 < len(done.stdout.splitlines()) < 20
