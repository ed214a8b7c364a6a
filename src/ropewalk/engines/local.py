"""The local engine: this machine. A job is a child process in a session of its own."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from ropewalk.engines.engine import Engine, Finding, JobSpec, JobState, JobStatus
from ropewalk.engines.resources import usable_cpus
from ropewalk.errors import EngineError

_LOG_TAIL_BYTES = 64 * 1024
#: A variable that all descendants of a job inherit.
_MARK = "ROPEWALK_JOB"


class LocalEngine(Engine):
    """Starts jobs with `subprocess`; every job leads its own session, away from the terminal's signals."""

    name = "local"

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jobs: dict[str, _Job] = {}
        self._requests: dict[tuple[str, str], list[str]] = {}

    def submit(self, spec: JobSpec, count: int, run_id: str, request_id: str) -> list[str]:
        with self._lock:
            known = self._requests.get((run_id, request_id))
            if known is not None:
                return list(known)
            ids: list[str] = []
            for _ in range(count):
                job = _start(spec, run_id)
                ids.append(str(job.process.pid))
                self._jobs[ids[-1]] = job
            self._requests[run_id, request_id] = ids
            return list(ids)

    def poll(self, ids: Sequence[str]) -> dict[str, JobStatus]:
        with self._lock:
            return {id: self._status(id) for id in ids}

    def cancel(self, ids: Sequence[str]) -> None:
        with self._lock:
            jobs = [self._jobs[id] for id in ids if id in self._jobs]
        for job in jobs:
            if job.process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(job.process.pid, signal.SIGKILL)
            job.process.wait()
            if job.process.returncode:  # it could not end what it had started
                _end_marked(job.mark)

    def find(self, run_id: str) -> list[str]:
        with self._lock:
            return [id for id, job in self._jobs.items() if job.run_id == run_id and job.process.poll() is None]

    def logs(self, id: str) -> str:
        job = self._jobs.get(id)
        if job is None:
            return ""
        size = os.fstat(job.log.fileno()).st_size
        tail = os.pread(job.log.fileno(), _LOG_TAIL_BYTES, max(0, size - _LOG_TAIL_BYTES))
        return tail.decode(errors="replace")

    def render(self, spec: JobSpec) -> str:
        settings = [f"{name}={shlex.quote(value)}" for name, value in sorted(spec.environment.items())]
        return " ".join([*settings, shlex.join(spec.command)])

    def check(self) -> list[Finding]:
        folder = tempfile.gettempdir()
        free = shutil.disk_usage(folder).free
        return [
            Finding("usable CPUs", True, str(usable_cpus())),
            Finding(f"space in {folder}", free > 64 << 20, f"{free >> 20} MiB free"),
        ]

    def close(self) -> None:
        with self._lock:
            for job in self._jobs.values():
                if job.process.poll() is not None:
                    job.log.close()

    def _status(self, id: str) -> JobStatus:
        job = self._jobs.get(id)
        if job is None:
            return JobStatus(JobState.LOST, reason="no such job")
        code = job.process.poll()
        return JobStatus(JobState.RUNNING) if code is None else JobStatus(JobState.ENDED, code)


class _Job:
    def __init__(self, process: subprocess.Popen[bytes], log: IO[bytes], run_id: str, mark: str) -> None:
        self.process = process
        self.mark = mark
        self.log = log
        self.run_id = run_id


def _start(spec: JobSpec, run_id: str) -> _Job:
    # The log has no name: nothing is left when this process is killed.
    log = tempfile.TemporaryFile(dir=spec.folder or None, prefix="job-")
    mark = f"{_MARK}={os.urandom(8).hex()}"
    try:
        process = subprocess.Popen(
            list(spec.command),
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=os.environ | dict(spec.environment) | {"ROPEWALK_RUN_ID": run_id, _MARK: mark.partition("=")[2]},
            cwd=Path.cwd() if Path.cwd().exists() else "/",
            start_new_session=True,
        )
    except OSError as error:
        log.close()
        raise EngineError(f"cannot start {spec.command[0]!r}: {error}") from error
    assert process.stdin
    with contextlib.suppress(BrokenPipeError):  # it died at once; `poll` tells
        process.stdin.write(spec.stdin)
        process.stdin.close()
    return _Job(process, log, run_id, mark)


def _end_marked(mark: str) -> None:
    """End the processes whose environment bears a mark: descendants of a job, in whatever session they are.

    A cluster manager does this with a control group, for which one needs rights that a user may not have.
    """
    for environ in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # it is gone, or somebody else's
            if mark.encode() in environ.read_bytes().split(b"\0"):
                os.kill(int(environ.parent.name), signal.SIGKILL)
