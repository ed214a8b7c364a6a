"""A Ray cluster in lab machines: a head and nodes, each with a Ray of its own, in token mode."""

from __future__ import annotations

import contextlib
import itertools
import re
import secrets
import subprocess
import sys
import time
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

import psutil

from tests.lab.lab import Lab
from tests.lab.machine import Machine
from tests.lab.plugin import require_namespaces, require_packages

PORT = 6379
_START_S = 60.0
#: Ray starts and ends processes as it sees fit; those of our jobs are not among these.
_RAYS_OWN = re.compile(r"^ray::(?!JobActor)|/site-packages/ray/|/bin/ray ")


def require_ray() -> None:
    """Skip this test where Ray is missing; with CI=true that is a failure."""
    require_namespaces()
    require_packages("ray")


class RayCluster:
    """Machines with Ray. A launcher runs in the head's machine, as Ray's client needs a Ray on its own machine."""

    def __init__(self, lab: Lab, num_nodes: int) -> None:
        self.token = secrets.token_hex()
        self.lab = lab
        self.machines: list[Machine] = []
        self._numbers = itertools.count(1)
        for _ in range(num_nodes):
            self.add_node()

    @property
    def head(self) -> Machine:
        return self.machines[0]

    @property
    def address(self) -> str:
        return f"{self.head.ip}:{PORT}"

    @property
    def environment(self) -> dict[str, str]:
        """What a process that uses the cluster has to have."""
        return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": self.token, "RAY_USAGE_STATS_ENABLED": "0"}

    def add_node(self, resources: Mapping[str, float] | None = None) -> Machine:
        """Start one more node, the head first. It joins within some seconds; see `wait`."""
        machine = self.lab.machine(f"n{next(self._numbers)}")
        self.machines.append(machine)
        role = [f"--address={self.address}"]
        if machine is self.head:
            role = ["--head", f"--port={PORT}", "--include-dashboard=false", "--temp-dir=/tmp/r"]
        if resources:
            words = ",".join(f'"{resource}":{amount}' for resource, amount in resources.items())
            role.append(f"--resources={{{words}}}")
        with machine.path("/tmp/ray-start.log").open("wb") as log:
            machine.popen(
                [Path(sys.executable).with_name("ray"), "start", *role, f"--node-ip-address={machine.ip}", "--block",
                 "--num-cpus=4", "--object-store-memory=80000000", "--disable-usage-stats"],
                env=self.environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        if machine is self.head:
            self._wait_for_head()
        return machine

    def _wait_for_head(self) -> None:
        deadline = time.monotonic() + _START_S
        while True:
            with contextlib.suppress(OSError):
                self.head.connect(self.head.ip, PORT).close()
                return
            assert time.monotonic() < deadline, self.head.path("/tmp/ray-start.log").read_text()
            time.sleep(0.05)

    def popen(self, argv: Any, **popen_arguments: Any) -> subprocess.Popen[Any]:
        """Start a launcher, or a part of one, where it can use the cluster."""
        environment = {**self.environment, **popen_arguments.pop("env", {})}
        return self.head.popen(argv, env=environment, **popen_arguments)

    def is_rays_own(self, pid: int) -> bool:
        """Whether a process belongs to the cluster itself."""
        try:
            process = psutil.Process(pid)
            return bool(_RAYS_OWN.search(" ".join(process.cmdline())))
        except psutil.Error:
            return True


@contextlib.contextmanager
def ray_cluster(num_nodes: int) -> Generator[RayCluster]:
    """A cluster that is gone afterwards, with all that it started."""
    require_ray()
    with Lab() as lab:
        yield RayCluster(lab, num_nodes)
