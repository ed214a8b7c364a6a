"""The local engine: this machine. A job is a child process in a session of its own.

A job ends with its first process, as under a batch system: all processes that it left in its process group are ended
with it, and `cancel` also reaches descendants that made groups of their own. Jobs of a launcher that is gone are found
by the mark that a job's processes inherit, as a cluster manager finds jobs by name. Jobs have no time
limit: only a session looks at them, and not once they are up.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ropewalk.descendants import descendants, kill
from ropewalk.engines.engine import Engine, EngineFinding, JobSpec, JobState, JobStatus, Reach
from ropewalk.engines.options import read_options
from ropewalk.engines.resources import usable_cpus
from ropewalk.errors import EngineError
from ropewalk.interpreter_ahead import MARK_VARIABLE, RUN_VARIABLE, StartedJob, start_job, take
from ropewalk.quantities import shown_size

_LOG_TAIL_BYTES = 64 * 1024
_PIPE_BYTES = 16 * 1024
"""Bytes that an empty pipe certainly accepts without a reader."""
_END_S = 5.0
"""A killed process ends within this time, unless it is stuck in the kernel; then `poll` reports its end later."""


@dataclass(frozen=True)
class LocalOptions:
    """The options of the engine `local`: none."""


class LocalEngine(Engine):
    """Starts jobs with `subprocess`, or takes the one that began ahead of its session."""

    name = "local"
    reach = Reach.HERE
    instead_of_time_limit = "`timeout 2h ropewalk run FILE` asks a run to end after two hours"

    def __init__(self, options: Mapping[str, object] | None = None) -> None:
        self.python = sys.executable
        read_options(self.name, LocalOptions, options or {})
        self._jobs: dict[str, _LocalJob] = {}

    def submit_one(self, spec: JobSpec, run_id: str, request_id: str, number: int) -> str:
        job = _start(spec, run_id)
        self._jobs[job.mark] = job
        return job.mark

    def poll(self, ids: Sequence[str]) -> dict[str, JobStatus]:
        with self._lock:
            others = self._others() if set(ids) - self._jobs.keys() else {}
            return {id: self._status(id, others) for id in ids}

    def cancel(self, ids: Sequence[str]) -> None:
        with self._lock:
            jobs = [self._jobs[id] for id in ids if id in self._jobs]
            for job in jobs:
                job.kill()
        for job in jobs:
            job.wait()
        if others := set(ids) - self._jobs.keys():
            for mark in others & self._others().keys():
                _end_marked(mark)

    def find(self, run_id: str) -> list[str]:
        with self._lock:
            mine = [id for id, job in self._jobs.items() if job.run_id == run_id]
            if mine:  # this is its launcher, and has started all of its jobs: no look at the processes of the host
                return [id for id in mine if self._jobs[id].exit_code() is None]
            return [id for id, run in self._others().items() if run == run_id]

    def runs(self) -> dict[str, list[str]]:
        with self._lock:
            found = {id: job.run_id for id, job in self._jobs.items() if job.exit_code() is None} | self._others()
        runs: dict[str, list[str]] = {}
        for id, run in found.items():
            runs.setdefault(run, []).append(id)
        return runs

    def _others(self) -> dict[str, str]:
        """Return the runs of jobs of other launchers, by job."""
        return {mark: run for mark, run in _marked().items() if mark not in self._jobs}

    def logs(self, id: str) -> str:
        with self._lock:
            job = self._jobs.get(id)
            if job is None or job.log.closed:
                return ""
            size = os.fstat(job.log.fileno()).st_size
            tail = os.pread(job.log.fileno(), _LOG_TAIL_BYTES, max(0, size - _LOG_TAIL_BYTES))
        return tail.decode(errors="replace")

    def render(self, spec: JobSpec) -> str:
        settings = [f"{name}={shlex.quote(value)}" for name, value in sorted(spec.environment.items())]
        return " ".join([*settings, shlex.join(spec.command)])

    def check(self) -> list[EngineFinding]:
        folder = tempfile.gettempdir()
        free = shutil.disk_usage(folder).free
        return [
            EngineFinding("usable CPUs", True, str(usable_cpus())),
            EngineFinding(f"space in {folder}", free > 64 << 20, f"{shown_size(free)} free"),
        ]

    def close(self) -> None:
        with self._lock:
            for job in self._jobs.values():
                if job.exit_code() is not None:
                    job.log.close()

    def _status(self, id: str, others: Mapping[str, str]) -> JobStatus:
        job = self._jobs.get(id)
        if job is None:
            # The job belongs, or belonged, to another launcher: only its parent gets the exit code.
            return JobStatus(JobState.RUNNING) if id in others else JobStatus(JobState.LOST, reason="no such job")
        code = job.exit_code()
        if code is None:
            return JobStatus(JobState.RUNNING)
        killed = f"ended by signal {-code} ({_signal_name(-code)})" if code < 0 else ""
        return JobStatus(JobState.ENDED, code, killed)


class _LocalJob:
    """A child process, its log, and the process group that it leads."""

    def __init__(self, started: StartedJob) -> None:
        self.process = started.process
        self.mark = started.mark
        self.log = started.log
        self.run_id = started.run_id

    def exit_code(self) -> int | None:
        """Return the exit code of an ended job; None before."""
        if self.process.returncode is None and self._has_ended():
            self._end_group()  # before the process is reaped: until then its number is not reused
            if self.process.wait():
                _end_marked(self.mark)  # the job died before it could end its children, which have no parent now
        return self.process.returncode

    def kill(self) -> None:
        """End the job, its group and its descendants at once; does nothing if it has ended."""
        if self.exit_code() is not None:
            return
        found = descendants(self.process.pid)
        self._end_group()
        kill(found)

    def wait(self) -> None:
        """Wait until a killed job is gone, reap it, and end its descendants."""
        if self.process.returncode is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(_END_S)
            # The job may have been dying when it was killed: without children, and not yet ended.
            _end_marked(self.mark)

    def _has_ended(self) -> bool:
        try:
            return os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:  # other code in this process reaped it; Popen finds out what it can
            return True

    def _end_group(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)


def _start(spec: JobSpec, run_id: str) -> _LocalJob:
    try:
        started = take(spec.command, spec.environment, run_id) or start_job(
            spec.command, spec.environment, run_id, spec.folder or None
        )
    except (OSError, ValueError) as error:
        raise EngineError(f"cannot start {spec.command[0]!r}, with its log in {spec.folder}: {error}") from error
    stdin = started.process.stdin
    assert stdin
    if len(spec.stdin) <= _PIPE_BYTES:
        _feed(stdin, spec.stdin)
    else:  # a job that does not read must not hold up the engine
        threading.Thread(target=_feed, args=(stdin, spec.stdin), name="ropewalk-stdin", daemon=True).start()
    return _LocalJob(started)


def _end_marked(mark: str) -> None:
    """End the processes whose environment has a mark: descendants of a job, in any session.

    A cluster manager uses a control group for this, which needs rights that a user may not have.
    """
    marked = f"{MARK_VARIABLE}={mark}".encode()
    kill(pid for pid, environment in _environments() if marked in environment)


def _marked() -> dict[str, str]:
    """Return the runs of all jobs that have processes on this machine, by mark."""
    found: dict[str, str] = {}
    for _, environment in _environments():
        variables: dict[bytes, bytes] = {}
        for each in environment:
            name, _, value = each.partition(b"=")
            variables[name] = value
        mark, run = variables.get(MARK_VARIABLE.encode()), variables.get(RUN_VARIABLE.encode())
        if mark and run:
            found[mark.decode(errors="replace")] = run.decode(errors="replace")
    return found


def _environments() -> Iterator[tuple[int, list[bytes]]]:
    """Yield the environments of this user's processes; none if there is no /proc."""
    # Not "[0-9]*/environ", which looks at each file and fails if a process ends at this moment.
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # the process is gone, or another user's
            yield int(folder.name), (folder / "environ").read_bytes().split(b"\0")


def _signal_name(number: int) -> str:
    return signal.Signals(number).name if number in set(signal.Signals) else "unknown"


def _feed(stdin: IO[bytes], data: bytes) -> None:
    with contextlib.suppress(BrokenPipeError), stdin:  # the job died or does not read it; `poll` reports its end
        stdin.write(data)
