"""The job of an agent on this machine, whose interpreter may start before its session has been imported.

    Pool, Process.start ─▶ begin ─▶ imports of the session ─▶ Session ─▶ engine: take ─▶ feed
                             └─▶ interpreter ─▶ imports of the agent ─▶ reads its standard input ─▶ connects

Launcher and agent both import for about a tenth of a second; begun ahead, the interpreter does so at the same time. It
knows nothing until it is fed, and ends at the end of its standard input, which comes at the latest when the launcher
ends. Variables that have changed meanwhile, or another working folder: it is ended, and the engine starts another one.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple, cast

from ropewalk.interpreters import import_environment, module_command
from ropewalk.setting_values import default_files, values_and_origins
from ropewalk.surroundings import working_folder

if TYPE_CHECKING:  # what is imported here delays the interpreter that is to be started
    from ropewalk.settings import Settings

MARK_VARIABLE = "ROPEWALK_JOB"
"""A variable that all descendants of a job inherit; its value names the job."""
RUN_VARIABLE = "ROPEWALK_RUN_ID"


class StartedJob(NamedTuple):
    """A child process that waits for its standard input."""

    process: subprocess.Popen[bytes]
    log: IO[bytes]
    """The file of its output, which has no name: nothing is left when this process is killed."""
    mark: str
    run_id: str
    begun_as: tuple[list[str], dict[str, str], str]
    """Its command, its variables but for the mark, and its working folder."""


_ahead: StartedJob | None = None
"""The interpreter that no session has adopted yet, or that the session which has adopted it has not used yet."""
_adopted = False
_lock = threading.Lock()


def start_job(
    command: Sequence[str], variables: Mapping[str, str], run_id: str, log_folder: Path | str | None
) -> StartedJob:
    """Start a job as a child process in a session of its own, away from the terminal's signals.

    Raises:
        OSError: there is no room for its log, or the command cannot be started.
        ValueError: there is a null byte in a name or a value.
    """
    log = _nameless_file(log_folder)
    mark = os.urandom(8).hex()
    begun_as = _begun_as(command, variables, run_id)
    try:
        process = subprocess.Popen(
            begun_as[0],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=begun_as[1] | {MARK_VARIABLE: mark},
            cwd=begun_as[2],
            start_new_session=True,
        )
    except (OSError, ValueError):
        log.close()
        raise
    return StartedJob(process, log, mark, run_id, begun_as)


def _nameless_file(folder: Path | str | None) -> IO[bytes]:
    """Open a new file that has no name.

    Raises:
        OSError: there is no room for it.
    """
    if folder:
        with contextlib.suppress(OSError):  # the files of this file system have names, or it is full
            return open(os.open(folder, os.O_RDWR | os.O_TMPFILE | os.O_EXCL | os.O_CLOEXEC, 0o600), "w+b")
    import tempfile  # takes 4 ms, for which a first process would wait

    return tempfile.TemporaryFile(dir=folder, prefix="job-")


def begin(engine: str | None = None, settings: Settings | None = None) -> None:
    """Start the interpreter of an agent, if this process is about to import what its first session needs.

    Args:
        engine: the engine of the session; the setting by default. Only the local one starts interpreters here.
        settings: all settings of the session, instead.

    Raises:
        SettingsError: a setting has a value that it cannot have.
    """
    global _ahead, _adopted
    if "ropewalk.processes.bootstrap" in sys.modules:  # each session has imported it, and so has each process of one
        return
    if settings:
        engine, folder = settings.engine, settings.run_folder
    else:
        values, _ = values_and_origins({"engine": engine}, os.environ, default_files(os.environ))
        engine, folder = str(values["engine"]), cast(Path, values["run_folder"])
    if engine != "local":
        return
    with _lock:
        if _ahead is None:
            with contextlib.suppress(OSError, ValueError):  # the engine meets the same error, and reports it
                command = module_command(sys.executable, "ropewalk.processes.agent_main")
                _ahead = start_job(command, import_environment(), os.urandom(8).hex(), folder)
                _adopted = False
                atexit.register(discard)


def new_run_id(engine: str) -> str:
    """Return the id of a new run: that with which an interpreter was started ahead, if the run can use it."""
    global _adopted
    with _lock:
        if engine == "local" and _ahead and not _adopted:
            _adopted = True
            return _ahead.run_id
    return os.urandom(8).hex()


def take(command: Sequence[str], variables: Mapping[str, str], run_id: str) -> StartedJob | None:
    """Return the interpreter that was started ahead for a run, if it was started as one would be started now."""
    global _ahead
    with _lock:
        job = _ahead
        if job is None or job.run_id != run_id:
            return None
        if job.process.poll() is None and job.begun_as == _begun_as(command, variables, run_id):
            _ahead = None
            return job
    discard()
    return None


def discard() -> None:
    """End the interpreter that was started ahead, if it has not been taken."""
    global _ahead
    with _lock:
        job, _ahead = _ahead, None
    if job:
        job.process.kill()
        job.process.wait()
        _close(job)


def _forget() -> None:
    """In a forked child: leave it to the parent."""
    global _ahead, _lock
    _lock = threading.Lock()  # another thread may have held it at the fork
    job, _ahead = _ahead, None
    if job:
        job.process.returncode = 0  # it is no child of this process
        _close(job)


os.register_at_fork(after_in_child=_forget)


def _close(job: StartedJob) -> None:
    assert job.process.stdin
    job.process.stdin.close()
    job.log.close()


def _begun_as(
    command: Sequence[str], variables: Mapping[str, str], run_id: str
) -> tuple[list[str], dict[str, str], str]:
    return list(command), os.environ | dict(variables) | {RUN_VARIABLE: run_id}, working_folder()
