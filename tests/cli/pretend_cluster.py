"""A cluster on this machine: its queue is a folder, so that its jobs outlive whoever submitted them, as real ones do.

Another package adds it as an engine (`installed`); commands in processes of their own then know it as "pretend".
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from ropewalk.engines.engine import Engine, EngineFinding, JobSpec, JobState, JobStatus, Reach
from ropewalk.engines.options import read_options
from ropewalk.engines.resources import Resources
from ropewalk.errors import EngineError

REPOSITORY = Path(__file__).resolve().parents[2]


def installed(folder: Path) -> dict[str, str]:
    """Install the package that has the engine into a folder; returns the variables that make commands see it."""
    info = folder / "site/pretend-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: pretend\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[ropewalk.engines]\npretend = tests.cli.pretend_cluster:PretendCluster\n")
    (folder / "queue").mkdir()
    return {
        "PYTHONPATH": os.pathsep.join([str(REPOSITORY / "src"), str(REPOSITORY), str(info.parent)]),
        "PRETEND_QUEUE": str(folder / "queue"),
        "XDG_STATE_HOME": str(folder / "state"),
    }


def runs(pid: int) -> bool:
    """Whether a job's process is alive; in a container nobody may take away the dead."""
    with contextlib.suppress(psutil.Error):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


@dataclass(frozen=True)
class PretendOptions:
    partition: str = "all"
    queue: str = ""
    """The folder, instead of the usual one."""
    broken: bool = False
    outside: bool = False
    inside: bool = False


class PretendCluster(Engine):
    name = "pretend"
    reach = Reach.NETWORK

    def __init__(self, options: Mapping[str, object] | None = None) -> None:
        self._options = read_options(self.name, PretendOptions, options or {})
        self._queue = Path(self._options.queue or os.environ["PRETEND_QUEUE"])

    def submit(self, spec: JobSpec, count: int, run_id: str, request_id: str) -> list[str]:
        if self._options.broken:
            raise EngineError("the cluster takes no jobs today; ask its administrator")
        ids = [f"{run_id}-{request_id}-{number}" for number in range(count)]
        for id in ids:
            (self._queue / f"{id}.spec").write_text(
                json.dumps({"command": list(spec.command), "environment": dict(spec.environment), "run": run_id})
            )
            out, code = self._queue / f"{id}.out", self._queue / f"{id}.code"
            line = f"{shlex.join(spec.command)} > {shlex.quote(str(out))} 2>&1; echo $? > {shlex.quote(str(code))}"
            process = subprocess.Popen(
                ["sh", "-c", line],
                env=os.environ | dict(spec.environment) | {"ROPEWALK_RUN_ID": run_id},
                stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
                cwd="/",
            )  # fmt: skip
            (self._queue / f"{id}.pid").write_text(str(process.pid))
            assert process.stdin
            with process.stdin:
                process.stdin.write(spec.stdin)
            process.returncode = 0  # not ours to wait for: it belongs to the cluster
        return ids

    def poll(self, ids: Sequence[str]) -> dict[str, JobStatus]:
        return {id: self._status(id) for id in ids}

    def _status(self, id: str) -> JobStatus:
        code = self._queue / f"{id}.code"
        if code.exists() and code.read_text():
            return JobStatus(JobState.ENDED, int(code.read_text()))
        pid = self._queue / f"{id}.pid"
        if not pid.exists():
            return JobStatus(JobState.LOST, reason="no such job")
        if not runs(int(pid.read_text())):
            return JobStatus(JobState.ENDED, -signal.SIGKILL, "cancelled")
        return JobStatus(JobState.RUNNING)

    def cancel(self, ids: Sequence[str]) -> None:
        for id in ids:
            with contextlib.suppress(OSError):
                os.killpg(int((self._queue / f"{id}.pid").read_text()), signal.SIGKILL)
            for kind in ("out", "pid", "code"):  # it keeps nothing of what it has cancelled
                (self._queue / f"{id}.{kind}").unlink(missing_ok=True)

    def ask_to_end(self, ids: Sequence[str], grace_s: float) -> bool:
        for id in ids:
            with contextlib.suppress(OSError, psutil.Error):
                for command in psutil.Process(int((self._queue / f"{id}.pid").read_text())).children():
                    command.terminate()
        return True

    def launcher_options(self, options: Mapping[str, object]) -> dict[str, object]:
        if self._options.outside:
            raise EngineError("no launcher can be inside")
        return {**options, "inside": "yes"}

    def find(self, run_id: str) -> list[str]:
        return self.runs().get(run_id, [])

    def runs(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for file in sorted(self._queue.glob("*.spec")):
            if self._status(file.stem).state is JobState.RUNNING:
                found.setdefault(json.loads(file.read_text())["run"], []).append(file.stem)
        return found

    def remains(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for file in sorted(self._queue.glob("*.spec")):
            if self._status(file.stem).state is not JobState.RUNNING:
                found.setdefault(json.loads(file.read_text())["run"], []).append(f"order {file.stem}")
        return found

    def remove_remains(self, run_id: str) -> None:
        for what in self.remains().get(run_id, []):
            (self._queue / f"{what.removeprefix('order ')}.spec").unlink()

    def logs(self, id: str) -> str:
        out = self._queue / f"{id}.out"
        return out.read_text() if out.exists() else ""

    def render(self, spec: JobSpec) -> str:
        asked = spec.resources
        words = [f"partition={self._options.partition}", f"cpus={asked.cpus:g}", f"gpus={asked.gpus}"]
        words += [f"memory={asked.memory_bytes}", f"time={spec.time_limit_s}"]
        return f"{' '.join(words)}\n{shlex.join(spec.command)}"

    def check(self) -> list[EngineFinding]:
        fix = "the queue stands still; start it with: pretend start"
        return [
            EngineFinding("pretend command", True, f"{sys.executable}"),
            EngineFinding(
                "queue",
                not self._options.broken,
                fix if self._options.broken else f"partition {self._options.partition}",
            ),
        ]

    def per_job(self, process: Resources) -> int | None:
        if process.cpus > 16:
            raise EngineError(f"no host has {process.cpus:g} CPUs; the largest has 16")
        return int(16 // process.cpus)
