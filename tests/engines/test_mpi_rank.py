"""What a rank hands to the job that it runs."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ropewalk.engines import mpi_rank
from ropewalk.process_start import start_ticks
from tests.patience import PATIENCE_S


def test_a_job_gets_neither_the_ranks_variables_nor_the_token_of_slurm(tmp_path: Path) -> None:
    code = "import os; print(sorted(name for name in os.environ if name.startswith(('PMI', 'SLURM', 'ROPEWALK'))))"
    environment = {"PMI_RANK": "0", "PMI_SIZE": "1", "SLURM_JWT": "secret", "SLURM_JOB_ID": "7"}
    rank = write_job(tmp_path, [sys.executable, "-c", code])
    subprocess.run(rank, env={**os.environ, **environment}, check=True)
    assert (tmp_path / "0.log").read_text() == "['ROPEWALK_RUN_ID', 'SLURM_JOB_ID']\n"


def test_a_job_ends_with_a_rank_that_is_killed(tmp_path: Path) -> None:
    """The proxy of an mpiexec that is gone kills its ranks, and their jobs, in sessions of their own, ran on."""
    code = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    with subprocess.Popen(write_job(tmp_path, [sys.executable, "-c", code]), env=RANK_0) as rank:
        log = tmp_path / "0.log"
        wait_for(lambda: log.exists() and log.read_text().endswith("\n"))
        rank.kill()
    job = int(log.read_text())
    try:
        wait_for(lambda: not start_ticks(job))
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(job, signal.SIGKILL)


def test_a_network_drive_that_fails_for_a_while_ends_no_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Its folder counted as removed, which asks the rank to end its job.
    look = os.stat

    def fail(path: Any, **more: Any) -> os.stat_result:
        if path == tmp_path:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return look(path, **more)

    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", fail)
        assert not mpi_rank._was_removed(tmp_path)  # pyright: ignore[reportPrivateUsage]
    assert not mpi_rank._was_removed(tmp_path)  # pyright: ignore[reportPrivateUsage]
    assert mpi_rank._was_removed(tmp_path / "gone")  # pyright: ignore[reportPrivateUsage]


def test_files_that_another_user_put_in_place_of_the_launchers_are_not_used(tmp_path: Path) -> None:
    """Who may rename a folder above theirs had the ranks run a command of his own, or join a launcher of his own."""
    job = ["sh", "-c", 'echo "ran with $(cat)"']
    rank = write_job(tmp_path, job, b"secret")
    for name, forged in {"job.json": json.dumps({"command": ["echo", "forged"], "environment": {}, "stdin": ""}),
                         "0.stdin": "the address of another launcher"}.items():  # fmt: skip
        write_job(tmp_path, job, b"secret")
        (tmp_path / name).write_text(forged)
        done = subprocess.run(rank, env=RANK_0, capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (1, "")
        assert f"runs nothing: {name} in {tmp_path} is not what the launcher has written" in done.stderr
    write_job(tmp_path, job, b"secret")
    (tmp_path / "notes").touch()
    assert (tmp_path / "0.log").read_text() == ""
    (tmp_path / "0.log").unlink()
    (tmp_path / "0.log").symlink_to(tmp_path / "notes")
    assert subprocess.run(rank, env=RANK_0, capture_output=True).returncode == 1
    assert (tmp_path / "notes").read_text() == "", "output goes through no link"
    (tmp_path / "0.log").unlink()
    assert subprocess.run(rank, env=RANK_0).returncode == 0
    assert (tmp_path / "0.log").read_text() == "ran with secret\n" and not (tmp_path / "0.stdin").exists()


RANK_0 = {**os.environ, "PMI_RANK": "0"}


def write_job(folder: Path, command: list[str], stdin: bytes = b"") -> list[str]:
    """Write the files of a job, and return the command of its ranks."""
    digest = hashlib.sha256(stdin).hexdigest() if stdin else ""
    job = {"command": command, "environment": {"ROPEWALK_RUN_ID": "f00d"}, "stdin": digest}
    (folder / "job.json").write_text(json.dumps(job))
    (folder / "0.stdin").write_bytes(stdin)
    digest = hashlib.sha256((folder / "job.json").read_bytes()).hexdigest()
    return [sys.executable, "-P", "-m", "ropewalk.engines.mpi_rank", digest, str(folder)]


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)
