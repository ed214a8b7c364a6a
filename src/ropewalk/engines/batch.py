"""What the engines of all batch systems share (Slurm, PBS, LSF): each is driven by the commands of its users.

    submit ─▶ files in the shared folder ─▶ one command (an array for several jobs)
    poll   ─▶ one command that lists this user's jobs
    cancel ─▶ SIGKILL to running jobs, then all are removed from the queue

Every job is named `ropewalk-<run>.<request>`, so that the jobs of a launcher that is gone can be found. One job has one
host or a share of it and hosts as many workers as fit.
"""

from __future__ import annotations

import abc
import contextlib
import os
import pwd
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from ropewalk.engines.cluster_commands import ClusterCommands, is_passing, words_of
from ropewalk.engines.engine import Engine, JobSpec, JobState, JobStatus, short_request
from ropewalk.engines.job_script import shown
from ropewalk.engines.shared_folder import PREFIX, SharedFolder
from ropewalk.errors import EngineError

_PAUSE_S = 0.5
_IDS_AT_ONCE = 500
"""The most ids in one command, because its length is limited."""
_JOB_NAME = re.compile(re.escape(PREFIX) + r"(?P<run>[\w-][\w.-]*)\.(?P<request>[0-9a-f]{12})")
"""Its run is part of a path, and is removed with it."""


@dataclass(frozen=True, slots=True)
class BatchJob:
    """One job of a batch system, or one task of an array."""

    id: str
    name: str
    status: JobStatus
    is_running: bool
    """Whether a signal reaches it."""

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return self.status.state is JobState.ENDED


class BatchEngine(Engine):
    """Submits, watches and ends the jobs of one batch system; a subclass knows its commands."""

    system: ClassVar[str]
    """The name of the batch system in messages."""
    submit_command: ClassVar[str]
    """The command that submits a job, whose script it reads from its standard input."""
    commands: ClassVar[ClusterCommands]
    largest_array: ClassVar[int] = 1000
    """The most jobs in one request."""
    id_form: ClassVar[re.Pattern[str]]
    """The form of an id; the group `task` is the part for a task of an array."""
    gone: ClassVar[str]
    """A regular expression for messages about jobs that are over or unknown."""

    def __init__(self, folder: str, timeout_s: float) -> None:
        self._folder = SharedFolder(folder)
        self._timeout_s = timeout_s
        self._names: dict[str, str] = {}  # of all jobs that we submitted or found, by id
        self._ended: dict[str, JobStatus] = {}
        self._cancelled: set[str] = set()

    # The commands of the batch system

    @abc.abstractmethod
    def _message(self, spec: JobSpec, count: int, run_id: str, name: str, folder: str) -> tuple[list[str], str]:
        """Return the flags of the submit command and the script; a ValueError says that there is no way to write it."""

    @abc.abstractmethod
    def _read_ids(self, printed: str, count: int) -> list[str] | None:
        """Return the ids of the jobs from the answer of the submit command; None if there are none."""

    @abc.abstractmethod
    def _queue(self) -> dict[str, BatchJob]:
        """Return all jobs of this user that the batch system remembers, by id."""

    @abc.abstractmethod
    def _signal(self, ids: Sequence[str], signal: str) -> None:
        """Send a signal, such as "TERM", to running jobs."""

    @abc.abstractmethod
    def _remove(self, ids: Sequence[str]) -> None:
        """End jobs that run, and remove those that wait from the queue."""

    @abc.abstractmethod
    def _refuse_impossible(self, spec: JobSpec, count: int) -> None:
        """Raise for a request that the batch system would accept and never start."""

    def _accounts(self, ids: Sequence[str]) -> dict[str, BatchJob]:
        """Return jobs that the queue has forgotten, if the cluster keeps accounts."""
        return {}

    def _run(self, *argv: str, stdin: str = "") -> str:
        return self.commands.run(argv, stdin=stdin, timeout_s=self._timeout_s)

    def _ask(self, *argv: str) -> str:
        return self.commands.ask(argv, timeout_s=self._timeout_s)

    def _tell(self, argv: Sequence[str], ids: Sequence[str]) -> None:
        """Run a command on jobs; those that are over or unknown are ignored."""
        for start in range(0, len(ids), _IDS_AT_ONCE):
            try:
                self._ask(*argv, *ids[start : start + _IDS_AT_ONCE])
            except EngineError as error:
                if not re.search(self.gone, words_of(error), re.IGNORECASE):
                    raise

    # Starting

    def submit_all(self, spec: JobSpec, count: int, run_id: str, request_id: str) -> list[str]:
        ids = self._submit(spec, count, run_id, request_id)
        self._names |= dict.fromkeys(ids, _job_name(run_id, request_id))
        return ids

    def _submit(self, spec: JobSpec, count: int, run_id: str, request_id: str) -> list[str]:
        if not re.fullmatch(r"[\w.-]+", run_id) or run_id.startswith("."):
            raise EngineError(f"a run is named by letters, digits, dots and dashes, not {run_id!r}")
        if count > self.largest_array:
            raise EngineError(
                f"{count} jobs in one request are more than an array of {self.system} holds ({self.largest_array})"
            )
        self._refuse_impossible(spec, count)
        request = short_request(request_id)
        name = _job_name(run_id, request_id)
        if self._folder.has_request(run_id, request):  # made by an earlier launcher of this run
            if taken := self._taken(name):
                return taken
            self._folder.remove_request(run_id, request)
        folder = self._folder.prepare(run_id, request, count, spec.stdin)
        try:
            flags, script = self._written(spec, count, run_id, name, str(folder))
            return self._send(flags, script, count, name)
        except BaseException:  # a job that was accepted after all finds no credentials and ends
            self._folder.remove_request(run_id, request)
            raise

    def _written(self, spec: JobSpec, count: int, run_id: str, name: str, folder: str) -> tuple[list[str], str]:
        try:
            return self._message(spec, count, run_id, name, folder)
        except ValueError as error:
            raise EngineError(f"this job cannot be written down for {self.system}: {error}") from error

    def _send(self, flags: list[str], script: str, count: int, name: str) -> list[str]:
        """Submit the jobs; retry while the server does not answer, unless it has accepted the jobs already."""
        deadline = time.monotonic() + self._timeout_s
        while True:
            try:
                printed = self._run(self.submit_command, *flags, stdin=script)
                break
            except EngineError as error:
                if not is_passing(error):
                    words = self.commands.advise(words_of(error) or str(error))
                    raise EngineError(f"{self.system} refused the job: {words}") from error
                if taken := self._taken(name):
                    return taken
                if time.monotonic() > deadline:
                    raise
            time.sleep(_PAUSE_S)
        ids = self._read_ids(printed, count) or self._taken(name)  # a script of the site may print more than the id
        if not ids:
            raise EngineError(
                f"{self.submit_command} should have printed the id of a job, but printed {printed[:200]!r}"
            )
        return ids

    def _taken(self, name: str) -> list[str]:
        """Return the ids of a request's jobs that the batch system already has, ended or not."""
        return sorted((job.id for job in self._queue().values() if job.name == name), key=self._order)

    def render(self, spec: JobSpec) -> str:
        folder = self._folder.path / f"{PREFIX}RUN" / "REQUEST"
        flags, script = self._written(spec, 1, "RUN", f"{PREFIX}RUN.REQUEST", str(folder))
        return shown([self.submit_command, *flags], script)

    # Watching

    def poll(self, ids: Sequence[str]) -> dict[str, JobStatus]:
        with self._lock:
            asked = [id for id in ids if id not in self._ended]
            statuses = self._statuses(asked) if asked else {}
            self._ended |= {id: status for id, status in statuses.items() if status.state is JobState.ENDED}
            return {id: self._ended.get(id) or statuses[id] for id in ids}

    def _statuses(self, ids: Sequence[str]) -> dict[str, JobStatus]:
        jobs = self._queue()
        forgotten = [id for id in ids if id not in jobs and self.id_form.fullmatch(id)]
        jobs |= self._accounts(forgotten)
        return {id: self._status(id, jobs.get(id)) for id in ids}

    def _status(self, id: str, job: BatchJob | None) -> JobStatus:
        if job is None:
            if id in self._cancelled:  # Slurm forgets a cancelled job at once if it had not started
                return JobStatus(JobState.ENDED, reason="CANCELLED: before it started")
            return JobStatus(JobState.LOST, reason=f"{self.system} does not know this job, or no longer")
        status = job.status
        if status.state is JobState.ENDED and id in self._cancelled and status.exit_code in (None, -9, -15):
            return JobStatus(JobState.ENDED, status.exit_code, "CANCELLED: by its launcher")
        return status

    def find(self, run_id: str) -> list[str]:
        return self.runs().get(run_id, [])

    def runs(self) -> dict[str, list[str]]:
        with self._lock:
            jobs = [job for job in self._queue().values() if not job.is_over]
            runs: dict[str, list[str]] = {}
            for job in sorted(jobs, key=lambda job: self._order(job.id)):
                if match := _JOB_NAME.fullmatch(job.name):
                    runs.setdefault(match["run"], []).append(job.id)
                    self._names[job.id] = job.name
            return runs

    def remains(self) -> dict[str, list[str]]:
        with self._lock:
            return self._folder.remains(self._running(self._queue()))

    def remove_remains(self, run_id: str) -> None:
        if run_id in self.remains():
            self._folder.remove_run(run_id)

    def logs(self, id: str) -> str:
        with self._lock:
            if id not in self._names:
                if not self.id_form.fullmatch(id) or (job := self._queue().get(id)) is None:
                    return ""
                self._names[id] = job.name
            place = self._place(id)
            return self._folder.log(*place) if place else ""

    # Ending

    def cancel(self, ids: Sequence[str]) -> None:
        with self._lock:
            wanted = [id for id in ids if self.id_form.fullmatch(id) and id not in self._ended]
            if not wanted:
                return
            jobs = self._queue()
            alive = [jobs[id] for id in wanted if id in jobs and not jobs[id].is_over]
            self._names |= {job.id: job.name for job in alive}
            self._cancelled |= {job.id for job in alive}
            # 1. Running jobs, at once: removing a job sends SIGTERM first, and waits (Slurm: KillWait, half a minute).
            self._signal([job.id for job in alive if job.is_running], "KILL")
            # 2. Jobs that wait, that started in the meantime, or that run on hosts that do not answer.
            self._remove([job.id for job in alive])
            for job in alive:
                if place := self._place(job.id):
                    self._folder.remove_credentials(*place)
            # Files of a launcher that is gone are removed here; `close` removes our own.
            own = {run for run, _ in self._requests}
            for run in {place[0] for job in alive if (place := self._place(job.id))} - own - self._running(jobs):
                self._folder.remove_run(run)

    def ask_to_end(self, ids: Sequence[str], grace_s: float) -> bool:
        with self._lock:
            jobs = self._queue()
            running = [id for id in ids if id in jobs and jobs[id].is_running]
            self._signal(running, "TERM")
            return bool(running)

    def _place(self, id: str) -> tuple[str, str, int] | None:
        """Return run, request and number of a job, which say where its files are."""
        match = _JOB_NAME.fullmatch(self._names.get(id, ""))
        return (match["run"], match["request"], self._number(id)) if match else None

    def _number(self, id: str) -> int:
        """Return the number of a job in its request, from 0."""
        return self._order(id)[1]

    def _order(self, id: str) -> tuple[int, int]:
        """Return the number of a job or array in the batch system, and that of the task in the array."""
        match = self.id_form.fullmatch(id)
        assert match, f"the batch system gave the id {id!r}"
        return int(match["job"]), int(match["task"] or 0)

    def close(self) -> None:
        """Remove the files of runs whose jobs are all over or cancelled, and old files of launchers that are gone."""
        with self._lock:
            places = {id: place for id in self._names if (place := self._place(id))}
            old = self._folder.old_runs()
            if not places and not old:
                return
            with contextlib.suppress(EngineError):  # the server does not answer; a later launcher cleans up
                for run in ({place[0] for place in places.values()} | set(old)) - self._running(self._queue()):
                    self._folder.remove_run(run)

    def _running(self, jobs: Mapping[str, BatchJob]) -> set[str]:
        """Return the runs with jobs that are neither over nor cancelled by us."""
        alive = [job for job in jobs.values() if not job.is_over and job.id not in self._cancelled]
        return {match["run"] for job in alive if (match := _JOB_NAME.fullmatch(job.name))}


def user_name() -> str:
    """Return the name of this user, or the number of a user that has no name on this host."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def _job_name(run_id: str, request_id: str) -> str:
    return f"{PREFIX}{run_id}.{short_request(request_id)}"
