"""Machines with an sshd each, and how to reach them from the process of the tests.

    this process ── ssh ── (descriptor from) ── launcher's machine ── switch ── n1, n2, n3: sshd

The tests run outside of the lab, where no address leads into it. So ssh gets its connection from a proxy command: a
program that enters the launcher's machine, connects there, hands the socket to ssh, and is gone.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.lab import Lab
from tests.lab.machine import Machine
from tests.lab.plugin import require, require_namespaces

_DIAL = Path(__file__).with_name("ssh_dial.py")
#: The default key exchange resists quantum computers and takes 0.1 s of CPU more; these tests connect often.
_SSHD = """
Port 22
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/client_key.pub
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin yes
StrictModes no
UsePAM no
UseDNS no
PidFile none
SetEnv XDG_STATE_HOME={folder}/state
MaxStartups 100
KexAlgorithms curve25519-sha256
"""


class SshHosts:
    """A launcher's machine and hosts with sshd in a lab; `options` are those of the ssh engine to reach them."""

    def __init__(self, lab: Lab, folder: Path, num_hosts: int = 3) -> None:
        """Start the machines.

        Args:
            lab: gets the machines `launcher`, `n1`, `n2`, ...
            folder: for keys and configurations; seen in the machines, so also below /tmp.
            num_hosts: how many besides the launcher's.
        """
        self.lab = lab
        self.folder = folder
        for name in ("host_key", "client_key"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
        (folder / "known_hosts").write_text(f"* {(folder / 'host_key.pub').read_text()}")
        self.launcher = lab.machine("launcher", shared=[folder])
        self.hosts: list[Machine] = []
        for _ in range(num_hosts):
            self.add()
        #: For an engine in a process of the launcher's machine.
        self.inner_config = self._write_config("inner_config", "")
        # Paths of a checkout may hold spaces, which end a word for the shell, and per cent signs, which ssh replaces.
        words = [sys.executable, "-I", "-S", str(_DIAL)]
        connect = shlex.join(words).replace("%", "%%")
        dial = f"nsenter --net=/proc/{self.launcher.pid}/ns/net {connect} %h %p"
        #: For an engine in the process of the tests.
        self.config = self._write_config("config", f"ProxyCommand {dial}\nProxyUseFdpass yes\n")

    def add(self, **settings: str) -> Machine:
        """One more host, whose sshd has further settings."""
        machine = self.lab.machine(f"n{len(self.hosts) + 1}", shared=[self.folder])
        self.hosts.append(machine)
        machine.path("/run/sshd").mkdir(mode=0o755)
        config = self.folder / f"sshd_config_{machine.name}"
        # Of two values of a setting sshd takes the first, and of `MaxStartups` the last.
        usual = [line for line in _SSHD.splitlines() if line.partition(" ")[0] not in settings]
        lines = [*(f"{name} {value}" for name, value in settings.items()), *usual]
        config.write_text("\n".join(lines).format(folder=self.folder) + "\n")
        machine.popen(["/usr/sbin/sshd", "-D", "-f", config, "-E", self.folder / f"{machine.name}.log"])
        _wait_for_port(machine, 22)
        return machine

    @property
    def options(self) -> dict[str, object]:
        """For an engine in the process of the tests; survives JSON."""
        return {"hosts": [machine.ip for machine in self.hosts], "config_file": str(self.config)}

    @property
    def inner_options(self) -> dict[str, object]:
        """For an engine in a process of the launcher's machine."""
        return {**self.options, "config_file": str(self.inner_config)}

    def _write_config(self, name: str, more: str) -> Path:
        path = self.folder / name
        path.write_text(
            f"IdentityFile {self.folder}/client_key\nIdentitiesOnly yes\n"
            f"UserKnownHostsFile {self.folder}/known_hosts\nStrictHostKeyChecking yes\n{more}"
        )
        return path


def _wait_for_port(machine: Machine, port: int) -> None:
    deadline = time.monotonic() + 120
    while True:
        try:
            machine.connect("127.0.0.1", port).close()
            return
        except OSError:
            assert time.monotonic() < deadline, f"nobody listens at port {port} of {machine}"
            time.sleep(0.01)


def require_ssh() -> None:
    """Skip where there is no OpenSSH, or no machines can be made; with CI=true that is a failure."""
    require("ssh", "sshd", "ssh-keygen", "nsenter")
    require_namespaces()


@pytest.fixture(scope="module")
def ssh_hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshHosts]:
    """Three hosts n1, n2, n3, shared by the tests of a module: leave them whole."""
    require_ssh()
    with Lab() as lab:
        yield SshHosts(lab, tmp_path_factory.mktemp("ssh"))


@pytest.fixture
def own_ssh_hosts(lab: Lab, tmp_path: Path) -> SshHosts:
    """Three hosts of one test, which may cut and plug them."""
    require_ssh()
    return SshHosts(lab, tmp_path)
