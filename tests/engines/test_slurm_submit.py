"""`ropewalk submit` on a real Slurm: the launcher is a job that submits jobs, and may save when it is stopped."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable

from tests.lab.slurm import CPUS_PER_NODE, SlurmCluster

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


def command_in(slurm: SlurmCluster, name: str, script: str) -> Callable[..., subprocess.CompletedProcess[str]]:
    """The command, on the login node, in a folder that has the script and the settings of the cluster."""
    folder = slurm.folder / name
    folder.mkdir()
    (folder / "train.py").write_text(script)
    (folder / "ropewalk.toml").write_text(f'[engines.slurm]\nfolder = "{slurm.options["folder"]}"\n')
    # Not the commands by which the process of the tests reaches the cluster.
    path = os.environ["PATH"].replace(f"{slurm.bin}{os.pathsep}", "")
    environment = {**slurm.inner_environment, "PATH": path, "XDG_STATE_HOME": str(folder / "state")}

    def ropewalk(*words: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "ropewalk", *words]
        return slurm.controller.run(argv, env=environment, cwd=str(folder), check=False, timeout=200)

    return ropewalk


def test_a_submitted_script_gets_its_agents_and_saves_when_it_is_stopped(slurm: SlurmCluster) -> None:
    ropewalk = command_in(slurm, "submitted", SCRIPT)
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


KILLED = """
import os, pathlib, signal, subprocess
import ropewalk as rw
def square(x):
    return x * x
if __name__ == "__main__":
    killed = pathlib.Path("killed")
    if was_killed := killed.exists():
        command = ["squeue", "--noheader", "--states=PENDING,RUNNING", "--format=%A"]
        jobs = set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())
        print("jobs left", sorted(jobs - {os.environ["SLURM_JOB_ID"]}), flush=True)
    total = 0
    with rw.Pool() as pool:
        for number, value in enumerate(pool.imap(square, range(20), chunksize=1)):
            total += value
            if number == 5 and not was_killed:
                killed.touch()
                os.kill(os.getpid(), signal.SIGKILL)
    print("result", total)
"""


def test_a_launcher_that_is_killed_starts_again_in_its_job_when_its_agents_jobs_are_cancelled(
    slurm: SlurmCluster,
) -> None:
    ropewalk = command_in(slurm, "killed", KILLED)
    submitted = ropewalk("submit", "train.py", "--engine", "slurm", "--workers", "4", "--launcher-restarts", "2")
    assert submitted.returncode == 0, submitted.stderr
    attached = ropewalk("attach", submitted.stdout.strip())
    assert attached.returncode == 0, attached.stdout + attached.stderr
    assert "the launcher was ended by SIGKILL, and starts again (1 of 2)" in attached.stdout
    assert "jobs left []" in attached.stdout and f"result {sum(x * x for x in range(20))}" in attached.stdout
    assert not list((slurm.folder / "jobs").glob("ropewalk-*")), "files of a run that is over"


RANK = """
import os, socket
from beside import WORD
variables = [os.environ[name] for name in ("RANK", "GROUP_RANK", "GROUP_WORLD_SIZE", "LOCAL_RANK", "WORLD_SIZE")]
address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
if variables[0] == "0":
    with socket.create_server(address) as server:
        server.accept()[0].close()
else:
    while True:
        try:
            socket.create_connection(address, 5).close()
            break
        except ConnectionRefusedError:
            pass
print(WORD, *variables, __name__, flush=True)
"""


def test_a_script_for_torchrun_runs_in_ranks_on_several_nodes(slurm: SlurmCluster) -> None:
    # It is found in the copy of the project that each node was sent, with the modules beside it.
    folder = slurm.folder / "ranks"
    (folder / "scripts").mkdir(parents=True)
    (folder / "scripts" / "train.py").write_text(RANK)
    (folder / "scripts" / "beside.py").write_text("WORD = 'met'\n")
    (folder / "ropewalk.toml").write_text(f'[engines.slurm]\nfolder = "{slurm.options["folder"]}"\n')
    path = os.environ["PATH"].replace(f"{slurm.bin}{os.pathsep}", "")
    environment = {**slurm.inner_environment, "PATH": path, "XDG_STATE_HOME": str(folder / "state")}
    words = ["run", "--ranks", "2", "--engine", "slurm", "--cpus", str(CPUS_PER_NODE), "scripts/train.py"]
    done = slurm.controller.run(
        [sys.executable, "-m", "ropewalk", *words], env=environment, cwd=str(folder), check=False, timeout=200
    )
    assert done.returncode == 0, done.stderr
    said = sorted(line.partition("] ")[2] for line in done.stdout.splitlines() if "met" in line)
    assert said == ["met 0 0 2 0 2 __main__", "met 1 1 2 0 2 __main__"], done.stdout + done.stderr
