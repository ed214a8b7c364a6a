"""`ropewalk submit` on a real Slurm: the launcher is a job that submits jobs, and may save when it is stopped."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time

from tests.lab.slurm import SlurmCluster

SCRIPT = """
import os, sys, time
import ropewalk as rw
def job(x):
    return os.environ["SLURM_JOB_ID"]
if __name__ == "__main__":
    try:
        with rw.Pool() as pool:
            jobs = set(pool.map(job, range(20))) | {os.environ["SLURM_JOB_ID"]}
            print("jobs", len(jobs) > 1, flush=True)
            time.sleep(60)
    except KeyboardInterrupt:
        print("saved", flush=True)
        sys.exit(5)
"""


def test_a_submitted_script_gets_its_agents_and_saves_when_it_is_stopped(slurm: SlurmCluster) -> None:
    folder = slurm.folder / "submitted"
    folder.mkdir()
    (folder / "train.py").write_text(SCRIPT)
    (folder / "ropewalk.toml").write_text(f'[engines.slurm]\nfolder = "{slurm.options["folder"]}"\n')
    # Not the commands by which the process of the tests reaches the cluster.
    path = os.environ["PATH"].replace(f"{slurm.bin}{os.pathsep}", "")
    environment = {**slurm.inner_environment, "PATH": path, "XDG_STATE_HOME": str(folder / "state")}

    def ropewalk(*words: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "ropewalk", *words]
        return slurm.controller.run(argv, env=environment, cwd=str(folder), check=False, timeout=200)

    submitted = ropewalk("submit", "train.py", "--engine", "slurm", "--workers", "4")
    run = submitted.stdout.strip()
    assert submitted.returncode == 0, submitted.stderr
    deadline = time.monotonic() + 120
    while "jobs" not in (said := ropewalk("logs", run).stdout):
        assert time.monotonic() < deadline, said
        time.sleep(0.5)
    assert "jobs True" in said
    stopped = ropewalk("stop", run)
    assert f"{run} ended with exit code 5" in stopped.stdout, stopped.stdout + stopped.stderr
    for _ in range(2):
        assert re.search("^saved$", ropewalk("logs", run).stdout, re.MULTILINE)
    assert ropewalk("attach", run).returncode == 5
    assert not list((slurm.folder / "jobs").glob("ropewalk-*")), "files of a run that is over"
