"""The smallest engine with other hosts: jobs are files in a shared folder, and a thread of the tests starts them.

    launcher (in a machine): SpoolEngine ──ID.job──▶ folder ◀── Spool (in the tests) ──▶ processes in machines
                                         ◀─ID.log, ID.end──┘

It is for tests of what stands above engines: many hosts within a second, and no cluster manager to wait for.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ropewalk.engines.engine import Engine, EngineFinding, JobSpec, JobState, JobStatus, Reach
from ropewalk.engines.options import read_options
from ropewalk.engines.resources import Resources
from tests.lab.machine import Machine

ENTRY = "tests.lab.spool:SpoolEngine"


@dataclass(frozen=True)
class SpoolOptions:
    """Where the jobs lie, and what the hosts are like."""

    folder: str = ""
    hosts: list[str] | None = None
    slots: int | None = None
    """Processes per job."""
    jobs: int | None = None
    """How many jobs there can be at once."""
    python: str = "python"
    """Starts the agents."""


class SpoolEngine(Engine):
    """Writes jobs into a folder."""

    name = "spool"
    reach = Reach.NETWORK

    def __init__(self, options: Mapping[str, object] | None = None) -> None:
        self._options = read_options(self.name, SpoolOptions, options or {})
        self._folder = Path(self._options.folder)
        self.python = self._options.python
        self._numbers = itertools.count(1)

    def submit_one(self, spec: JobSpec, run_id: str, request_id: str, number: int) -> str:
        id = f"{run_id}-{os.getpid()}-{next(self._numbers)}"
        job = {
            "command": list(spec.command),
            "environment": {**spec.environment, "ROPEWALK_RUN_ID": run_id},
            "stdin": base64.b64encode(spec.stdin).decode(),
        }
        writing = self._folder / f"{id}.writing"
        with open(os.open(writing, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            json.dump(job, file)
        writing.rename(self._folder / f"{id}.job")
        return id

    def poll(self, ids: Sequence[str]) -> dict[str, JobStatus]:
        return {id: self._status(id) for id in ids}

    def _status(self, id: str) -> JobStatus:
        with contextlib.suppress(FileNotFoundError):
            code = json.loads((self._folder / f"{id}.end").read_text())
            return JobStatus(JobState.ENDED, code)
        if (self._folder / f"{id}.log").exists():
            return JobStatus(JobState.RUNNING)
        if (self._folder / f"{id}.job").exists():
            return JobStatus(JobState.PENDING, reason="no machine is free")
        return JobStatus(JobState.LOST)

    def cancel(self, ids: Sequence[str]) -> None:
        for id in ids:
            (self._folder / f"{id}.cancel").touch()

    def find(self, run_id: str) -> list[str]:
        ids = sorted(path.stem for path in self._folder.glob(f"{run_id}-*.job"))
        ids += sorted(path.stem for path in self._folder.glob(f"{run_id}-*.log"))
        return [id for id in dict.fromkeys(ids) if self._status(id).state in (JobState.PENDING, JobState.RUNNING)]

    def logs(self, id: str) -> str:
        with contextlib.suppress(FileNotFoundError):
            return (self._folder / f"{id}.log").read_text(errors="replace")
        return ""

    def render(self, spec: JobSpec) -> str:
        return " ".join(spec.command)

    def check(self) -> list[EngineFinding]:
        return [EngineFinding("folder", self._folder.is_dir(), str(self._folder))]

    def per_job(self, process: Resources) -> int | None:
        return self._options.slots

    def most_jobs(self) -> int | None:
        return self._options.jobs

    def hosts(self) -> list[str]:
        return self._options.hosts or []


class Spool:
    """Starts the jobs of a folder in machines, one in each at a time if there are enough.

    Args:
        folder: shared with the launcher's machine.
        machines: the hosts.
    """

    def __init__(self, folder: Path, machines: Sequence[Machine]) -> None:
        self.folder = folder
        self.machines = list(machines)
        self.started: list[tuple[str, Machine, subprocess.Popen[Any]]] = []
        #: Machines that cannot be told to end a job, as it is with those that are cut off from a real engine.
        self.deaf: set[Machine] = set()
        self._over = threading.Event()
        self._running: dict[str, tuple[Machine, subprocess.Popen[Any]]] = {}
        self._thread = threading.Thread(target=self._serve, name="spool", daemon=True)
        self._thread.start()

    def options(self, **more: object) -> dict[str, object]:
        """For the engine."""
        return {"folder": str(self.folder), "hosts": [machine.ip for machine in self.machines], **more}

    def close(self) -> None:
        """Start nothing more, and end what runs."""
        self._over.set()
        self._thread.join(120)
        for machine, process in self._running.values():
            if not machine.is_plugged:
                process.kill()

    def __enter__(self) -> Spool:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _serve(self) -> None:
        while not self._over.is_set():
            for path in sorted(self.folder.glob("*.job")):
                machine = self._freest()
                if machine:
                    self._start(path, machine)
            for id, (machine, process) in list(self._running.items()):
                if (self.folder / f"{id}.cancel").exists() and process.poll() is None and self._hears(machine):
                    process.kill()
                if machine.is_plugged or process.poll() is not None:
                    (self.folder / f"{id}.ending").write_text(json.dumps(process.returncode))
                    (self.folder / f"{id}.ending").rename(self.folder / f"{id}.end")
                    del self._running[id]
            time.sleep(0.02)

    def _hears(self, machine: Machine) -> bool:
        return not machine.is_plugged and machine not in self.deaf

    def _freest(self) -> Machine | None:
        alive = [machine for machine in self.machines if self._hears(machine)]
        load = {id(machine): 0 for machine in alive}
        for machine, _ in self._running.values():
            if id(machine) in load:
                load[id(machine)] += 1
        return min(alive, key=lambda machine: load[id(machine)], default=None)

    def _start(self, path: Path, machine: Machine) -> None:
        job = json.loads(path.read_text())
        path.unlink()
        id = path.stem
        with open(self.folder / f"{id}.log", "wb") as log:
            process = machine.popen(
                job["command"],
                env=job["environment"],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        assert process.stdin
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(base64.b64decode(job["stdin"]))
            process.stdin.close()
        self._running[id] = machine, process
        self.started.append((id, machine, process))


def launcher_source(body: str) -> str:
    """The source of a launcher that knows this engine."""
    return f"from ropewalk.engines import ENGINES\nENGINES['spool'] = {ENTRY!r}\n{body}"
