"""Every program among the examples runs as a reader would run it: as a file, in processes and in threads."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.patience import PROGRAM_S

FOLDER = Path(__file__).parents[2] / "examples"
TEXTS = {path.stem: path.read_text(encoding="utf-8") for path in sorted(FOLDER.glob("*.py"))}


AS_A_FILE, IN_THREADS = ["{file}"], ["-m", "ropewalk", "run", "{file}", "--mode", "threads", "--"]
#: All exchanges, but not 40 steps of each.
SMALLER = {"gradient_exchange": ["--steps", "3"]}


# The smallest by default, which shows that a file with its classes in `__main__` runs in processes. What the others
# compute, for up to 7 s of CPU time, their own tests judge, in threads.
@pytest.mark.parametrize("command", [AS_A_FILE, IN_THREADS], ids=["python", "ropewalk-run"])
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name == "hello" else [pytest.mark.soak])
        for name, text in TEXTS.items()
        if "rw.Program" in text
    ],
)
def test_the_file_runs(name: str, command: list[str], tmp_path: Path) -> None:
    check(name, command, tmp_path)


def test_an_exchange_of_gradients_has_its_row(
    run_file: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROPEWALK_MODE", "threads")
    lines = run_file("gradient_exchange", "--steps", "2", "--only", "all-reduce", "GD-SEC")
    assert [line[:18].strip() for line in lines[2:-1]] == ["all-reduce", "GD-SEC"]
    assert lines[-1] == "loss against bytes: gradient_exchange.svg"


def check(name: str, command: list[str], tmp_path: Path) -> None:
    for needed in ("numpy", "gymnasium"):
        if f"import {needed}" in TEXTS[name]:
            pytest.importorskip(needed)
    # In a folder of its own: a node must not find the example's classes by chance.
    arguments = [part.format(file=FOLDER / f"{name}.py") for part in command] + SMALLER.get(name, [])
    done = subprocess.run([sys.executable, *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=PROGRAM_S)
    said = [line for line in done.stderr.splitlines() if "times vary by" not in line]  # others may be at work here
    assert (done.returncode, said) == (0, []), done.stdout
    assert 1 < len(done.stdout.splitlines()) < 20
