"""A real Slurm cluster in a lab: a controller and three nodes, each a machine with its own address.

    this process ── sbatch, squeue, ... ── nsenter ──▶ ctl: slurmctld, munged ── switch ── n1, n2, n3: slurmd

The tests run outside of the lab, so the commands of Slurm in `cluster.bin` enter the network of `ctl` first. A launcher
that runs in a machine of the lab needs none of that, only `SLURM_CONF`. Nothing in /etc is touched.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import stat
import subprocess
import time
from collections.abc import Collection, Generator, Iterator, Sequence
from pathlib import Path

import pytest

from tests.lab.lab import Lab
from tests.lab.machine import Machine
from tests.lab.plugin import require, require_namespaces
from tests.patience import PATIENCE_S

COMMANDS = ("sbatch", "squeue", "scancel", "sinfo", "scontrol", "sacct", "srun")
#: Control groups are the host's own; they tell clusters apart by the names of their nodes.
CGROUPS = Path("/sys/fs/cgroup")
CPUS_PER_NODE = 16
_numbers = itertools.count(1)
#: Between SIGTERM and SIGKILL; the default is 30 s.
KILL_WAIT_S = 3

_CONF = """
ClusterName=lab
SlurmctldHost=ctl({ip})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/run/munge.sock,cred_expire=5
SlurmctldPort=6817
SlurmdPort=6818
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/run/slurmctld.pid
SlurmdPidFile={folder}/run/%n.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/%n.log
ProctrackType=proctrack/cgroup
TaskPlugin=task/cgroup
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU=1000
SchedulerParameters=sched_min_interval=1,bf_interval=1
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
SlurmdParameters=config_overrides
ReturnToService=2
SlurmdTimeout=5
MessageTimeout=3
TCPTimeout=2
KillWait={kill_wait}
EnforcePartLimits=ALL
MinJobAge=300
GresTypes=gpu
"""
_PARTITIONS = """
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
PartitionName=short Nodes={first} MaxTime=10 State=UP
PartitionName=members Nodes={first} AllowAccounts=wheel State=UP
"""
_CGROUP_CONF = """
CgroupPlugin=cgroup/v1
CgroupMountpoint=/sys/fs/cgroup
CgroupAutomount=no
ConstrainRAMSpace=yes
"""


class SlurmCluster:
    """A controller and nodes in a lab; `options` and `environment` are what an engine in this process needs."""

    def __init__(self, lab: Lab, folder: Path, num_nodes: int = 3, gpus: int = 0) -> None:
        """Start the daemons and wait until every node is up.

        Args:
            lab: gets the machines `ctl`, `n1`, `n2`, ...; a launcher may run in `ctl`, or in one more.
            folder: for state, logs and the files of jobs; seen in all machines, so also below /tmp.
            num_nodes: how many nodes, with `CPUS_PER_NODE` CPUs each, whatever this machine has.
            gpus: how many the first node has: device files, which are all that Slurm looks at.
        """
        self.lab = lab
        self.folder = folder
        self._gpus = [folder / f"gpu{number}" for number in range(gpus)]
        self.bin = folder / "bin"
        for name in ("state", "spool", "log", "run", "bin"):
            (folder / name).mkdir()
        self.controller = lab.machine("ctl", shared=[folder])
        self.nodes: dict[str, Machine] = {}
        """By the names that Slurm gives them."""
        cluster = next(_numbers)
        for number in range(1, num_nodes + 1):
            self.nodes[f"n{os.getpid()}-{cluster}-{number}"] = lab.machine(f"n{number}", shared=[folder])
        self._write_files()
        self._start_munged()
        self.start_controller()
        for name, machine in self.nodes.items():
            (folder / "spool" / name).mkdir()
            self._start(machine, name, ["slurmd", "-D", "-N", name])
        self.wait_for_nodes(num_nodes)

    @property
    def options(self) -> dict[str, object]:
        """For an engine, wherever it is; survives JSON."""
        return {"folder": str(self.folder / "jobs")}

    @property
    def inner_environment(self) -> dict[str, str]:
        """For a launcher in a machine of the lab."""
        return {"SLURM_CONF": str(self.folder / "slurm.conf")}

    @property
    def environment(self) -> dict[str, str]:
        """For a launcher in the process of the tests."""
        return {**self.inner_environment, "PATH": f"{self.bin}{os.pathsep}{os.environ['PATH']}"}

    def run(self, *argv: str, check: bool = True) -> str:
        """Run a command of Slurm and return what it printed."""
        # The PATH of a test that uses the cluster leads to the commands for outside.
        real = f"/usr/bin/{argv[0]}"
        return self.controller.run([real, *argv[1:]], env=self.inner_environment, check=check).stdout

    def start_controller(self) -> None:
        """Start slurmctld; it reads what an earlier one has saved."""
        self._daemon = self._start(self.controller, "ctl", ["slurmctld", "-D"])

    def stop_controller(self) -> None:
        """End slurmctld politely, so that it saves its state. Jobs go on."""
        self._daemon.terminate()
        self._daemon.wait(120)

    def wait_for_nodes(self, num_nodes: int, timeout_s: float = PATIENCE_S) -> None:
        """Wait until `num_nodes` nodes can take jobs."""
        deadline = time.monotonic() + timeout_s
        argv = ["sinfo", "--noheader", "--Node", "--partition=main", "--states=idle,mixed", "--format=%N"]
        while len((said := self.run(*argv, check=False)).split()) != num_nodes:
            assert time.monotonic() < deadline, f"only these can take jobs: {said}{self._last_words()}"
            time.sleep(0.05)

    def _write_files(self) -> None:
        key = self.folder / "key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        lines = [
            f"NodeName={name} NodeAddr={machine.ip} CPUs={CPUS_PER_NODE} RealMemory=16000"
            for name, machine in self.nodes.items()
        ]
        gpus = [f"NodeName={next(iter(self.nodes))} Name=gpu File={gpu}" for gpu in self._gpus]
        if gpus:
            lines[0] += f" Gres=gpu:{len(gpus)}"
        for gpu in self._gpus:
            os.mknod(gpu, stat.S_IFCHR | 0o600, os.makedev(1, 3))
        (self.folder / "gres.conf").write_text("\n".join(gpus))
        conf = _CONF.format(ip=self.controller.ip, folder=self.folder, kill_wait=KILL_WAIT_S) + "\n".join(lines)
        (self.folder / "slurm.conf").write_text(conf + _PARTITIONS.format(first=next(iter(self.nodes))))
        (self.folder / "cgroup.conf").write_text(_CGROUP_CONF)
        for command in COMMANDS:
            wrapper = self.bin / command
            enter = f"nsenter --net=/proc/{self.controller.pid}/ns/net"
            wrapper.write_text(f'#!/bin/sh\nexec {enter} /usr/bin/{command} "$@"\n')
            wrapper.chmod(0o755)

    def _start_munged(self) -> None:
        run = self.folder / "run"
        argv = [f"--key-file={self.folder}/key", f"--socket={run}/munge.sock", f"--pid-file={run}/munged.pid"]
        argv += [f"--log-file={self.folder}/log/munged.log", f"--seed-file={run}/seed", "--num-threads=2"]
        # One for all machines: unix sockets do not care about networks. It refuses folders that others may change.
        self._start(self.controller, "munged", ["munged", "--foreground", "--force", *argv])
        deadline = time.monotonic() + 120
        while not (run / "munge.sock").exists():
            assert time.monotonic() < deadline, f"munged does not start: {self._last_words()}"
            time.sleep(0.01)

    def _start(self, machine: Machine, name: str, argv: Sequence[str]) -> subprocess.Popen[bytes]:
        with open(self.folder / "log" / f"{name}.out", "ab") as output:
            return machine.popen(
                argv, env=self.inner_environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )

    def _last_words(self) -> str:
        logs = sorted((self.folder / "log").iterdir())
        return "\n".join(f"--- {log.name}\n{log.read_text(errors='replace')[-800:]}" for log in logs)


def require_slurm() -> None:
    """Skip where there is no Slurm, or no machines can be made; with CI=true that is a failure."""
    require("slurmctld", "slurmd", "sbatch", "munged", "nsenter")
    require_namespaces()


def remove_control_groups(nodes: Collection[str]) -> None:
    """Remove what slurmd leaves when it is killed: the groups of these nodes, and of test runs that were killed."""
    for group in CGROUPS.glob("*/slurm_n*-*-*"):
        node = group.name.removeprefix("slurm_")
        if node in nodes or not Path(f"/proc/{node[1:].partition('-')[0]}").exists():
            for inner in [*sorted(group.rglob("*/"), reverse=True), group]:
                with contextlib.suppress(OSError):
                    inner.rmdir()


@contextlib.contextmanager
def new_cluster(folder: Path, num_nodes: int = 3, gpus: int = 0) -> Generator[SlurmCluster]:
    """A cluster that is gone in the end."""
    require_slurm()
    with Lab() as lab:
        nodes: list[str] = []
        try:
            cluster = SlurmCluster(lab, folder, num_nodes, gpus)
            nodes += cluster.nodes
            yield cluster
        finally:
            lab.close()
            remove_control_groups(nodes)


@pytest.fixture(scope="session")
def slurm_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    """Three nodes, shared by all tests: leave them whole."""
    with new_cluster(tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster


@pytest.fixture
def slurm(slurm_cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> SlurmCluster:
    """The shared cluster, with its commands on the PATH of this process."""
    for name, value in slurm_cluster.environment.items():
        monkeypatch.setenv(name, value)
    return slurm_cluster
