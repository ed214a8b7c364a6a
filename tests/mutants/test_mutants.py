"""Mistakes are planted where people make them, tests notice them, and what they do not notice is told."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("cosmic_ray", reason="makes the mutants; pip install cosmic-ray, or `make lab`")

from tests.mutants.mutating import mutants_of

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

EQUAL = """
[[decider.equal]]
was = "if number < self.value and not twice:"
becomes = "if number <= self.value and not twice:"
why = "it is the same number"
"""


@pytest.mark.lab
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
    ran = subprocess.run(
        [sys.executable, "-m", "tests.mutants.run", "--deciders", tmp_path / "deciders.toml"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert (ran.returncode, ran.stdout.count(": survived")) == (code, survivors), ran.stdout + ran.stderr
    assert ("take it off the list" in ran.stdout) == ("!=" in listed)
    assert (tmp_path / "least.py").read_text() == SOURCE, "no file is changed"
