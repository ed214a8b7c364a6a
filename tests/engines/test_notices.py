"""A host whose end is announced hands its work over first, on each engine by its own announcement.

What it means for tasks, services and trials is in `tests/scenarios`; here the announcement has to reach the agent.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.engines.test_same_answers import Start, start_here, start_in
from tests.lab.docker import DockerHost
from tests.lab.kubernetes import NAMESPACE, Cluster
from tests.lab.slurm import SlurmCluster
from tests.lab.ssh import SshHosts
from tests.patience import PATIENCE_S
from tests.scenarios.hosts import processes_on
from tests.scenarios.launchers import Launcher

pytestmark = pytest.mark.lab

#: Tasks without an end, until one host was announced and ten times as many tasks as there are workers came after that.
SCRIPT = """
import json, sys, time
import ropewalk as rw

def work(number):
    time.sleep(0.05)
    return number

def is_told(pool):
    return any("is being taken away" in event for event in pool.status().events)

def numbers(pool):
    left = 40
    for number in range(1_000_000):
        left -= is_told(pool)
        if not left:
            return
        yield number

if __name__ == "__main__":
    engine, options = sys.argv[1], json.loads(sys.argv[2])
    with rw.Session(engine=engine, hosts=2, engine_options=options) as session, rw.Pool(4, session=session) as pool:
        pool.wait_until_ready()
        results = pool.imap_unordered(work, numbers(pool), chunksize=1)
        came = [next(results) for _ in range(8)]
        host = session.hosts()[0]
        print(host.job, host.host, flush=True)
        came += results
        status = pool.status()
        print(sorted(came) == list(range(len(came))), status.num_deaths, status.failed, status.retried, flush=True)
        print(*(event for event in status.events if "taken away" in event), flush=True)
"""


def check(start: Start, engine: str, options: Mapping[str, object], announce: Callable[[str, str], object]) -> None:
    """Run the script, and announce the end of the host of one job; `announce` gets the job's id and the host's name."""
    process = start(
        [sys.executable, "-c", SCRIPT, engine, json.dumps(dict(options))],
        env={},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    script = Launcher(process)
    try:
        job, host = script.line().split()
        announce(job, host)
        assert script.line() == "True 0 0 0", "each task ended once, and none died, failed or ran twice"
        assert f"{host} is being taken away (the engine sent SIGTERM)" in script.line()
        code, _, errors = script.end(PATIENCE_S)
        assert code == 0, errors
    finally:
        process.kill()
        process.communicate()


def test_slurm(slurm: SlurmCluster) -> None:
    path = os.environ["PATH"].replace(f"{slurm.bin}{os.pathsep}", "")
    start = start_in(slurm.controller, {**slurm.inner_environment, "PATH": path})
    check(start, "slurm", slurm.options, lambda job, _: slurm.run("scancel", "--batch", "--signal=TERM", job))


def test_kubernetes(kubernetes: Cluster) -> None:
    start = start_in(kubernetes.machine("launcher"))
    options = {**kubernetes.options(), "kubeconfig": "/tmp/kubeconfig"}
    # As `kubectl delete pod` and the drain of a node do it: with the grace that the pod asks for.
    check(start, "kubernetes", options, lambda job, _: kubernetes.store.delete_pod(NAMESPACE, job, None))


def test_docker(docker_host: DockerHost) -> None:
    start = start_in(docker_host.machine, {"DOCKER_HOST": "unix:///run/docker.sock"})
    check(start, "docker", docker_host.inner_options, lambda job, _: docker_host.docker("stop", "--time=60", job))


def test_ssh(ssh_hosts: SshHosts) -> None:
    def announce(_: str, host: str) -> None:
        # To the keeper, which passes it on: a host that shuts down signals what runs in sessions of its sshd.
        (machine,) = (machine for machine in ssh_hosts.hosts if machine.name == host)
        (agent,) = (each for each in processes_on(machine) if each.name() == "rw-agent" and is_of_keeper(each.ppid()))
        os.kill(agent.ppid(), 15)

    check(start_here, "ssh", ssh_hosts.options, announce)


def is_of_keeper(pid: int) -> bool:
    return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").strip() != "rw-agent"
