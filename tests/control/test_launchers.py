"""Launchers are found where run folders are, and only those of this user that live."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from ropewalk.atomic_files import write_new_file
from ropewalk.control.launchers import Launcher, LauncherGone, find_launchers, usual_parents
from ropewalk.control.server import Announcement
from tests.control.pretend import announce


def announcement(folder: Path, pid: int | None = None) -> Announcement:
    return Announcement(
        name="train", pid=pid or os.getpid(), address=f"unix:{folder}/c.sock", run_id="run", secret="secret"
    )


def run_folder(parent: Path, mode: int = 0o700) -> Path:
    folder = parent / "ropewalk-00000001"
    folder.mkdir()
    folder.chmod(mode)
    return folder


def test_a_launcher_is_found_by_its_file(tmp_path: Path) -> None:
    folder = run_folder(tmp_path)
    file = announce(folder, announcement(folder))
    (found,) = find_launchers([tmp_path])
    assert (found.file, found.name, found.pid) == (file, "train", os.getpid())
    assert str(found) == f"train (pid {os.getpid()})"


def test_a_launcher_is_told_apart_by_its_script() -> None:
    # Pools without a name of their own are all called pool-1, and the wrong one was stopped.
    pool = Announcement(name="pool-1", pid=7, address="unix:/c", run_id="r", secret="s", kind="pool", script="es.py")
    assert str(Launcher(Path("/run/7"), pool)) == "pool-1 (pool, pid 7, es.py)"


def test_the_file_of_another_version_is_read_so_that_it_can_be_told(tmp_path: Path) -> None:
    folder = run_folder(tmp_path)
    facts = {"program": "old", "pid": os.getpid(), "address": f"unix:{folder}/c.sock", "run_id": "r", "secret": "s"}
    write_new_file(folder / "control-1-1.json", [json.dumps(facts).encode()])
    write_new_file(folder / "control-1-2.json", [json.dumps({**facts, "program": "young", "colour": "red"}).encode()])
    assert [(found.name, found.kind, found.id) for found in find_launchers([tmp_path])] == [
        ("old", "program", ""), ("young", "program", ""),
    ]  # fmt: skip


def test_what_a_dead_process_left_is_passed_by(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    folder = run_folder(tmp_path)
    announce(folder, announcement(folder, dead.pid))
    assert find_launchers([tmp_path]) == []


def test_a_socket_that_nobody_serves_any_more_means_that_the_program_has_ended(tmp_path: Path) -> None:
    folder = run_folder(tmp_path)
    announce(folder, announcement(folder))
    (found,) = find_launchers([tmp_path])
    with pytest.raises(LauncherGone, match="has ended"), found.connect():
        pass


def test_folders_and_files_that_others_may_have_written_are_passed_by(tmp_path: Path) -> None:
    open_folder = run_folder(tmp_path, 0o755)
    announce(open_folder, announcement(open_folder))
    assert find_launchers([tmp_path]) == []
    open_folder.chmod(0o700)
    (found,) = find_launchers([tmp_path])
    found.file.chmod(0o644)
    assert find_launchers([tmp_path]) == []
    found.file.chmod(0o600)
    link = tmp_path / "ropewalk-00000002"
    link.symlink_to(open_folder)
    assert len(find_launchers([tmp_path])) == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_another_user_is_passed_by(tmp_path: Path) -> None:
    folder = run_folder(tmp_path)
    announce(folder, announcement(folder))
    os.chown(folder, 12345, -1)
    assert find_launchers([tmp_path]) == []


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"program": 3}', b"\xff"])
def test_a_file_that_is_not_whole_is_passed_by(tmp_path: Path, content: bytes) -> None:
    file = run_folder(tmp_path) / "control-1-1.json"
    file.touch(0o600)
    file.write_bytes(content)
    assert find_launchers([tmp_path]) == []


def test_a_pipe_in_place_of_a_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(run_folder(tmp_path) / "control-1-1.json", 0o600)
    assert find_launchers([tmp_path]) == []


def test_each_place_is_looked_into_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "link"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)  # or what it finds now would stay for the tests that follow
    parents = usual_parents(tmp_path / "own")
    assert parents.count(tmp_path) == 1 and tmp_path / "own" in parents and Path("/tmp") in parents
    monkeypatch.setenv("XDG_RUNTIME_DIR", "")
    assert Path("/") not in usual_parents(tmp_path)
