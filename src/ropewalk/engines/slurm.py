"""The engine for Slurm: submits jobs by sbatch, reads their states from squeue, ends them by scancel.

    submit ─▶ sinfo (could it ever run?) ─▶ files in the shared folder ─▶ sbatch (an array for several jobs)
    poll   ─▶ squeue --json, else scontrol; sacct for jobs that these have forgotten, if the cluster keeps accounts
    cancel ─▶ scancel: SIGKILL to running jobs, the others leave the queue

Every job is named `ropewalk-<run>.<request>`, so that the jobs of a launcher that is gone can be found. One job has
one node or a share of it and hosts as many workers as fit; it is never restarted by Slurm, which would take minutes
and start it under its old identity.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pwd
import re
import time
from collections.abc import Mapping, Sequence

from ropewalk.engines.engine import Engine, EngineFinding, JobSpec, JobState, JobStatus
from ropewalk.engines.host_addresses import resolve
from ropewalk.engines.options import read_options
from ropewalk.engines.resources import Resources
from ropewalk.engines.shared_folder import PREFIX, SharedFolder
from ropewalk.engines.slurm_check import check_cluster
from ropewalk.engines.slurm_commands import advise, ask, is_passing, run_command, words_of
from ropewalk.engines.slurm_jobs import SACCT_FIELDS, SlurmJob, read_sacct, read_scontrol, read_squeue, status_of
from ropewalk.engines.slurm_nodes import (
    SINFO_FORMAT,
    SlurmNode,
    best_share,
    describe,
    describe_request,
    expand_names,
    most_jobs,
    read_sinfo,
    read_time,
    write_time,
)
from ropewalk.engines.slurm_script import SlurmOptions, batch_script, job_flags, shown
from ropewalk.errors import EngineError

_LARGEST_ARRAY = 1000
"""Slurm's default limit of an array (MaxArraySize) is 1001."""
_PAUSE_S = 0.5
_IDS_AT_ONCE = 500
"""The most ids in one command, because its length is limited."""
_HOSTS_ASKED = 8
"""The number of nodes that are looked up to find out which of our addresses they can reach."""
_ID = re.compile(r"\d+(_\d+)?")
_JOB_NAME = re.compile(re.escape(PREFIX) + r"(?P<run>.+)\.(?P<request>[0-9a-f]{12})")


class SlurmEngine(Engine):
    """Speaks to Slurm through its commands, which every cluster has; see `SlurmOptions` for its options."""

    name = "slurm"

    def __init__(self, options: Mapping[str, object] | None = None) -> None:
        self.options = read_options(self.name, SlurmOptions, options or {})
        self.python = self.options.python
        self._folder = SharedFolder(self.options.folder)
        self._names: dict[str, str] = {}  # of all jobs that we submitted or found, by id
        self._ended: dict[str, JobStatus] = {}
        self._cancelled: set[str] = set()
        self._has_json = True
        self._has_accounts = True

    # Starting

    def submit_all(self, spec: JobSpec, count: int, run_id: str, request_id: str) -> list[str]:
        ids = self._submit(spec, count, run_id, request_id)
        self._names |= dict.fromkeys(ids, _job_name(run_id, request_id))
        return ids

    def _submit(self, spec: JobSpec, count: int, run_id: str, request_id: str) -> list[str]:
        if not re.fullmatch(r"[\w.-]+", run_id) or run_id.startswith("."):
            raise EngineError(f"a run is named by letters, digits, dots and dashes, not {run_id!r}")
        if count > _LARGEST_ARRAY:
            raise EngineError(f"{count} jobs in one request are more than an array of Slurm holds ({_LARGEST_ARRAY})")
        self._refuse_impossible(spec, count)
        request = _short(request_id)
        name = _job_name(run_id, request_id)
        if self._folder.has_request(run_id, request):  # made by an earlier launcher of this run
            if taken := self._taken(name):
                return taken
            self._folder.remove_request(run_id, request)
        folder = self._folder.prepare(run_id, request, count, spec.stdin)
        try:
            flags, script = self._message(spec, count, run_id, name, str(folder))
            return self._sbatch(flags, script, count, name)
        except BaseException:  # a job that was accepted after all finds no credentials and ends
            self._folder.remove_request(run_id, request)
            raise

    def _message(self, spec: JobSpec, count: int, run_id: str, name: str, folder: str) -> tuple[list[str], str]:
        try:
            script = batch_script(self.options, spec, run_id, folder)
            flags = job_flags(self.options, spec)
        except ValueError as error:
            raise EngineError(f"this job cannot be written down for Slurm: {error}") from error
        array = [f"--array=0-{count - 1}"] if count > 1 else []
        # A per cent sign begins a placeholder; %a is the number of a task of the array.
        log = folder.replace("%", "%%") + ("/%a.log" if array else "/0.log")
        return ["--parsable", f"--job-name={name}", f"--output={log}", *array, *flags], script

    def _sbatch(self, flags: list[str], script: str, count: int, name: str) -> list[str]:
        """Submit the jobs; retry while the controller does not answer, unless it has accepted the jobs already."""
        deadline = time.monotonic() + self.options.timeout_s
        while True:
            try:
                printed = run_command(["sbatch", *flags], stdin=script, timeout_s=self.options.timeout_s)
                break
            except EngineError as error:
                if not is_passing(error):
                    raise EngineError(f"Slurm refused the job: {advise(words_of(error) or str(error))}") from error
                if taken := self._taken(name):
                    return taken
                if time.monotonic() > deadline:
                    raise
            time.sleep(_PAUSE_S)
        match = re.fullmatch(r"(\d+)(;[\w.-]+)?", printed.strip())  # the second group is the cluster's name
        if match is None:
            raise EngineError(f"sbatch was to print the id of a job, and printed {printed[:200]!r}")
        id = match[1]
        return [f"{id}_{index}" for index in range(count)] if count > 1 else [id]

    def _taken(self, name: str) -> list[str]:
        """Return the ids of a request's jobs that Slurm already has, ended or not."""
        return sorted((job.id for job in self._queue().values() if job.name == name), key=_order)

    def render(self, spec: JobSpec) -> str:
        folder = self._folder.path / f"{PREFIX}RUN" / "REQUEST"
        return shown(*self._message(spec, 1, "RUN", f"{PREFIX}RUN.REQUEST", str(folder)))

    # Requests that could never run

    def _refuse_impossible(self, spec: JobSpec, count: int) -> None:
        """Raise for a request that Slurm would accept and never start."""
        nodes = self._nodes()
        where = f"partition {self._partition(nodes)}"
        request, largest = describe_request(spec.resources), describe(nodes)
        fit = most_jobs(nodes, spec.resources, self.options.exclusive)
        if fit == 0:
            raise EngineError(
                f"no node of {where} can hold a job of {request}: the largest have {largest}. Slurm would accept it "
                "and let it wait for ever; ask for less, or choose another partition"
            )
        if fit < count:
            raise EngineError(
                f"{where} can hold {fit} jobs of {request} at the same time, on {len(nodes)} nodes with up to "
                f"{largest}; {count} were asked for, and Slurm would let the others wait for ever. Ask for fewer "
                "processes or less for each, or choose another partition"
            )
        limit_s = max((node.time_limit_s or float("inf") for node in nodes), default=float("inf"))
        asked_s = spec.time_limit_s or (read_time(self.options.time) if self.options.time else None) or 0
        if asked_s > limit_s:
            raise EngineError(
                f"a time limit of {write_time(asked_s)} is more than {where} allows, which is {write_time(limit_s)}: "
                "Slurm would accept it and let it wait for ever; ask for less time, or choose another partition"
            )

    def _nodes(self) -> list[SlurmNode]:
        """Return the nodes on which the options let our jobs run.

        Raises:
            EngineError: there are none; the message lists the partitions of the cluster.
        """
        found = self._sinfo()
        names = self.options.partition.split(",") if self.options.partition else []
        chosen = [node for node in found if (node.partition in names if names else node.is_default)]
        nodes = list({node.name: node for node in chosen}.values())  # a node may be in several partitions
        known = ", ".join(sorted({node.partition for node in found})) or "none that has nodes"
        if not nodes:
            if not names:
                raise EngineError(f"this cluster has no default partition; choose with the option partition: {known}")
            raise EngineError(f"there is no partition {self.options.partition!r} with nodes; this cluster has: {known}")
        if self.options.nodelist:
            nodes = [node for node in nodes if node.name in expand_names(self.options.nodelist)]
        nodes = [node for node in nodes if node.name not in expand_names(self.options.exclude)]
        if re.fullmatch(r"[\w-]+", self.options.constraint):  # the others are expressions, for Slurm to judge
            nodes = [node for node in nodes if self.options.constraint in node.features]
        if not nodes:
            limits = {name: getattr(self.options, name) for name in ("nodelist", "exclude", "constraint")}
            words = ", ".join(f"{name}={value}" for name, value in limits.items() if value)
            raise EngineError(f"no node of partition {self._partition(found)} is left by the options {words}")
        return nodes

    def _sinfo(self) -> list[SlurmNode]:
        argv = ["sinfo", "--all", "--Node", "--exact", "--noheader", f"--format={SINFO_FORMAT}"]
        return read_sinfo(ask(argv, timeout_s=self.options.timeout_s), self.options.gpu_type)

    def _partition(self, nodes: Sequence[SlurmNode]) -> str:
        return self.options.partition or next((node.partition for node in nodes if node.is_default), "")

    def per_job(self, process: Resources) -> int | None:
        nodes = self._nodes()
        usable = [node for node in nodes if node.is_usable] or nodes
        share = best_share(usable, process) or best_share(nodes, process)
        if share == 0:
            raise EngineError(
                f"no node of partition {self._partition(nodes)} can hold a process of {describe_request(process)}: the "
                f"largest have {describe(nodes)}; ask for less, or choose another partition"
            )
        return min(share, self.options.processes_per_job or share)

    def hosts(self) -> list[str]:
        nodes = sorted(self._nodes(), key=lambda node: not node.is_usable)
        addresses: list[str] = []
        for node in nodes[:_HOSTS_ASKED]:
            addresses += resolve(node.address)
        return list(dict.fromkeys(addresses))

    # Watching

    def poll(self, ids: Sequence[str]) -> dict[str, JobStatus]:
        with self._lock:
            asked = [id for id in ids if id not in self._ended]
            statuses = self._statuses(asked) if asked else {}
            self._ended |= {id: status for id, status in statuses.items() if status.state is JobState.ENDED}
            return {id: self._ended.get(id) or statuses[id] for id in ids}

    def _statuses(self, ids: Sequence[str]) -> dict[str, JobStatus]:
        jobs = self._queue()
        forgotten = [id for id in ids if id not in jobs and _ID.fullmatch(id)]
        jobs |= self._accounts(forgotten)
        return {id: self._status(id, jobs.get(id)) for id in ids}

    def _status(self, id: str, job: SlurmJob | None) -> JobStatus:
        if job is None:
            if id in self._cancelled:  # Slurm forgets a cancelled job at once if it had not started
                return JobStatus(JobState.ENDED, reason="CANCELLED: before it started")
            return JobStatus(JobState.LOST, reason="Slurm does not know this job, or no longer")
        status = status_of(job, str(self._folder.path))
        if status.state is JobState.ENDED and id in self._cancelled and status.exit_code in (None, -9, -15):
            return JobStatus(JobState.ENDED, status.exit_code, "CANCELLED: by its launcher")
        return status

    def _queue(self) -> dict[str, SlurmJob]:
        """Return all jobs of this user that Slurm remembers, by id."""
        user = _user()
        jobs: list[SlurmJob] = []
        if self._has_json:
            argv = ["squeue", "--json", f"--user={user}", "--states=all"]
            try:
                jobs = read_squeue(ask(argv, timeout_s=self.options.timeout_s))
            except ValueError as error:
                raise EngineError(f"squeue gave an answer that is not understood: {error}") from error
            except EngineError as error:
                if not re.search("unrecognized option|serializer|plugin|invalid", words_of(error), re.IGNORECASE):
                    raise
                self._has_json = False  # an old Slurm, or one that was built without JSON
        if not self._has_json:
            argv = ["scontrol", "--oneliner", "show", "job"]
            jobs = read_scontrol(ask(argv, timeout_s=self.options.timeout_s))
        # Versions before 23.02 list the jobs of all users.
        return {job.id: job for job in jobs if job.user == user}

    def _accounts(self, ids: Sequence[str]) -> dict[str, SlurmJob]:
        """Return jobs that the queue has forgotten from the accounts of the cluster, if it keeps any."""
        if not ids or not self._has_accounts:
            return {}
        argv = ["sacct", "--noheader", "--parsable2", "--allocations", "--array", f"--format={SACCT_FIELDS}"]
        try:
            printed = ask([*argv, f"--jobs={','.join(ids)}"], timeout_s=self.options.timeout_s)
        except EngineError as error:
            if not is_passing(error):
                self._has_accounts = False
            return {}
        wanted = set(ids)
        return {job.id: job for job in read_sacct(printed) if job.id in wanted and job.name.startswith(PREFIX)}

    def find(self, run_id: str) -> list[str]:
        return self.runs().get(run_id, [])

    def runs(self) -> dict[str, list[str]]:
        with self._lock:
            jobs = [job for job in self._queue().values() if not job.is_over]
            runs: dict[str, list[str]] = {}
            for job in sorted(jobs, key=lambda job: _order(job.id)):
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
                if not _ID.fullmatch(id) or (job := self._queue().get(id)) is None:
                    return ""
                self._names[id] = job.name
            place = self._place(id)
            return self._folder.log(*place) if place else ""

    # Ending

    def cancel(self, ids: Sequence[str]) -> None:
        with self._lock:
            wanted = [id for id in ids if _ID.fullmatch(id) and id not in self._ended]
            if not wanted:
                return
            jobs = self._queue()
            alive = [jobs[id] for id in wanted if id in jobs and not jobs[id].is_over]
            self._names |= {job.id: job.name for job in alive}
            self._cancelled |= {job.id for job in alive}
            # 1. Running jobs, at once: by default scancel sends SIGTERM first, and waits for half a minute (KillWait).
            #    With --batch the signal reaches only the batch shell, which is the agent, and Slurm ends its children.
            #    Not for waiting jobs: with a signal, scancel of one waiting task ends all waiting tasks of its array.
            self._scancel([job.id for job in alive if job.state == "RUNNING"], "--batch", "--signal=KILL")
            # 2. Jobs that wait, that started in the meantime, or that run on nodes that do not answer.
            self._scancel([job.id for job in alive])
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
            running = [id for id in ids if id in jobs and jobs[id].state == "RUNNING"]
            self._scancel(running, "--batch", "--signal=TERM")
            return bool(running)

    def _scancel(self, ids: Sequence[str], *flags: str) -> None:
        for start in range(0, len(ids), _IDS_AT_ONCE):
            try:
                ask(["scancel", *flags, *ids[start : start + _IDS_AT_ONCE]], timeout_s=self.options.timeout_s)
            except EngineError as error:
                if not re.search("invalid job id|already complet|job/step already", words_of(error), re.IGNORECASE):
                    raise

    def _place(self, id: str) -> tuple[str, str, int] | None:
        """Return run, request and number of a job, which say where its files are."""
        match = _JOB_NAME.fullmatch(self._names.get(id, ""))
        return (match["run"], match["request"], int(id.partition("_")[2] or 0)) if match else None

    def close(self) -> None:
        """Remove the files of runs whose jobs are all over or cancelled, and old files of launchers that are gone."""
        with self._lock:
            places = {id: place for id in self._names if (place := self._place(id))}
            old = self._folder.old_runs()
            if not places and not old:
                return
            with contextlib.suppress(EngineError):  # Slurm does not answer; a later launcher cleans up
                for run in ({place[0] for place in places.values()} | set(old)) - self._running(self._queue()):
                    self._folder.remove_run(run)

    def _running(self, jobs: Mapping[str, SlurmJob]) -> set[str]:
        """Return the runs with jobs that are neither over nor cancelled by us."""
        alive = [job for job in jobs.values() if not job.is_over and job.id not in self._cancelled]
        return {match["run"] for job in alive if (match := _JOB_NAME.fullmatch(job.name))}

    def check(self) -> list[EngineFinding]:
        return check_cluster(self.options, self._folder, self._nodes)


def _job_name(run_id: str, request_id: str) -> str:
    return f"{PREFIX}{run_id}.{_short(request_id)}"


def _short(request_id: str) -> str:
    """Return a name for files and jobs that is valid for any request id."""
    return hashlib.sha256(request_id.encode()).hexdigest()[:12]


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # the user has no name on this host
        return str(os.getuid())


def _order(id: str) -> tuple[int, int]:
    job, _, task = id.partition("_")
    return int(job), int(task or 0)
