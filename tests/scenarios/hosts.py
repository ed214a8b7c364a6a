"""Clusters for scenarios: a launcher's machine, hosts, and an engine that starts agents there.

head (a script of the test) ── switch ── n1 n2 n3 (agents and their processes)
        └────────── spool ──────────┘    a folder that all see: the engine, and notes that no wire carries
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import psutil

from tests.lab import Lab, Machine
from tests.lab.spool import Spool, launcher_source
from tests.scenarios.launchers import Launcher

_REPOSITORY = Path(__file__).resolve().parents[2]

#: Stands at the top of every script, after which it has a `Session` of the cluster's engine when it calls `session()`.
PREAMBLE = """
    import json, os, signal, socket, sys, threading, time
    import ropewalk as rw

    OPTIONS, FOLDER = json.loads(sys.argv[1]), sys.argv[2]

    def session(**settings):
        return rw.Session(engine="spool", engine_options=OPTIONS, **settings)

    def say(*words, sep=" "):
        sys.stdout.write(sep.join(map(str, words)) + chr(10))
        sys.stdout.flush()

    def note(name, text):
        # In a folder that all machines see, whatever happens to their wires.
        fd = os.open(os.path.join(FOLDER, name), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(fd, f"{text}{chr(10)}".encode())
        os.close(fd)

    def where(number=0):
        time.sleep(0.002)
        return number, socket.gethostname(), os.getpid()
"""


class Cluster:
    """Made by `cluster_of`."""

    def __init__(self, lab: Lab, folder: Path, spool: Spool, head: Machine) -> None:
        self.lab = lab
        self.folder = folder
        self.spool = spool
        self.head = head
        self.hosts = spool.machines
        self._project = folder / "project"
        self._project.mkdir()
        self._launchers: list[subprocess.Popen[str]] = []

    def launch(
        self, source: str, *, slots: int = 2, jobs: int | None = None, python: str = sys.executable, **variables: str
    ) -> Launcher:
        """Start a script on the launcher's machine.

        Args:
            source: after `PREAMBLE`.
            slots: processes per job.
            jobs: how many jobs there can be at once.
            python: starts the agents.
            variables: changes of its environment.
        """
        script = self._project / "script.py"
        script.write_text(launcher_source(textwrap.dedent(PREAMBLE) + textwrap.dedent(source)))
        options = self.spool.options(slots=slots, jobs=jobs or len(self.hosts), python=python)
        process = self.head.popen(
            [sys.executable, str(script), json.dumps(options), str(self.folder)],
            env={"PYTHONPATH": f"{_REPOSITORY / 'src'}:{_REPOSITORY}", "XDG_STATE_HOME": "/tmp/state", **variables},
            cwd=self._project,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._launchers.append(process)
        return Launcher(process)

    def host(self, name: str) -> Machine:
        """A machine by its host name."""
        return next(machine for machine in (self.head, *self.hosts) if machine.name == name)

    def notes(self, name: str) -> list[str]:
        """The lines that processes have noted under that name."""
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else []

    def close(self) -> None:
        for process in self._launchers:
            if process.poll() is None and not self.head.is_plugged:
                process.kill()
            with contextlib.suppress(ValueError):  # the machine was plugged, and its pipes are closed
                process.communicate()


@contextlib.contextmanager
def cluster_of(
    lab: Lab, folder: Path, num_hosts: int = 3, *, prepare: Callable[[Machine, list[Machine]], object] | None = None
) -> Generator[Cluster]:
    """A head and some hosts, n1 and so on.

    Args:
        lab: in which they are made.
        folder: shared by all of them.
        num_hosts: besides the head.
        prepare: called with the head and the hosts before anything runs there.
    """
    head = lab.machine("head", shared=[folder])
    hosts = [lab.machine(f"n{number}", shared=[folder]) for number in range(1, num_hosts + 1)]
    if prepare:
        prepare(head, hosts)
    jobs = folder / "jobs"
    jobs.mkdir()
    with Spool(jobs, hosts) as spool:
        cluster = Cluster(lab, folder, spool, head)
        try:
            yield cluster
        finally:
            cluster.close()


def processes_on(machine: Machine) -> list[psutil.Process]:
    """Everything that runs in a machine, but for its process 1."""
    if machine.is_plugged:
        return []
    found: list[psutil.Process] = []
    inode = machine.inodes["pid"]
    for process in psutil.process_iter():
        with contextlib.suppress(OSError, psutil.Error):
            inside = Path(f"/proc/{process.pid}/ns/pid").stat().st_ino == inode
            if inside and process.pid != machine.pid and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def wait_until_empty(machine: Machine, timeout_s: float = 60.0) -> None:
    """Wait until nothing runs in a machine."""
    begun = time.monotonic()
    while left := processes_on(machine):
        if time.monotonic() - begun > timeout_s:
            raise AssertionError(f"on {machine.name} still run after {timeout_s} s: {list(_described(left))}")
        time.sleep(0.02)


def _described(processes: list[psutil.Process]) -> Iterator[str]:
    for process in processes:
        with contextlib.suppress(psutil.Error):
            yield f"pid {process.pid} {process.name()}: {' '.join(process.cmdline())[:100]}"
