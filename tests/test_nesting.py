"""Texts nested deeper than Python's stack are refused as what they should have been, with their file's name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from ropewalk.cli import app
from ropewalk.engines.options import read_options
from ropewalk.engines.ray import RayOptions
from ropewalk.engines.slurm_jobs import read_squeue
from ropewalk.errors import PlanInvalid, ProfileInvalid, TopologyInvalid
from ropewalk.pipeline.plans import Plan
from ropewalk.pipeline.profiles import Profile
from ropewalk.pipeline.topology_text import load_topology
from ropewalk.population.algorithms.pbt_history import PBTSchedule
from ropewalk.population.decisions import read_decisions
from ropewalk.processes.launcher_record import LauncherState, launcher_of, recorded_engines

DEPTH = 100_000
LISTS = "[" * DEPTH + "]" * DEPTH


def _file(folder: Path, text: str) -> Path:
    file = folder / "nested.toml"
    file.write_text(text)
    return file


READERS: dict[str, tuple[Callable[[Path], object], type[Exception], str]] = {
    "plan": (lambda folder: Plan.from_json(f'{{"unknown": {LISTS}}}'), PlanInvalid, "not a plan"),
    "profile": (lambda folder: Profile.from_json(f'{{"unknown": {LISTS}}}'), ProfileInvalid, "not a profile"),
    "plan of bytes": (lambda folder: Plan.from_json(b'{"schedule": "\xff"}'), PlanInvalid, "not a plan"),
    "topology": (lambda folder: load_topology(_file(folder, f"levels = {LISTS}")), TopologyInvalid, "nested.toml"),
    "decisions": (lambda folder: read_decisions(_file(folder, LISTS)), ValueError, "line 1 of the log"),
    "schedule": (lambda folder: PBTSchedule.load(_file(folder, LISTS)), ValueError, "nested.toml holds no schedule"),
    "no schedule": (lambda folder: PBTSchedule.load(_file(folder, "[1]")), ValueError, "nested.toml holds no schedule"),
    "squeue": (lambda folder: read_squeue(f'{{"jobs": {LISTS}}}'), ValueError, "not what squeue"),
    "option": (lambda folder: read_options("ray", RayOptions, {"runtime_env": LISTS}), ValueError, "runtime_env"),
}


@pytest.mark.parametrize("reader", READERS)
def test_what_is_nested_deeply_is_a_mistake_of_its_kind(tmp_path: Path, reader: str) -> None:
    read, error, words = READERS[reader]
    with pytest.raises(error, match=words):
        read(tmp_path)


def test_the_command_names_the_file_of_a_profile_that_is_none(tmp_path: Path) -> None:
    file = _file(tmp_path, f'{{"unknown": {LISTS}}}')
    done = CliRunner().invoke(app, ["plan", "--profile", str(file), "--devices", "2"])
    assert done.exit_code == 2 and "nested.toml" in done.output.replace("\n", ""), done.output


def test_a_record_of_a_launcher_that_is_nested_deeply_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    folder = tmp_path / "ropewalk/launchers"
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(f'{{"unknown": {LISTS}}}')
    assert launcher_of("run")[0] is LauncherState.UNKNOWN and recorded_engines() == set()
