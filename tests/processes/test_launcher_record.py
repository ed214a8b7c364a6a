"""What is known of a launcher while it lives, after it was killed, and from another host."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from ropewalk.processes.launcher_record import (
    LauncherRecord,
    LauncherState,
    forget_run,
    launcher_of,
    recorded_engines,
    runs_of,
)

RUN = "0123456789abcdef"
HOLD = f"""
import sys
from ropewalk.processes.launcher_record import LauncherRecord
record = LauncherRecord({RUN!r}, "slurm")
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "ropewalk/launchers"


def test_a_launcher_lives_until_it_says_that_its_jobs_have_ended(folder: Path) -> None:
    assert launcher_of(RUN)[0] is LauncherState.UNKNOWN and recorded_engines() == set()
    record = LauncherRecord(RUN, "slurm")
    assert launcher_of(RUN) == (LauncherState.ALIVE, f"its launcher runs: pid {os.getpid()} on {os.uname().nodename}")
    assert recorded_engines() == {"slurm"}
    assert stat.S_IMODE((folder / f"{RUN}.json").stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    record.close()
    record.close()
    assert launcher_of(RUN)[0] is LauncherState.UNKNOWN and list(folder.iterdir()) == []


def test_a_killed_launcher_is_gone_and_its_engine_is_known() -> None:
    process = subprocess.Popen([sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout and process.stdout.readline() == "ready\n"
    assert launcher_of(RUN)[0] is LauncherState.ALIVE and runs_of(process.pid) == []
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert runs_of(process.pid) == [(RUN, "slurm")] and runs_of(process.pid + 1) == []
    state, words = launcher_of(RUN)
    assert state is LauncherState.GONE and f"pid {process.pid}" in words
    assert recorded_engines() == {"slurm"}
    forget_run(RUN)
    assert launcher_of(RUN)[0] is LauncherState.UNKNOWN


@pytest.mark.parametrize(
    ("host", "words"), [("far", "can only be seen there"), (os.uname().nodename, "or on another one of that name")]
)
def test_of_another_kernel_only_the_host_is_known(folder: Path, host: str, words: str) -> None:
    folder.mkdir(parents=True)
    facts = {"run_id": RUN, "engine": "slurm", "host": host, "boot_id": "another", "pid": os.getpid()}
    (folder / f"{RUN}.json").write_text(json.dumps(facts))
    state, detail = launcher_of(RUN)
    assert state is LauncherState.ELSEWHERE and words in detail
    assert runs_of(os.getpid()) == [], "ids of processes are counted anew"


def test_a_state_folder_that_cannot_be_had_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    LauncherRecord(RUN, "slurm").close()


def test_a_record_that_another_user_could_have_written_is_none(folder: Path) -> None:
    """It names engines that `doctor --leftovers` then asks."""
    LauncherRecord(RUN, "slurm").forget()
    assert recorded_engines() == {"slurm"}
    (folder / f"{RUN}.json").chmod(0o666)
    assert recorded_engines() == set() and launcher_of(RUN)[0] is LauncherState.UNKNOWN
    (folder / f"{RUN}.json").chmod(0o600)
    folder.chmod(0o777)
    assert recorded_engines() == set()
    with contextlib.closing(LauncherRecord("f00d", "mpi")):
        assert [path.name for path in folder.iterdir()] == [f"{RUN}.json"], "nor is one written there"


def test_a_run_whose_name_is_a_path_touches_no_other_file(tmp_path: Path) -> None:
    """Names of runs come from labels on a cluster, and `doctor --leftovers --remove` forgets such runs."""
    (tmp_path / "precious.json").write_text("{}")
    for name in ("../../precious", str(tmp_path / "precious"), "\ud800"):
        forget_run(name)
        assert launcher_of(name)[0] is LauncherState.UNKNOWN
    assert (tmp_path / "precious.json").exists()


def test_folders_above_are_private_too_under_any_umask(tmp_path: Path) -> None:  # S12
    before = os.umask(0)
    try:
        LauncherRecord(RUN, "slurm").close()
    finally:
        os.umask(before)
    for made in ("ropewalk", "ropewalk/launchers"):
        assert stat.S_IMODE((tmp_path / made).stat().st_mode) == 0o700
