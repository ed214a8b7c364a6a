"""What a rank hands to the job that it runs."""

from __future__ import annotations

import contextlib
import errno
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
    job = {"command": [sys.executable, "-c", code], "environment": {"ROPEWALK_RUN_ID": "f00d"}}
    (tmp_path / "job.json").write_text(json.dumps(job))
    (tmp_path / "0.stdin").write_bytes(b"")
    environment = {**os.environ, "PMI_RANK": "0", "PMI_SIZE": "1", "SLURM_JWT": "secret", "SLURM_JOB_ID": "7"}
    rank = [sys.executable, "-P", "-m", "ropewalk.engines.mpi_rank", str(tmp_path)]
    subprocess.run(rank, env=environment, check=True)
    assert (tmp_path / "0.log").read_text() == "['ROPEWALK_RUN_ID', 'SLURM_JOB_ID']\n"


def test_a_job_ends_with_a_rank_that_is_killed(tmp_path: Path) -> None:
    """The proxy of an mpiexec that is gone kills its ranks, and their jobs, in sessions of their own, ran on."""
    code = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    (tmp_path / "job.json").write_text(json.dumps({"command": [sys.executable, "-c", code], "environment": {}}))
    argv = [sys.executable, "-P", "-m", "ropewalk.engines.mpi_rank", str(tmp_path)]
    with subprocess.Popen(argv, env={**os.environ, "PMI_RANK": "0"}) as rank:
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


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)
