"""The engine for PBS Professional and OpenPBS: qsub submits jobs, qselect and qstat list them, qdel ends them.

It is tested with stand-ins for these commands and has never run on a real cluster. The options and formats are those
of the manual pages of OpenPBS: qsub(1B), qselect(1B), qstat(1B), qsig(1B), qdel(1B), pbsnodes(8B),
pbs_job_attributes(7B). TORQUE, which has commands of the same names, is another batch system.

    submit ─▶ qsub -J 0-3 < script
    poll   ─▶ qselect -x -u USER (ids), then qstat -x -t -f -F json
    cancel ─▶ qsig -s SIGKILL to running jobs, then qdel

PBS remembers jobs that have ended only if the server's attribute job_history_enable is true. Otherwise a job that has
ended is unknown, which the engine reports as lost.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ropewalk.engines.batch import BatchJob, user_name
from ropewalk.engines.batch_queue import QueueEngine, QueueOptions, given_flags, refuse_own_flags
from ropewalk.engines.batch_sizes import BatchHost, hours_and_minutes, mib_of
from ropewalk.engines.cluster_commands import ClusterCommands, answer_of, printed_by, records_of, words_of
from ropewalk.engines.engine import JobSpec, JobState, JobStatus
from ropewalk.engines.options import read_options
from ropewalk.engines.resources import HostCapacity
from ropewalk.errors import EngineError

_COMMANDS = ClusterCommands(
    missing="run the launcher where the commands of PBS are (a login node, or inside a job), or load their module",
    silent="is the PBS server up (qstat -B)?",
    away="the PBS server does not answer, qstat -B tells more",
    passing=(
        "cannot connect to server",
        "connection refused",
        "connection timed out",
        "communication failure",
        "end of file",
        "server too busy",
    ),
    advice=(
        ("unknown queue", "choose a queue with the option queue (qstat -Q lists them)"),
        ("queue is not enabled", "choose another queue with the option queue (qstat -Q lists them)"),
        ("unknown resource", "this cluster gives the resource another name; see the options gpu_resource and chunk"),
        ("exceed", "ask for less, or choose another queue with the option queue (qstat -Q -f shows their limits)"),
        ("violates", "ask for less, or choose another queue with the option queue (qstat -Q -f shows their limits)"),
        ("maximum number of jobs", "you have as many jobs in the queue as you may; wait, or ask for fewer processes"),
        ("account", "choose an account or a project of yours with the options account and project"),
        ("array", "the server allows smaller arrays only (max_array_size); ask for fewer jobs at once"),
    ),
    noise=("qsub: ",),
    kept=("PBS_CONF_FILE", "PBS_EXEC", "PBS_HOME", "PBS_SERVER", "PBS_DEFAULT"),
)
_OWN_FLAGS = r"-(?:[CeGhIJjkNorRSvVXz]|Wblock)|--|.*block="
"""Flags of qsub that the engine itself sets, or that would break its guarantees."""
_PENDING = frozenset("QHWTM")
_ALIVE = frozenset("RBESU")
"""Letters of states, of qstat(1B): B is an array of which a task runs, E exits, S and U are suspended."""
_WORDS_OF_STATES = {
    "H": "held; qrls releases it",
    "W": "its time has not come yet",
    "M": "moved to another server",
    "S": "suspended, by the administrator or to make room for others",
    "U": "suspended, because the host's keyboard is in use",
}
_WORDS_OF_EXITS = {
    -1: "it could not be started, before its files were prepared",
    -2: "it could not be started, after its files were prepared",
    -3: "it could not be started",
    -24: "it used more CPUs than it had asked for",
    -25: "it used more CPUs than it had asked for",
    -26: "it used more virtual memory than it had asked for",
    -27: "it used more memory than it had asked for; ask for more with the memory of the run",
    -28: "it used more CPU time than it had asked for",
    -29: "it reached its time limit; ask for more with the time limit of the run",
}
"""Negative values of Exit_status, which PBS sets itself (JOB_EXEC_* in OpenPBS's job.h)."""
_OUT_OF_MEMORY = (-26, -27)
_SIZES = {"b": 1, "kb": 2**10, "mb": 2**20, "gb": 2**30, "tb": 2**40, "pb": 2**50}
_UNUSABLE = ("down", "offline", "unknown", "stale", "maintenance", "provisioning", "sleep")
_IDS_ASKED = 5000
"""The most jobs in one question: those of the history of weeks are more words than a command may have."""


@dataclass(frozen=True)
class PbsOptions(QueueOptions):
    """The options of the engine `pbs`: those of `QueueOptions`, and what only PBS has."""

    folder: str = "~/.ropewalk/pbs"
    """A folder that all hosts share, for credentials and the output of jobs."""
    account: str = ""
    """The account string of the jobs (`qsub -A`); `project` is `qsub -P`."""
    gpu_resource: str = "ngpus"
    """The cluster's name for a GPU."""
    chunk: str = ""
    """Further resources of the job's chunk, such as "mem=8gb:model=a100"."""
    place: str = "pack"
    """How the job is placed (`qsub -l place=`), such as "excl"."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.time and not re.fullmatch(r"\d+(:\d\d){0,2}", self.time):
            raise ValueError(f"time is written seconds, minutes:seconds or hours:minutes:seconds, not {self.time!r}")
        refuse_own_flags(self.extra, _OWN_FLAGS, "qsub")


class PbsEngine(QueueEngine):
    """Speaks to PBS through its commands; see `PbsOptions` for its options."""

    name = "pbs"
    system = "PBS"
    submit_command = "qsub"
    commands = _COMMANDS
    id_form = re.compile(r"(?P<job>\d+)(?:\[(?P<task>\d+)\])?(?:\.[\w.-]+)?")
    gone = "unknown job id|job has finished|request invalid for state of job|job is not running"
    needed = ("qsub", "qselect", "qstat", "qsig", "qdel", "pbsnodes")
    probes = (("version of PBS", ("qstat", "--version")), ("server", ("qstat", "-B")), ("queue", ("qstat", "-Q")))
    size_advice = "or give the size of jobs with the option processes_per_job"
    task_number = "${PBS_ARRAY_INDEX:-0}"

    def __init__(self, options: Mapping[str, object] | None = None) -> None:
        self.options = read_options(self.name, PbsOptions, options or {})
        super().__init__(self.options, self.options.folder)

    def _message(self, spec: JobSpec, count: int, run_id: str, name: str, folder: str) -> tuple[list[str], str]:
        return qsub_flags(self.options, spec, count, name), self._script(spec, run_id, folder)

    def _read_ids(self, printed: str, count: int) -> list[str] | None:
        match = re.fullmatch(r"(\d+)(\[\])?(\.[\w.-]+)?", printed.strip())
        if match is None or bool(match[2]) != (count > 1):
            return None
        server = match[3] or ""
        return [f"{match[1]}[{task}]{server}" for task in range(count)] if count > 1 else [match[1] + server]

    def _queue(self) -> dict[str, BatchJob]:
        ids = self._ask("qselect", "-x", "-u", user_name()).split()
        jobs: dict[str, BatchJob] = {}
        for start in range(0, len(ids), _IDS_ASKED):
            jobs |= self._listed(ids[start : start + _IDS_ASKED])
        return jobs

    def _listed(self, ids: Sequence[str]) -> dict[str, BatchJob]:
        try:
            printed = self._ask("qstat", "-x", "-t", "-f", "-F", "json", *ids)
        except EngineError as error:  # a job was forgotten meanwhile; the others are listed all the same
            if not re.search(self.gone, words_of(error), re.IGNORECASE):
                raise
            printed = printed_by(error) or "{}"
        with answer_of("qstat"):
            return {job.id: job for job in read_qstat(printed)}

    def _signal(self, ids: Sequence[str], signal: str) -> None:
        self._tell(["qsig", "-s", f"SIG{signal}"], ids)

    def _remove(self, ids: Sequence[str]) -> None:
        self._tell(["qdel"], ids)

    def _cluster_hosts(self) -> list[BatchHost]:
        printed = self._ask("pbsnodes", "-a", "-F", "json")
        with answer_of("pbsnodes"):
            return read_pbsnodes(printed, self.options.gpu_resource)


def qsub_flags(options: PbsOptions, spec: JobSpec, count: int, name: str) -> list[str]:
    """Return the flags of qsub for the jobs of one request."""
    chunk = [f"ncpus={math.ceil(spec.resources.cpus)}"]
    if spec.resources.memory_bytes:
        chunk.append(f"mem={mib_of(spec.resources)}mb")
    if spec.resources.gpus:
        chunk.append(f"{options.gpu_resource}={spec.resources.gpus}")
    chunk += [options.chunk] if options.chunk else []
    flags = ["-N", name, "-S", "/bin/bash", "-j", "oe", "-o", "/dev/null"]
    flags += ["-C", ""]  # no line of the script is a directive, whatever it holds
    # Arrays are always rerunnable; a task that is started again finds no credentials and ends.
    flags += ["-J", f"0-{count - 1}"] if count > 1 else ["-r", "n"]
    flags += ["-l", f"select=1:{':'.join(chunk)}"]
    flags += ["-l", f"place={options.place}"] if options.place else []
    limit = f"{hours_and_minutes(spec.time_limit_s)}:00" if spec.time_limit_s is not None else options.time
    flags += ["-l", f"walltime={limit}"] if limit else []
    flags += given_flags({"-q": options.queue, "-A": options.account, "-P": options.project})
    return [*flags, *options.extra]


# --- What PBS prints --------------------------------------------------------------------------------------------------


def read_qstat(text: str) -> list[BatchJob]:
    """Read the output of `qstat -x -t -f -F json`: jobs, and the tasks of arrays in place of the arrays.

    Raises:
        ValueError: the text is not such an output.
    """
    with records_of("qstat -F json"):
        records: dict[str, dict[str, Any]] = json.loads(text, strict=False).get("Jobs", {})
        return [
            BatchJob(id, str(record.get("Job_Name", "")), _status(record), record["job_state"] == "R")
            for id, record in records.items()
            if "[]" not in id
        ]


def _status(record: Mapping[str, Any]) -> JobStatus:
    state = str(record["job_state"])
    comment = str(record.get("comment", ""))
    words = _WORDS_OF_STATES.get(state, "")
    if state in _PENDING:
        return JobStatus(JobState.PENDING, reason=": ".join(filter(None, [words, comment])))
    if state in _ALIVE:
        return JobStatus(JobState.RUNNING, reason=words)
    status = record.get("Exit_status")  # missing for a job that was deleted before it started
    return JobStatus(JobState.ENDED, *_end(None if status is None else int(status), comment))


def _end(status: int | None, comment: str) -> tuple[int | None, str]:
    """Return our exit code and the reason, from Exit_status and comment of pbs_job_attributes(7B)."""
    if status is None:
        return None, comment or "it was deleted before it started"
    if status < 0:
        words = _WORDS_OF_EXITS.get(status, "PBS ended it, or could not start it")
        return -9 if status in _OUT_OF_MEMORY else None, f"{words} (Exit_status {status}; {comment or 'no comment'})"
    if status >= 128:  # 256 and the number of the signal if PBS saw it, 128 and the number if the shell did
        return -(status % 128), comment or f"it was killed by signal {status % 128}"
    return status, comment if status else ""


def read_pbsnodes(text: str, gpu_resource: str = "ngpus") -> list[BatchHost]:
    """Read the output of `pbsnodes -a -F json`; the virtual nodes of one host count as one.

    Args:
        text: the output.
        gpu_resource: the cluster's name for a GPU.

    Returns:
        The hosts.

    Raises:
        ValueError: the text is not such an output.
    """
    with records_of("pbsnodes -F json"):
        nodes: dict[str, dict[str, Any]] = json.loads(text, strict=False).get("nodes", {})
        found: dict[str, list[BatchHost]] = {}
        for host in _hosts(nodes, gpu_resource):
            found.setdefault(host.name, []).append(host)
        return [_joined(parts) for parts in found.values()]


def _hosts(nodes: Mapping[str, Mapping[str, Any]], gpu_resource: str) -> Iterator[BatchHost]:
    for name, node in nodes.items():
        has: Mapping[str, Any] = node.get("resources_available", {})
        memory = _size(str(has.get("mem", "")))
        room = HostCapacity(int(has.get("ncpus", node.get("pcpus", 0))), int(has.get(gpu_resource, 0)), memory)
        is_usable = not any(word in str(node.get("state", "")) for word in _UNUSABLE)
        yield BatchHost(str(has.get("host", name)), room, is_usable)


def _joined(parts: Sequence[BatchHost]) -> BatchHost:
    rooms = [part.room for part in parts]
    memories = [room.memory_bytes for room in rooms if room.memory_bytes is not None]
    whole = HostCapacity(sum(room.cpus for room in rooms), sum(room.gpus for room in rooms), sum(memories) or None)
    return BatchHost(parts[0].name, whole, any(part.is_usable for part in parts))


def _size(text: str) -> int | None:
    match = re.fullmatch(r"(\d+)([kmgtp]?b)", text.strip().lower())
    return int(match[1]) * _SIZES[match[2]] if match else None
