"""A folder is claimed by one launcher at a time, and free again however that one ends."""

from __future__ import annotations

import os
import signal
import stat
from pathlib import Path

import pytest

from ropewalk.launcher_claim import LauncherClaim
from tests.forked_process import ForkedProcess


def test_one_launcher_at_a_time_has_a_folder(tmp_path: Path) -> None:
    claim = LauncherClaim.on(tmp_path / "new/folder")
    assert claim and LauncherClaim.on(tmp_path / "new/folder") is None
    assert stat.S_IMODE((tmp_path / "new/folder").stat().st_mode) == 0o700
    claim.close()
    claim.close()
    again = LauncherClaim.on(tmp_path / "new/folder")
    assert again
    again.close()


def test_a_killed_launcher_has_no_claim(tmp_path: Path) -> None:
    held: list[LauncherClaim | None] = []
    with ForkedProcess(lambda: held.append(LauncherClaim.on(tmp_path))) as launcher:
        launcher.wait_until_done()
        assert LauncherClaim.on(tmp_path) is None
        os.kill(launcher.pid, signal.SIGKILL)
        os.waitid(os.P_PID, launcher.pid, os.WEXITED | os.WNOWAIT)
        claim = LauncherClaim.on(tmp_path)
        assert claim
        claim.close()


def test_a_file_system_without_locks_holds_nobody_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError("no locks available")

    monkeypatch.setattr("fcntl.flock", refuse)
    claims = [LauncherClaim.on(tmp_path) for _ in range(2)]
    assert all(claims)
    for claim in claims:
        assert claim
        claim.close()
