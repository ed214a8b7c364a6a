"""Which variables a process is told of."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from ropewalk.processes import environment
from ropewalk.processes.environment import changed, changes_elsewhere, changes_here

LAUNCHER = {"PATH": "/bin:/usr/bin", "HOME": "/home/me", "RANK": "0", "OLD": "x"}


def test_on_this_host_a_process_has_what_the_program_has_whatever_its_agent_has() -> None:
    now = {"PATH": "/opt/bin:/bin:/usr/bin", "HOME": "/home/me", "RANK": "1", "EMPTY": ""}
    agent = {"PATH": "/bin", "HOME": "/home/me", "OLD": "x", "PYTHONPATH": "/our/src", "ROPEWALK_JOB": "7"}
    changes = changes_here(now, agent)
    assert changes == {"PATH": now["PATH"], "RANK": "1", "EMPTY": "", "OLD": None, "PYTHONPATH": None}
    assert changed(agent, changes) == {**now, "ROPEWALK_JOB": "7"}
    assert changes_here(agent, agent) == {}


def test_who_a_process_is_does_not_come_from_the_program() -> None:
    now = {"ROPEWALK_RUN_ID": "outer", "ROPEWALK_JOB": "1", "ROPEWALK_PROCESS": "pool-1.0"}
    assert changes_here(now, {"ROPEWALK_RUN_ID": "inner"}) == {}


def test_another_host_keeps_its_own_and_gets_what_the_program_has_changed() -> None:
    now = {**LAUNCHER, "RANK": "10", "NEW": "1", "ROPEWALK_ENGINE": "slurm"}
    del now["OLD"]
    changes = changes_elsewhere(now, LAUNCHER)
    assert changes == {"RANK": "10", "NEW": "1", "OLD": None}
    host = {"PATH": "/host/bin", "HOME": "/root", "RANK": "3", "SLURM_PROCID": "3", "OLD": "y"}
    after = {"PATH": "/host/bin", "HOME": "/root", "SLURM_PROCID": "3", "RANK": "10", "NEW": "1"}
    assert changed(host, changes) == after
    assert changes_elsewhere(LAUNCHER, LAUNCHER) == {}


@pytest.mark.parametrize(
    ("after", "there"),
    [
        ("/opt/bin:/bin:/usr/bin", "/opt/bin:/host"),
        ("/bin:/usr/bin:/opt/bin", "/host:/opt/bin"),
        ("/a:/bin:/usr/bin:/b:/c", "/a:/host:/b:/c"),
        ("/bin:/usr/bin/more", "/bin:/usr/bin/more"),  # another folder, not one more
        ("/opt/bin", "/opt/bin"),
    ],
)
def test_of_a_list_of_folders_another_host_gets_those_that_were_added(after: str, there: str) -> None:
    changes = changes_elsewhere({**LAUNCHER, "PATH": after}, LAUNCHER)
    assert changed({"PATH": "/host"}, changes)["PATH"] == there


def test_a_list_that_another_host_does_not_have_is_what_was_added() -> None:
    changes = changes_elsewhere({"LD_LIBRARY_PATH": "/mine:/usr/lib"}, {"LD_LIBRARY_PATH": "/usr/lib"})
    assert changed({}, changes) == {"LD_LIBRARY_PATH": "/mine"}
    assert changes_elsewhere({"MYPATH": "/mine"}, {}) == {"MYPATH": "/mine"}


def test_the_beginning_is_what_the_system_says_unless_that_was_written_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    intact, title = tmp_path / "environ", tmp_path / "title"
    intact.write_bytes(b"".join(f"{name}={value}\0".encode() for name, value in os.environ.items()) + b"GONE=1\0")
    monkeypatch.setenv("LATER", "1")
    then = environment.at_beginning(intact)
    assert "LATER" not in then and then["GONE"] == "1"
    title.write_bytes(b"my program: step=3\0\0\0")
    assert environment.at_beginning(title) == environment.at_beginning(tmp_path / "none") == environment.snapshot()


def test_a_process_has_the_given_variables_and_their_time_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    before = environment.snapshot()
    try:
        environment.become({"TZ": "Pacific/Kiritimati", "ONLY": "this"})
        assert dict(os.environ) == {"TZ": "Pacific/Kiritimati", "ONLY": "this"}
        assert time.localtime(0).tm_gmtoff != 0
    finally:
        environment.become(before)
    assert dict(os.environ) == before
