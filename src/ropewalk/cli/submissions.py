"""Submitted runs: their records in a state folder, and their states.

    ~/.local/state/ropewalk/runs/<id>/     mode 0700 (XDG_STATE_HOME moves it)
        run.json                           script, engine and job: a `Submission`
        process.json                       for a run on this machine: its process
        launcher.json                      and that of its launcher now, which goes on if the former is killed
        output                             for a run on this machine: its whole output; for a job: the last part,
                                           kept when it ended
        begun                              with --launcher-restarts: the runs that its launcher has begun
        ended.json                         how it ended, once that is known

A run on a cluster is a job of its engine, which is polled for its state; how it ended is kept, because clusters forget
their jobs after minutes.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shutil
import signal
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import psutil

from ropewalk.atomic_files import boot_id, replace_file
from ropewalk.engines import make_engine
from ropewalk.engines.engine import Engine, JobState, JobStatus
from ropewalk.errors import RopewalkError, StartFailed
from ropewalk.process_start import start_ticks
from ropewalk.setting_values import state_folder
from ropewalk.trusted_files import make_private_folder, read_trusted

_KEEP_S = 30 * 86_400.0
"""Seconds after their end for which runs are kept; the next submission removes older ones."""
_ASK_S, _CANCEL_S = 0.5, 30.0
"""Seconds between two polls of a job that was asked to end, and the timeout of its engine for killing it."""
_LIVE = ("pending", "running", "unknown")


class Submission(msgspec.Struct, frozen=True, kw_only=True):
    """A submitted run; written once, by the process that submits it."""

    id: str
    engine: str
    options: dict[str, Any]
    """The options of the engine."""
    job: str
    """The engine's id of the launcher's job; empty on this machine."""
    run_id: str
    """The id by which the engine finds that job."""
    command: list[str]
    """The script and its arguments, for users."""
    working_folder: str
    submitted: float
    """When it was submitted, in seconds since the epoch."""
    host: str

    @property
    def is_local(self) -> bool:
        """Whether it is a process on this machine, not a job of an engine."""
        return not self.job

    def __str__(self) -> str:
        return f"{self.id} ({self.engine}{f' job {self.job}' if self.job else ''}, {' '.join(self.command)})"


class RunProcess(msgspec.Struct, frozen=True):
    """The process of a run on this machine."""

    pid: int
    start_ticks: int
    """When it started, in clock ticks since the boot: distinguishes it from another process with the same number."""
    boot: str
    """Boot id of the kernel that has counted both."""

    @classmethod
    def of(cls, pid: int) -> RunProcess:
        """Return the record of a process; its start is 0 if it has ended."""
        return cls(pid, start_ticks(pid), boot_id())


class RunEnd(msgspec.Struct, frozen=True):
    """How a run ended."""

    exit_code: int | None
    ended: float
    reason: str = ""


class RunSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The instructions for the first process of a run, on its standard input."""

    file: str | None
    """The absolute path of the script."""
    module: str | None
    arguments: list[str]
    working_folder: str
    state_folder: str
    """The folder where the end is recorded; empty for a job, whose end the engine reports."""
    root: str = ""
    """The root of the project whose bundle follows; empty if none does."""
    ranks: str | None = None
    """The value of `--ranks`."""
    max_restarts: int = 0
    launcher_restarts: int = 0
    """How often the launcher is started again after it was killed."""


@dataclass(frozen=True, slots=True)
class RunState:
    """The state of a run, with its exit code and the reason."""

    submission: Submission
    state: str
    """pending, running, ended, lost (it vanished without a record), or unknown (it cannot be polled)."""
    exit_code: int | None = None
    reason: str = ""

    @property
    def is_live(self) -> bool:
        """Whether it may still be running."""
        return self.state in _LIVE

    def to_json(self) -> dict[str, Any]:
        """Return the record for programs."""
        facts = msgspec.structs.asdict(self.submission)
        del facts["options"]
        return {**facts, "state": self.state, "exit_code": self.exit_code, "reason": self.reason}

    def describe(self) -> str:
        """Return one line for users."""
        run = self.submission
        how = f"{self.state} with exit code {self.exit_code}" if self.exit_code is not None else self.state
        words = [f"{run.id} {how}", f"{run.engine}{f' job {run.job}' if run.job else ''}", " ".join(run.command)]
        return ", ".join(words) + (f" ({self.reason})" if self.reason else "")


# --- the state folder -------------------------------------------------------------------------------------------------


def runs_folder() -> Path:
    """Return the folder of the records of all submitted runs."""
    return state_folder(os.environ) / "runs"


def folder_of(id: str) -> Path:
    """Return the folder of a run's records."""
    return runs_folder() / id


def output_of(run: Submission) -> Path:
    """Return the file of a run's output: on this machine from the beginning, of a job once it has ended."""
    return folder_of(run.id) / "output"


def make_folder(name: str) -> Path:
    """Make a new folder for a run that is about to be submitted; its name becomes the run's id.

    Raises:
        StartFailed: it cannot be made.
    """
    parent = runs_folder()
    try:
        return _new_folder(parent, name)
    except OSError as error:
        raise StartFailed(
            f"records of submitted runs cannot be kept in {parent}: {error}; set XDG_STATE_HOME to a folder that you "
            "can write to"
        ) from error


def _new_folder(parent: Path, name: str) -> Path:
    make_private_folder(parent)
    short = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:24] or "run"
    while True:
        folder = parent / f"{short}-{os.urandom(2).hex()}"
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
            folder.chmod(0o700)
            return folder


def write(folder: Path, name: str, facts: msgspec.Struct) -> None:
    """Write a file of a run atomically, readable by this user alone."""
    replace_file(folder / name, [msgspec.json.encode(facts)])


_Facts = TypeVar("_Facts", bound=msgspec.Struct)


def _read(folder: Path, name: str, kind: type[_Facts]) -> _Facts | None:
    try:
        return msgspec.json.decode(read_trusted(folder / name), type=kind)
    except (OSError, ValueError, RecursionError):  # not there yet, of another version, or not ours
        return None


def submissions() -> list[Submission]:
    """Return all recorded runs, the oldest first."""
    found = [_read(folder, "run.json", Submission) for folder in runs_folder().glob("*")]
    return sorted((each for each in found if each), key=lambda each: each.submitted)


def forget_old(now: float) -> None:
    """Remove the records of runs that ended long ago."""
    for submission in submissions():
        end = _read(folder_of(submission.id), "ended.json", RunEnd)
        if end and now - end.ended > _KEEP_S:
            shutil.rmtree(folder_of(submission.id), ignore_errors=True)


def forget(run: Submission) -> None:
    """Remove all that is kept here of a run, without asking its engine."""
    shutil.rmtree(folder_of(run.id))


# --- states -----------------------------------------------------------------------------------------------------------


def states(runs: Sequence[Submission]) -> list[RunState]:
    """Return the states of runs; their engines are polled in parallel."""
    if not runs:
        return []
    with ThreadPoolExecutor(min(len(runs), 16)) as executor:
        return list(executor.map(state_of, runs))


def state_of(run: Submission, engine: Engine | None = None) -> RunState:
    """Return the state of a run.

    Args:
        run: the run.
        engine: the engine of its job, if there is one at hand; otherwise one is made for this call.
    """
    folder = folder_of(run.id)
    known = _ended(run, folder)
    if known:
        return known
    if not run.is_local:
        return _state_of_job(run, folder, engine)
    if process_of(run):
        return RunState(run, "running")
    if run.host != platform.node():
        return RunState(run, "unknown", reason=f"it was submitted on {run.host}; look there")
    # It may have ended just now: recording its end is its last action.
    return _ended(run, folder) or RunState(run, "lost", reason="its process is gone and did not say how it ended")


def _ended(run: Submission, folder: Path) -> RunState | None:
    end = _read(folder, "ended.json", RunEnd)
    return RunState(run, "ended", end.exit_code, end.reason) if end else None


def has_ended(run: Submission) -> bool:
    """Return whether a run is known to have ended; its engine is not polled."""
    return _ended(run, folder_of(run.id)) is not None


def process_of(run: Submission) -> psutil.Process | None:
    """Return the process of a run on this machine, if it is alive; else its launcher, if that goes on without it."""
    if run.host != platform.node():
        return None
    known = (_read(folder_of(run.id), name, RunProcess) for name in ("process.json", "launcher.json"))
    return next(filter(None, map(living, filter(None, known))), None)


def living(facts: RunProcess) -> psutil.Process | None:
    """Return the process of a record, if it is alive."""
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(facts.pid)  # before the look at its start: psutil knows it by that, too
        if facts == RunProcess.of(facts.pid):
            return process
    return None


def _state_of_job(run: Submission, folder: Path, known: Engine | None) -> RunState:
    try:
        engine = known or make_engine(run.engine, run.options)
        try:
            status = engine.poll([run.job])[run.job]
            if status.state is JobState.ENDED:
                keep_output(run, engine.logs(run.job))
                state = _keep_end(run, folder, status)
                engine.cancel([run.job])  # some engines keep ended jobs until they are cancelled
                return state
        finally:
            if known is None:
                engine.close()
    except (RopewalkError, OSError) as error:
        return RunState(run, "unknown", reason=f"the engine does not say: {error}")
    if status.state is JobState.LOST:
        lost = RunState(run, "lost", reason=status.reason or "the engine does not know its job any more")
        return _ended(run, folder) or lost  # another process may have kept its end just now
    return RunState(run, status.state.value, reason=status.reason)


def _keep_end(run: Submission, folder: Path, status: JobStatus) -> RunState:
    code = status.exit_code
    shown = 128 - code if code is not None and code < 0 else code  # as a shell reports a signal
    write(folder, "ended.json", RunEnd(shown, time.time(), status.reason))
    return RunState(run, "ended", shown, status.reason)


# --- ending -----------------------------------------------------------------------------------------------------------


def end(run: Submission, grace_s: float) -> RunState:
    """Ask a run to stop, and kill it after the grace period. A job is ended by its engine.

    Args:
        run: the run.
        grace_s: seconds that the run has to end by itself.

    Returns:
        The state of the run afterwards.

    Raises:
        RopewalkError: the engine cannot be asked.
    """
    if run.is_local:
        _end_process(run, grace_s)
    else:
        _end_job(run, grace_s)
    deadline = time.monotonic() + _CANCEL_S
    while (state := state_of(run)).is_live and time.monotonic() < deadline:
        time.sleep(0.05 if run.is_local else 0.5)
    return state


def _end_job(run: Submission, grace_s: float) -> None:
    """Ask a job to end, if its engine can, then kill it. Its output is kept: most engines forget it with the job."""
    engine = make_engine(run.engine, run.options)
    try:
        deadline = time.monotonic() + grace_s
        printed = engine.logs(run.job)
        last = JobStatus(JobState.RUNNING)
        is_asked = grace_s > 0 and engine.ask_to_end([run.job], grace_s)
        while is_asked and time.monotonic() < deadline:
            time.sleep(_ASK_S)
            printed = engine.logs(run.job) or printed
            last = engine.poll([run.job])[run.job]
            if last.state not in (JobState.PENDING, JobState.RUNNING):
                printed = engine.logs(run.job) or printed
                break
        engine.cancel([run.job])
        keep_output(run, printed)
        status = engine.poll([run.job])[run.job]
        if status.state is JobState.LOST:  # the engine forgets cancelled jobs
            status = JobStatus(JobState.ENDED, reason="it was stopped, and its exit code is not known")
        if status.state is JobState.ENDED:
            _keep_end(run, folder_of(run.id), last if last.state is JobState.ENDED else status)
    finally:
        engine.close()


def keep_output(run: Submission, printed: str) -> None:
    """Keep the output of a job, once, because its engine forgets it."""
    file = output_of(run)
    if printed and not file.exists():
        replace_file(file, [printed.encode()])


def _end_process(run: Submission, grace_s: float) -> None:
    """End the process of a run, and its launcher after it, if that goes on without it: both may be ending already."""
    ended: set[int] = set()
    while (process := process_of(run)) is not None and process.pid not in ended:
        ended.add(process.pid)
        with contextlib.suppress(psutil.Error):
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(grace_s)
            except psutil.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(os.getpgid(process.pid), signal.SIGKILL)  # of its session; agents end with their launcher
                process.wait(_CANCEL_S)
                _keep_kill(run, f"it was killed, as it had not ended {grace_s:g} s after it was asked to")


def _keep_kill(run: Submission, reason: str) -> None:
    """Keep how a run ended whose process was killed before it could record that itself."""
    folder = folder_of(run.id)
    if _ended(run, folder) is None:
        write(folder, "ended.json", RunEnd(128 + signal.SIGKILL, time.time(), reason))
