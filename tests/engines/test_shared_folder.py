"""The folder that launcher and hosts share is private, whoever planted what there."""

from __future__ import annotations

import errno
import json
import os
import platform
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from ropewalk.atomic_files import boot_id
from ropewalk.engines import shared_folder
from ropewalk.engines.engine import JobState
from ropewalk.engines.mpi import MpiEngine
from ropewalk.engines.shared_folder import SharedFolder
from ropewalk.errors import EngineError
from ropewalk.process_start import start_ticks


def test_files_are_private_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        made = SharedFolder(str(tmp_path / "jobs")).prepare("f00d", "request", 2, b"secret")
    finally:
        os.umask(before)
    modes = {path.name: oct(path.stat().st_mode & 0o777) for path in [tmp_path / "jobs", made.parent, made]}
    assert set(modes.values()) == {"0o700"}
    assert {oct(path.stat().st_mode & 0o777) for path in made.iterdir()} == {"0o600"}
    assert sorted(path.name for path in made.iterdir()) == ["0.log", "0.stdin", "1.log", "1.stdin"]


def test_a_request_for_which_there_is_no_room_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The quota of a home folder: what had been written, with credentials, stayed for a month.
    write = shared_folder.write_new_file

    def write_until_full(path: Path, parts: Any, **more: Any) -> int:
        if path.name == "1.log":
            raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT), str(path))
        return write(path, parts, **more)

    monkeypatch.setattr(shared_folder, "write_new_file", write_until_full)
    with pytest.raises(
        EngineError, match=r"cannot prepare jobs in .*quota exceeded.*choose another with the option folder"
    ):
        SharedFolder(str(tmp_path / "jobs")).prepare("f00d", "request", 2, b"secret")
    assert list((tmp_path / "jobs").iterdir()) == []


def test_a_folder_that_others_may_change_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "jobs"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(EngineError, match=r"mode 0777, and must not let other users write.*option folder"):
        SharedFolder(str(folder)).prepare("f00d", "request", 1, b"secret")
    folder.chmod(0o1777)
    SharedFolder(str(folder)).prepare("f00d", "request", 1, b"secret")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
def test_a_folder_of_somebody_else_is_refused(tmp_path: Path) -> None:
    planted = tmp_path / "ropewalk-f00d"
    planted.mkdir(mode=0o700)
    os.chown(planted, 65534, 65534)
    with pytest.raises(EngineError, match=r"belongs to user \w+ \(65534\)"):
        SharedFolder(str(tmp_path)).prepare("f00d", "request", 1, b"secret")


def test_a_link_in_the_place_of_a_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "ropewalk-f00d").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(EngineError, match="symbolic link"):
        SharedFolder(str(tmp_path / "jobs")).prepare("f00d", "request", 1, b"secret")
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_file_in_the_place_of_the_folder_is_an_error_with_words(tmp_path: Path) -> None:
    (tmp_path / "jobs").write_text("")
    with pytest.raises(EngineError, match=r"cannot prepare jobs in .*option folder"):
        SharedFolder(str(tmp_path / "jobs")).prepare("f00d", "request", 1, b"")


def test_folders_of_launchers_that_are_long_gone_are_known(tmp_path: Path) -> None:
    folder = SharedFolder(str(tmp_path))
    for run in ("old", "new"):
        folder.prepare(run, "request", 1, b"secret")
    for run, days in (("old", 31), ("new", 20)):  # the job of the new one may wait on another cluster
        then = time.time() - days * 24 * 3600
        os.utime(tmp_path / f"ropewalk-{run}", (then, then))
    (tmp_path / "ropewalk-file").write_text("")
    assert folder.old_runs() == ["old"]
    assert folder.remains(busy=["new"]) == {"old": [f"folder {tmp_path}/ropewalk-old"]}
    folder.remove_run("old")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ropewalk-file", "ropewalk-new"]


def test_output_is_read_from_no_link_and_from_no_pipe(tmp_path: Path) -> None:
    """Another member of a project may put a folder of his own in the place of ours: a pipe stopped the launcher."""
    folder = SharedFolder(str(tmp_path / "jobs"))
    made = folder.prepare("f00d", "request", 2, b"secret")
    (made / "0.log").write_text("ours")
    assert folder.log("f00d", "request", 0) == "ours"
    (tmp_path / "secret").write_text("a key")
    for number, put in enumerate([lambda path: path.symlink_to(tmp_path / "secret"), os.mkfifo]):
        (made / f"{number}.log").unlink()
        put(made / f"{number}.log")
        assert folder.log("f00d", "request", number) == ""


def test_the_kind_of_file_system_is_known(tmp_path: Path) -> None:
    shm = SharedFolder("/dev/shm/x")
    assert shm.kind() == "tmpfs" and shm.is_local()
    assert str(SharedFolder("~/x").path) == os.path.expanduser("~/x")


def test_what_somebody_else_says_of_an_mpiexec_is_not_believed(tmp_path: Path) -> None:
    """It names a process, which is killed when the run is cleaned up."""
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs").chmod(0o1777)
    with subprocess.Popen(["sleep", "600"]) as victim:
        try:
            folder = tmp_path / "jobs" / "ropewalk-f00d" / "0123456789ab"
            folder.mkdir(parents=True)
            born = int(Path(f"/proc/{victim.pid}/stat").read_text().rpartition(")")[2].split()[19])
            facts = {"pid": victim.pid, "born": born, "boot": boot_id(), "host": platform.node(), "ranks": 1}
            (folder / "mpiexec.json").write_text(json.dumps(facts))
            engine = MpiEngine({"folder": str(tmp_path / "jobs")})
            assert engine.runs() == {"f00d": ["f00d.0123456789ab.0"]}
            (folder / "mpiexec.json").chmod(0o666)
            assert engine.runs() == {}
            engine.cancel(["f00d.0123456789ab.0"])
            assert victim.poll() is None
        finally:
            victim.kill()


def test_a_run_of_another_host_is_left_alone_until_it_is_cancelled(tmp_path: Path) -> None:
    """Its mpiexec was looked for among the processes of this host: the files of a run that had lasted for a day were
    removed as those of a dead one, and without its files it ended.
    """
    folder = tmp_path / "jobs" / "ropewalk-f00d" / "0123456789ab"
    folder.mkdir(parents=True)
    facts = {"pid": os.getpid(), "born": 1, "boot": "another", "host": "another", "ranks": 2}
    (folder / "mpiexec.json").write_text(json.dumps(facts))
    os.utime(folder.parent, (0, 0))
    engine = MpiEngine({"folder": str(tmp_path / "jobs")})
    ids = ["f00d.0123456789ab.0", "f00d.0123456789ab.1"]
    assert engine.runs() == {"f00d": ids} and not engine.remains()
    engine.close()
    (folder / "0.end").write_text("3")
    first, second = engine.poll(ids).values()
    assert (first.state, first.exit_code) == (JobState.ENDED, 3)
    assert second.state is JobState.RUNNING and "another" in second.reason
    engine.cancel(ids)
    assert not folder.exists(), "a rank that still runs ends without it"


def test_an_mpiexec_of_an_earlier_boot_is_gone(tmp_path: Path) -> None:
    folder = tmp_path / "jobs" / "ropewalk-f00d" / "0123456789ab"
    folder.mkdir(parents=True)
    born = start_ticks(os.getpid())
    facts = {"pid": os.getpid(), "born": born, "boot": "another", "host": platform.node(), "ranks": 1}
    (folder / "mpiexec.json").write_text(json.dumps(facts))
    assert MpiEngine({"folder": str(tmp_path / "jobs")}).runs() == {}


def test_the_hosts_of_mpi_may_be_addresses_of_ipv6(tmp_path: Path) -> None:
    """The part before the first colon was looked up, and nothing was found."""
    assert MpiEngine({"hosts": ["fd00::2", "10.0.0.1:4"]}).hosts() == ["fd00::2", "10.0.0.1"]
