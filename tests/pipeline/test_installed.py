"""Partitioners and schedules of other packages are found by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from ropewalk.errors import PlanInvalid, ScheduleInvalid
from ropewalk.pipeline.partitioners import make_partitioner
from ropewalk.pipeline.schedules import make_schedule

CODE = """
from ropewalk.pipeline.partitioners.balanced import Balanced
from ropewalk.pipeline.schedules.gpipe import GPipe

class Theirs(Balanced):
    name = "theirs"

class Waves(GPipe):
    name = "waves"
"""


@pytest.fixture(autouse=True)
def their_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "their_package.py").write_text(CODE)
    info = tmp_path / "their_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[ropewalk.partitioners]\ntheirs = their_package:Theirs\nbroken = their_package:Nothing\n"
        "[ropewalk.schedules]\nwaves = their_package:Waves\n"
    )
    monkeypatch.syspath_prepend(tmp_path)


def test_what_a_package_adds_is_made_by_name() -> None:
    assert make_partitioner("theirs").name == "theirs"
    assert make_schedule("waves", norm=True).norm


def test_near_names_of_packages_are_proposed_and_broken_entries_named() -> None:
    with pytest.raises(PlanInvalid, match="did you mean 'theirs'"):
        make_partitioner("their")
    with pytest.raises(ScheduleInvalid, match="did you mean 'waves'"):
        make_schedule("wave")
    with pytest.raises(PlanInvalid, match=r"'broken' cannot be loaded from their_package:Nothing"):
        make_partitioner("broken")
