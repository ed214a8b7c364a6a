"""The examples run unchanged on every engine, and their answers are equal: not one line knows where it runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from tests.lab.docker import DockerHost
from tests.lab.kubernetes import Cluster
from tests.lab.machine import REPOSITORY, Machine
from tests.lab.ray import ray_cluster, require_ray
from tests.lab.slurm import SlurmCluster
from tests.lab.ssh import SshHosts

pytestmark = pytest.mark.lab

#: Starts a program where a launcher can use an engine: arguments, environment and pipes as for `Popen`.
Start = Callable[..., "subprocess.Popen[Any]"]

EVOLVE = ["examples/evolve_cartpole.py", "--workers", "6"]
EVOLVE_ARGUMENTS = ["--seed", "3", "--generations", "3", "--population", "32", "--picture", "", "--json"]
SERVE = ["examples/parameter_server.py"]


def answers(start: Start, engine: str, options: Mapping[str, object]) -> tuple[dict[str, Any], list[str]]:
    """What both examples say: the summary of the evolution, and the losses that do not depend on timing."""
    environment = {"ROPEWALK_ENGINE": engine}
    if options:
        environment |= {"ROPEWALK_ENGINE_OPTIONS": json.dumps(dict(options)), "ROPEWALK_HOSTS": "3"}
    # Three generations solve nothing, and the example says so with exit code 1.
    evolved = run(start, [*EVOLVE, "--", *EVOLVE_ARGUMENTS], environment, exit_code=1)
    summary = json.loads(evolved.splitlines()[-1])
    served = run(start, SERVE, environment)
    losses = [line.split("  ")[1:3] for line in served.splitlines() if line.startswith(("one process", "synchronous"))]
    # The others take steps from weights that are a little old, so only that they arrive is the same everywhere.
    ways = [line.split()[0] for line in served.splitlines() if "loss 0.3" in line]
    assert ways == ["one", "synchronous", "asynchronous", "sharded", "cached"], served
    return {name: summary[name] for name in ("digest", "mean_return", "workers")}, [str(loss) for loss in losses]


def run(start: Start, words: list[str], environment: Mapping[str, str], exit_code: int = 0) -> str:
    process = start(
        [sys.executable, "-m", "ropewalk", "run", *words],
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=str(REPOSITORY),
    )
    try:
        out, err = process.communicate(timeout=100)
    except BaseException:
        process.kill()
        raise
    assert process.returncode == exit_code and out, (
        f"{words} ended with {process.returncode}:\n{out[-2000:]}{err[-4000:]}"
    )
    return out


def start_here(argv: list[str], *, env: Mapping[str, str], **popen_kwargs: Any) -> subprocess.Popen[Any]:
    return subprocess.Popen(argv, env={**os.environ, **env}, **popen_kwargs)


def start_in(machine: Machine, more: Mapping[str, str] | None = None) -> Start:
    def start(argv: list[str], *, env: Mapping[str, str], **popen_kwargs: Any) -> subprocess.Popen[Any]:
        return machine.popen(argv, env={**env, **(more or {})}, **popen_kwargs)

    return start


@pytest.fixture(scope="module")
def expected() -> tuple[dict[str, Any], list[str]]:
    """The answers of this machine."""
    pytest.importorskip("numpy")
    pytest.importorskip("gymnasium")
    return answers(start_here, "local", {})


def test_slurm(expected: object, slurm: SlurmCluster) -> None:
    # Not the commands by which the process of the tests reaches the cluster, to which its PATH leads.
    path = os.environ["PATH"].replace(f"{slurm.bin}{os.pathsep}", "")
    start = start_in(slurm.controller, {**slurm.inner_environment, "PATH": path})
    assert answers(start, "slurm", slurm.options) == expected


def test_ssh(expected: object, ssh_hosts: SshHosts) -> None:
    assert answers(start_here, "ssh", ssh_hosts.options) == expected


def test_docker(expected: object, docker_host: DockerHost) -> None:
    start = start_in(docker_host.machine, {"DOCKER_HOST": "unix:///run/docker.sock"})
    assert answers(start, "docker", docker_host.inner_options) == expected


def test_kubernetes(expected: object, kubernetes: Cluster) -> None:
    start = start_in(kubernetes.machine("launcher"))
    assert answers(start, "kubernetes", {**kubernetes.options(), "kubeconfig": "/tmp/kubeconfig"}) == expected


def test_ray(expected: object) -> None:
    require_ray()
    with ray_cluster(3) as cluster:
        assert answers(cluster.popen, "ray", {"address": cluster.address}) == expected
