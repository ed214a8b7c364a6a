"""One program that uses all of multiprocessing prints the same on ropewalk, with one line of it changed."""

from __future__ import annotations

import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.patience import PROGRAM_S

SCRIPT = Path(__file__).parents[2] / "examples" / "forest_fires.py"
THEIRS, OURS = "import multiprocessing as mp", "import ropewalk as mp"
PARTS = ("survey", "questions", "inspection", "extremes", "stations", "ends")
LoadExample = Callable[[str], types.ModuleType]


def output(folder: Path, line: str, *parts: str) -> str:
    """What the program prints as a script of its own, with this line to import what it uses."""
    text = SCRIPT.read_text(encoding="utf-8")
    assert [part for part in text.splitlines() if part.startswith("import multi")] == [f"{THEIRS}  # or: {OURS}"], (
        "the program names the library more than once"
    )
    script = folder / f"{line.split()[1]}_fires.py"
    script.write_text(text.replace(f"\n{THEIRS} ", f"\n{line} "), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(script), *parts], cwd=folder, capture_output=True, text=True, timeout=PROGRAM_S
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    return done.stdout


# By themselves: one of them by default, since `tests/compat` compares all that they use.
@pytest.mark.parametrize("part", [*(pytest.param(part, marks=pytest.mark.soak) for part in PARTS[:-1]), PARTS[-1]])
def test_each_part_prints_the_same_with_both_libraries(part: str, tmp_path: Path) -> None:
    theirs = output(tmp_path, THEIRS, part)
    assert theirs.startswith(f"# {part}\n") and theirs.count("\n") > 5
    assert output(tmp_path, OURS, part) == theirs


@pytest.mark.soak  # 4 s of CPU time
def test_the_whole_program_prints_the_same_with_both_libraries(tmp_path: Path) -> None:
    theirs = output(tmp_path, THEIRS)
    assert [line[2:] for line in theirs.splitlines() if line.startswith("# ")] == list(PARTS)
    assert output(tmp_path, OURS) == theirs


def test_a_fire_takes_the_trees_that_stand_together(load_example: LoadExample) -> None:
    example = load_example("forest_fires")
    assert example.burn(1.0, 0) == (example.SIZE**2, True)
    assert example.burn(0.0, 0) == (0, False)
    through = [sum(example.burn(density, seed).came_through for seed in range(20)) for density in (0.5, 0.6, 0.7)]
    assert through[0] < 5 < through[1] < 15 < through[2]
    with pytest.raises(ValueError, match=r"1\.5"):
        example.burn(1.5, 0)
