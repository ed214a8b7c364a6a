"""Mistakes are planted where people make them, tests notice them, and what they do not notice is told."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("cosmic_ray", reason="makes the mutants; pip install cosmic-ray, or `make lab`")

from tests.mutants import run
from tests.mutants.mutating import mutants_of
from tests.mutants.run import read_deciders
from tests.mutants.table import read_rows, write_rows

ROOT = Path(__file__).parents[2]

SOURCE = '''
"""A module."""

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclasses.dataclass(frozen=True)
class Least:
    value: int = 3

    def add(self, number: int, *, twice: bool = False) -> int | None:
        """Keeps the least."""
        if number < self.value and not twice:
            object.__setattr__(self, "value", number)
        self.last: int
        return self.value
'''


def test_mistakes_are_planted_in_what_is_done_and_not_in_what_is_said() -> None:
    found = {(mutant.line, mutant.becomes) for mutant in mutants_of(SOURCE)}
    assert found == {
        (13, "value: int = 4"),
        (13, "value: int = 2"),
        (15, "def add(self, number: int, *, twice: bool = True) -> int | None:"),
        (17, "if number <= self.value and not twice:"),
        (17, "if number >= self.value and not twice:"),
        (17, "if number < self.value or not twice:"),
        (17, "if number < self.value and twice:"),
        (17, "if not number < self.value and not twice:"),
        (18, "pass"),
        (20, "pass"),
    }


TESTS = """
from least import Least

def test_least():
    least = Least()
    assert [least.add(number) for number in (4, 2, 5)] == [3, 2, 2]
    assert least.add(1, twice=True) == 2
"""

#: The command, whose mutants need nothing that takes long to import: torch alone takes 1.5 s of CPU time.
COMMAND = [
    *(sys.executable, "-c"),
    "from tests.mutants import run; run.PRELOADED = ('pytest', 'hypothesis'); raise SystemExit(run.main())",
]

EQUAL = """
[[decider.equal]]
was = "if number < self.value and not twice:"
becomes = "if number <= self.value and not twice:"
why = "it is the same number"
"""


@pytest.mark.lab
def test_exceptions_of_modules_are_replaced_too() -> None:
    source = "try:\n    read()\nexcept (ValueError, struct.error):\n    pass\n"
    assert {mutant.becomes for mutant in mutants_of(source)} == {
        "except (CosmicRayTestingException, struct.error):",
        "except (ValueError, CosmicRayTestingException.error):",
    }


@pytest.mark.parametrize(
    ("listed", "survivors", "code"), [("", 1, 1), (EQUAL, 0, 0), (EQUAL + EQUAL.replace("<=", "!="), 0, 1)]
)
def test_what_survives_is_told_unless_it_is_listed_as_equal_and_lists_are_kept_short(
    tmp_path: Path, listed: str, survivors: int, code: int
) -> None:
    (tmp_path / "least.py").write_text(SOURCE)
    (tmp_path / "test_least.py").write_text(TESTS)
    (tmp_path / "deciders.toml").write_text(
        f'[[decider]]\nmodule = "least"\nroot = "{tmp_path}"\ntests = ["{tmp_path / "test_least.py"}"]\n{listed}'
    )
    files = ["--deciders", tmp_path / "deciders.toml", "--table", tmp_path / "table.md"]
    ran = subprocess.run([*COMMAND, *files], cwd=ROOT, capture_output=True, text=True)
    assert (ran.returncode, ran.stdout.count(": survived")) == (code, survivors), ran.stdout + ran.stderr
    assert ("take it off the list" in ran.stdout) == ("!=" in listed)
    assert (tmp_path / "least.py").read_text() == SOURCE, "no file is changed"
    cells = read_rows(tmp_path / "table.md")["least"]
    assert cells[1:6] == ["10", "9", str(1 - survivors), str(survivors), "90.0%" if survivors else "100.0%"]
    (decider,) = read_deciders(tmp_path / "deciders.toml")
    assert cells[-1] == decider.digest
    (tmp_path / "least.py").write_text(SOURCE + "# changed\n")
    assert cells[-1] != decider.digest, "its row is of another module"


@pytest.mark.lab
def test_the_row_of_a_sample_says_of_how_many_it_is(tmp_path: Path) -> None:
    (tmp_path / "least.py").write_text(SOURCE)
    (tmp_path / "test_least.py").write_text(TESTS)
    (tmp_path / "deciders.toml").write_text(
        f'[[decider]]\nmodule = "least"\nroot = "{tmp_path}"\ntests = ["{tmp_path / "test_least.py"}"]\n{EQUAL}'
    )
    files = ["--deciders", str(tmp_path / "deciders.toml"), "--table", str(tmp_path / "table.md")]
    command = [sys.executable, "-m", "tests.mutants.run"]
    ran = subprocess.run([*command, *files, "--sample", "4"], cwd=ROOT, capture_output=True, text=True)
    cells = read_rows(tmp_path / "table.md")["least"]
    assert cells[1] == "4 of 10"
    assert sum(map(int, cells[2:5])) == 4
    assert ran.returncode == 0, "a line of the list that a sample does not need may stay on it"


def test_a_sample_is_the_same_each_time_and_part_of_every_larger_one() -> None:
    mutants = mutants_of(SOURCE)
    samples = [[mutant.source for mutant in run.sample_of(mutants, num)] for num in range(len(mutants) + 2)]
    assert [len(sample) for sample in samples] == [*range(len(mutants) + 1), len(mutants)]
    for smaller, larger in itertools.pairwise(samples):
        assert set(smaller) <= set(larger)
    assert samples[-1] == [mutant.source for mutant in mutants]
    assert samples[3] == [mutant.source for mutant in run.sample_of(mutants_of(SOURCE), 3)]


def test_rows_are_kept_by_name_and_read_back(tmp_path: Path) -> None:
    path = tmp_path / "table.md"
    assert read_rows(path) == {}
    write_rows({"b": ["b", 3, "50.0%"], "a": ["a", 10, "100.0%"]}, path)
    assert list(read_rows(path).items()) == [("a", ["a", "10", "100.0%"]), ("b", ["b", "3", "50.0%"])]


def forked(act: Callable[[], object]) -> int:
    pid = os.fork()
    if pid == 0:
        os.setsid()
        act()
        os._exit(0)
    return pid


@pytest.mark.parametrize("is_in_child", [False, True])
def test_a_mutant_that_waits_for_ever_is_killed_and_one_that_computes_is_not(
    monkeypatch: pytest.MonkeyPatch, is_in_child: bool
) -> None:
    """Time on the wall was what counted once: on a busy machine, mutants that no test noticed counted as killed."""
    monkeypatch.setattr(run, "LOOK_S", 0.01)
    monkeypatch.setattr(run, "NUM_LOOKS", 20)

    def compute() -> None:
        while True:
            pass

    def compute_in_child() -> None:
        child = os.fork()
        if child == 0:
            compute()
        os.waitpid(child, 0)

    asleep, busy = forked(signal.pause), forked(compute_in_child if is_in_child else compute)
    try:
        assert run.ended([asleep, busy]) == [(asleep, -signal.SIGKILL)]
        assert os.waitpid(busy, os.WNOHANG) == (0, 0)
    finally:
        run.kill_group(busy)
        os.waitpid(busy, 0)
