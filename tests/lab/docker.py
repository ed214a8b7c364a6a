"""A Docker of the tests' own: containerd and dockerd in a machine of a lab, and an image that needs no registry.

    this process ── /proc/PID/root/run/docker.sock ──┐
    launcher (machine.popen) ── /run/docker.sock ──▶ dockerd ── containerd ── runc ── containers
              └──────────────── 10.79.0.1 ◀── bridges, in the machine's network ──────────┘

Everything of it lives in the machine's memory and process space, so nothing is left when the machine is gone. The
launcher of a whole program runs in the machine too, where containers reach it.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.lab.lab import Lab
from tests.lab.machine import REPOSITORY
from tests.lab.plugin import require, require_namespaces, require_packages

#: Its folders are empty: what is in it comes from the host, by `thin_volumes`.
THIN = "thin:1"
_PATIENCE_S = 30.0
_CONTAINERD = """
version = 2
root = "/run/ctd"
state = "/run/ctr"
disabled_plugins = ["io.containerd.grpc.v1.cri"]
[grpc]
  address = "/run/containerd.sock"
"""
_DOCKERD = {
    "data-root": "/run/data",
    "exec-root": "/run/exec",
    "pidfile": "/run/docker.pid",
    "hosts": ["unix:///run/docker.sock"],
    "storage-driver": "overlay2",
    "bip": "10.79.0.1/24",
    "default-address-pools": [{"base": "10.79.64.0/18", "size": 24}],
    "userland-proxy": False,
}


class DockerHost:
    """A machine with a Docker daemon; `options` are those of the engine docker to use it."""

    def __init__(self, lab: Lab, name: str = "docker") -> None:
        """Start the daemons, wait until they answer, and make the image."""
        self.machine = lab.machine(name)
        self.machine.path("/run/containerd.toml").write_text(_CONTAINERD)
        self.machine.path("/run/daemon.json").write_text(json.dumps(_DOCKERD))
        with self.machine.path("/run/containerd.log").open("wb") as log:
            self.machine.popen(["containerd", "--config", "/run/containerd.toml"], stdout=log, stderr=log)
        self.dockerd = self._start_dockerd()
        self._import_thin()

    @property
    def socket(self) -> Path:
        """The daemon's socket as seen from outside."""
        return self.machine.path("/run/docker.sock")

    @property
    def inner_options(self) -> dict[str, object]:
        """For an engine in a process of the machine."""
        return {"image": THIN, "python": sys.executable, "volumes": thin_volumes(), "pull": "never"}

    @property
    def options(self) -> dict[str, object]:
        """For an engine in the process of the tests; survives JSON."""
        return {**self.inner_options, "host": f"unix://{self.socket}"}

    def docker(self, *words: str, input: str | None = None, check: bool = True) -> str:
        """Run the command `docker` in the machine, and return what it prints."""
        environment = {"DOCKER_HOST": "unix:///run/docker.sock", "DOCKER_CONFIG": "/run/docker-config"}
        done = self.machine.run(["docker", *words], input=input, check=check, env=environment, timeout=120)
        return (done.stdout + done.stderr).strip()

    def left(self) -> list[str]:
        """The containers, networks and volumes that are there, in words."""
        return [
            *(
                f"container {line}"
                for line in self.docker("ps", "-a", "--format", "{{.Names}} {{.State}}").splitlines()
            ),
            *(f"network {line}" for line in self.docker("network", "ls", "-q", "-f", "type=custom").splitlines()),
            *(f"volume {line}" for line in self.docker("volume", "ls", "-q").splitlines()),
        ]

    def import_image(self, name: str, folder_names: Sequence[str], links: dict[str, str]) -> None:
        """Make an image with these empty folders and symbolic links."""
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as tar:
            for folder in folder_names:
                entry = tarfile.TarInfo(folder)
                entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if folder == "tmp" else 0o755
                tar.addfile(entry)
            for link, target in links.items():
                entry = tarfile.TarInfo(link)
                entry.type, entry.linkname = tarfile.SYMTYPE, target
                tar.addfile(entry)
        path = self.machine.path(f"/tmp/{name.replace(':', '-')}.tar")
        path.write_bytes(packed.getvalue())
        self.docker("import", f"/tmp/{path.name}", name)
        path.unlink()

    def _import_thin(self) -> None:
        folders = ("usr", "etc", "tmp", "proc", "sys", "dev", "run", "root", "var", "sbin")  # init is put into /sbin
        self.import_image(THIN, folders, {name: f"usr/{name}" for name in ("bin", "lib", "lib64")})

    def _start_dockerd(self) -> subprocess.Popen[Any]:
        argv = ["dockerd", "--config-file", "/run/daemon.json", "--containerd", "/run/containerd.sock"]
        with self.machine.path("/run/dockerd.log").open("ab") as log:
            process = self.machine.popen(argv, stdout=log, stderr=log)
        deadline = time.monotonic() + _PATIENCE_S
        while not self.docker("info", "--format", "{{.ServerVersion}}", check=False)[:1].isdigit():
            words = self.machine.path("/run/dockerd.log").read_text()[-2000:]
            assert process.poll() is None and time.monotonic() < deadline, f"dockerd does not answer:\n{words}"
            time.sleep(0.05)
        return process


def thin_volumes() -> list[str]:
    """What of the host is seen in a container of the thin image: its programs, this Python, and this repository."""
    seen = {"/usr", "/etc/ld.so.cache", sys.base_prefix, sys.prefix, str(REPOSITORY)}
    outermost = [path for path in sorted(seen) if not any(path.startswith(f"{other}/") for other in seen)]
    return [f"{path}:{path}:ro" for path in outermost if os.path.exists(path)]


def require_docker() -> None:
    """Skip where there is no Docker to start, or no machines can be made; with CI=true that is a failure."""
    require_packages("docker")
    require("dockerd", "containerd", "runc", "iptables", "docker", "docker-init")
    require_namespaces()


@pytest.fixture(scope="session")
def docker_host() -> Iterator[DockerHost]:
    """A Docker shared by all tests: leave it as it was."""
    require_docker()
    with Lab() as lab:
        yield DockerHost(lab)
