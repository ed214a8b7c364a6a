"""The engine for Slurm: submits jobs by sbatch, reads their states from squeue, ends them by scancel.

    submit ─▶ sinfo (could it ever run?) ─▶ files in the shared folder ─▶ sbatch (an array for several jobs)
    poll   ─▶ squeue --json, else --format and scontrol; sacct for forgotten jobs, if the cluster keeps accounts
    cancel ─▶ scancel: SIGKILL to running jobs, the others leave the queue

What it shares with other batch systems is in `batch`. A job is never restarted by Slurm, which would take minutes and
start it under its old identity.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from ropewalk.engines.batch import BatchEngine, BatchJob, user_name
from ropewalk.engines.batch_sizes import describe, describe_request, usable_share
from ropewalk.engines.cluster_commands import answer_of, is_passing, words_of
from ropewalk.engines.engine import EngineFinding, JobSpec
from ropewalk.engines.host_addresses import resolve
from ropewalk.engines.options import read_options
from ropewalk.engines.resources import Resources
from ropewalk.engines.shared_folder import PREFIX
from ropewalk.engines.slurm_check import check_cluster
from ropewalk.engines.slurm_commands import SLURM, ask
from ropewalk.engines.slurm_jobs import (
    QUEUE_FORMAT,
    SACCT_FIELDS,
    SlurmJob,
    read_queue,
    read_sacct,
    read_scontrol,
    read_squeue,
    status_of,
)
from ropewalk.engines.slurm_nodes import (
    SINFO_FORMAT,
    SlurmNode,
    expand_names,
    most_jobs,
    read_sinfo,
    read_time,
    write_time,
)
from ropewalk.engines.slurm_script import SlurmOptions, batch_script, job_flags
from ropewalk.errors import EngineError

_HOSTS_ASKED = 8
"""The number of nodes that are looked up to find out which of our addresses they can reach."""


class SlurmEngine(BatchEngine):
    """Speaks to Slurm through its commands, which every cluster has; see `SlurmOptions` for its options."""

    name = "slurm"
    system = "Slurm"
    submit_command = "sbatch"
    commands = SLURM
    largest_array = 1000  # Slurm's default limit of an array (MaxArraySize) is 1001
    id_form = re.compile(r"(?P<job>\d+)(?:_(?P<task>\d+))?")
    gone = "invalid job id|already complet|job/step already"

    def __init__(self, options: Mapping[str, object] | None = None) -> None:
        self.options = read_options(self.name, SlurmOptions, options or {})
        self.python = self.options.python
        super().__init__(self.options.folder, self.options.timeout_s)
        self._has_json = True
        self._ends: dict[str, SlurmJob] = {}
        """Jobs that have ended, by id, where squeue does not tell their exit codes."""
        self._has_accounts = True

    def _message(self, spec: JobSpec, count: int, run_id: str, name: str, folder: str) -> tuple[list[str], str]:
        script = batch_script(self.options, spec, run_id, folder)
        flags = job_flags(self.options, spec)
        array = [f"--array=0-{count - 1}"] if count > 1 else []
        # A per cent sign begins a placeholder; %a is the number of a task of the array.
        log = folder.replace("%", "%%") + ("/%a.log" if array else "/0.log")
        return ["--parsable", f"--job-name={name}", f"--output={log}", "--open-mode=append", *array, *flags], script

    def _read_ids(self, printed: str, count: int) -> list[str] | None:
        match = re.fullmatch(r"(\d+)(;[\w.-]+)?", printed.strip())  # the second group is the cluster's name
        if match is None:
            return None
        return [f"{match[1]}_{index}" for index in range(count)] if count > 1 else [match[1]]

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
        share = usable_share(nodes, process)
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

    def _queue(self) -> dict[str, BatchJob]:
        user = user_name()
        jobs: list[SlurmJob] = []
        if self._has_json:
            argv = ["squeue", "--json", f"--user={user}", "--states=all"]
            try:
                printed = ask(argv, timeout_s=self.options.timeout_s)
            except EngineError as error:
                if not re.search("unrecognized option|serializer|plugin|invalid", words_of(error), re.IGNORECASE):
                    raise
                self._has_json = False  # an old Slurm, or one that was built without JSON
            else:
                with answer_of("squeue"):
                    jobs = read_squeue(printed)
        if not self._has_json:
            argv = ["squeue", "--array", "--noheader", f"--user={user}", "--states=all", f"--format={QUEUE_FORMAT}"]
            jobs = list(map(self._with_end, read_queue(ask(argv, timeout_s=self.options.timeout_s), user)))
        # Versions before 23.02 list the jobs of all users.
        return self._batch_jobs(job for job in jobs if job.user == user)

    def _with_end(self, job: SlurmJob) -> SlurmJob:
        """Return a job with its exit code, if it is one of ours and has ended: `squeue --format` does not tell it."""
        if not job.is_over or not job.name.startswith(PREFIX):
            return job
        if job.id not in self._ends:
            argv = ["scontrol", "--oneliner", "show", "job", job.id]
            try:
                told = read_scontrol(ask(argv, timeout_s=self.options.timeout_s))
            except EngineError as error:
                if is_passing(error):
                    raise
                told = []  # Slurm has just forgotten it
            self._ends[job.id] = next((each for each in told if each.id == job.id and each.is_over), job)
        return self._ends[job.id]

    def _accounts(self, ids: Sequence[str]) -> dict[str, BatchJob]:
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
        return self._batch_jobs(job for job in read_sacct(printed) if job.id in wanted and job.name.startswith(PREFIX))

    def _batch_jobs(self, jobs: Iterable[SlurmJob]) -> dict[str, BatchJob]:
        folder = str(self._folder.path)
        return {job.id: BatchJob(job.id, job.name, status_of(job, folder), job.state == "RUNNING") for job in jobs}

    # Ending

    def _signal(self, ids: Sequence[str], signal: str) -> None:
        # With --batch the signal reaches only the batch shell, which is the agent, and Slurm ends its children. Not for
        # waiting jobs: with a signal, scancel of one waiting task ends all waiting tasks of its array.
        self._tell(["scancel", "--batch", f"--signal={signal}"], ids)

    def _remove(self, ids: Sequence[str]) -> None:
        self._tell(["scancel"], ids)

    def check(self) -> list[EngineFinding]:
        return check_cluster(self.options, self._folder, self._nodes)
