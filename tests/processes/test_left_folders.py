"""Folders that killed processes have left are removed, and those in use are not."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import ropewalk as rw
from ropewalk.control.launchers import find_launchers
from ropewalk.processes.left_folders import FolderClaim, sweep
from ropewalk.transport.credentials import create_run_folder

SCRIPT = """
import sys
import ropewalk as rw

if __name__ == "__main__":
    program = rw.Program("left")
    program.add(rw.Service(dict), name="store")
    running = program.launch("threads")
    running.wait_ready(120)
    print("ready", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def parent() -> Path:
    """Where run folders are made here."""
    return Path(os.environ["XDG_RUNTIME_DIR"])


def folders(parent: Path) -> set[Path]:
    return set(parent.glob("ropewalk-*"))


@pytest.mark.parametrize("by", ["ps", "next run"])
def test_the_folder_of_a_killed_launcher_is_removed_and_not_before(parent: Path, by: str) -> None:
    # It stayed for ever: in processes mode the agent removes it, and here there is none.
    before = folders(parent)
    script = subprocess.Popen([sys.executable, "-c", SCRIPT], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert script.stdin and script.stdout
    try:
        assert script.stdout.readline() == b"ready\n"
        (folder,) = folders(parent) - before
        (found,) = find_launchers([parent])
        assert found.name == "left" and folder.exists()
    finally:
        script.send_signal(signal.SIGKILL)
        script.wait()
        script.stdin.close()
        script.stdout.close()
    assert folder.exists()
    if by == "ps":
        assert find_launchers([parent]) == []
    else:
        program = rw.Program("next")
        program.add(rw.Worker(print))
        assert program.launch("threads").wait(120)
    assert not folder.exists()


def test_only_what_was_claimed_on_this_kernel_and_is_free_is_removed(tmp_path: Path) -> None:
    in_use, left, elsewhere, of_a_session = (create_run_folder(tmp_path) for _ in range(4))
    claim = FolderClaim(in_use)
    FolderClaim(left).close()
    FolderClaim(elsewhere).close()
    (elsewhere / "owner.claim").write_bytes(b"another boot")
    sweep([tmp_path])
    assert folders(tmp_path) == {in_use, elsewhere, of_a_session}
    claim.close()
    claim.close()
    sweep([tmp_path])
    assert folders(tmp_path) == {elsewhere, of_a_session}


def test_what_takes_the_place_of_a_left_folder_while_it_is_looked_at_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where others may rename folders, any of ours could be removed in the place of one that was left."""
    left, precious = create_run_folder(tmp_path), tmp_path / "precious"
    precious.mkdir(mode=0o700)
    (precious / "file").touch()
    FolderClaim(left).close()
    lock = fcntl.flock

    def swapped(fd: int, operation: int) -> None:
        lock(fd, operation)
        left.rename(tmp_path / "away")
        precious.rename(left)

    monkeypatch.setattr(fcntl, "flock", swapped)
    sweep([tmp_path])
    assert os.listdir(left) == ["file"] and os.listdir(tmp_path / "away") == []
