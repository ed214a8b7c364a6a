"""Reads what Slurm reports of jobs: the JSON of squeue in its versions, the text of scontrol and of sacct.

Each version writes the same facts differently:

    squeue --json, 21.08 and 22.05    "job_state": "FAILED"     "exit_code": 1792 (a wait status)
    squeue --json, 23.02              "job_state": "FAILED"     "exit_code": {"set": true, ..., "number": 1792}
    squeue --json, 23.11 and newer    "job_state": ["FAILED"]   "exit_code": {"return_code": ..., "signal": ...}
    scontrol --oneliner show job      JobState=FAILED           ExitCode=7:0
    sacct --parsable2                 |FAILED|                  |7:0|

Tasks of an array that have not started share one record, which lists them as "3-5,9"; here each is a job of its own.

The text of scontrol does not tell a field from a name or a remark that looks like one, so it is only read of jobs of
this user: others choose the texts of theirs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from ropewalk.engines.cluster_commands import records_of
from ropewalk.engines.engine import JobState, JobStatus
from ropewalk.engines.job_script import NO_CREDENTIALS, NOT_OURS, not_ours, not_shared

QUEUE_FORMAT = "%i|%T|%r|%N|%P|%j"
"""`--format` of `squeue --array`, as `read_queue` expects it. The name comes last, as it may hold a vertical bar."""
SACCT_FIELDS = "JobID,JobName,User,State,ExitCode,NodeList"
"""`--parsable2 --format` of sacct, as `read_sacct` expects it."""

_PENDING = {"PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "RESV_DEL_HOLD", "SPECIAL_EXIT", "CONFIGURING"}
_ALIVE = {"RUNNING", "SUSPENDED", "COMPLETING", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING", "EXPEDITING"}
_JOB_ID = re.compile(r"\d+(_\d+)?")
_SEE_FOLDER = "(see the option folder)"
_NO_FILES = 53
"""The signal that Slurm reports instead of an exit code when it could not even open the job's files."""

_WORDS_OF_STATES = {
    "SUSPENDED": "it is stopped for the moment, by the administrator or to make room for others",
    "COMPLETING": "it is being ended",
    "CANCELLED": "it was cancelled, with scancel or by the administrator",
    "TIMEOUT": "it reached its time limit; ask for more with the time limit of the run",
    "NODE_FAIL": "the node failed or lost its connection to Slurm",
    "PREEMPTED": "a job of higher priority took its place",
    "OUT_OF_MEMORY": "it used more memory than it had asked for; ask for more with the memory of the run",
    "BOOT_FAIL": "the node could not be booted",
    "DEADLINE": "it could not end before its deadline",
    "REVOKED": "another cluster of the federation runs it",
}

_WORDS_OF_REASONS = {
    "None": "Slurm has not looked at it yet",
    "Resources": "the nodes are busy; it starts when enough is free",
    "Priority": "jobs of higher priority wait before it",
    "Dependency": "it waits for another job",
    "BeginTime": "its time has not come yet",
    "Cleaning": "an earlier run of it is being cleaned up",
    "InactiveLimit": "it was idle for too long",
    "JobArrayTaskLimit": "as many tasks of the array run as may run at once",
    "JobHeldAdmin": "an administrator holds it; only an administrator can release it",
    "JobHeldUser": "it is held; release it with scontrol release",
    "Licenses": "the licences it needs are in use",
    "MaxMemPerLimit": "it asks for more memory for each CPU or node than is allowed",
    "NodeDown": "a node that it needs is down",
    "PartitionDown": "the partition is closed for now",
    "PartitionInactive": "the partition is switched off",
    "PartitionConfig": "it asks for something that the partition does not allow",
    "PartitionNodeLimit": "the partition does not allow its number of nodes, or nodes that it needs are down",
    "PartitionTimeLimit": "its time limit is longer than the partition allows; ask for less time",
    "ReqNodeNotAvail": "nodes that it needs are down, drained or reserved",
    "Reservation": "its reservation has not begun",
    "ReservationDeleted": "its reservation does not exist any more",
    "BadConstraints": "no node can fulfil what it asks for",
    "AccountNotAllowed": "the account may not use this partition",
    "QOSNotAllowed": "the quality of service may not be used here",
    "InvalidAccount": "the account is not valid",
    "InvalidQOS": "the quality of service is not valid",
    "DependencyNeverSatisfied": "the job that it waits for has failed",
    "JobLaunchFailure": "it could not be launched on its node",
    "launch_failed_requeued_held": "it could not be launched and is held; release it with scontrol release",
}
_OF_ONE_JOB = "((?!Minutes).)*Per(Job|Node)(Limit)?$"
"""Ends the names of limits that a job exceeds by itself. Those of minutes are left out: sites lower and raise them with
what is left of a budget.
"""
_WORDS_OF_KINDS = (
    (f"QOSMax{_OF_ONE_JOB}", "it asks for more than the quality of service allows a job; ask for less"),
    (f"AssocMax{_OF_ONE_JOB}", "it asks for more than the account or the user may have in a job; ask for less"),
    ("QOSMax", "a limit of the quality of service is reached"),
    ("QOSGrp", "a limit of the quality of service is reached"),
    ("QOSMin", "it asks for less than the quality of service demands"),
    ("Assoc", "a limit of the account or the user is reached"),
    ("MaxCpuPer", "a limit of CPUs is reached"),
    ("ReqNodeNotAvail", "nodes that it needs are down, drained or reserved"),
)
_NEVER = re.compile(f"BadConstraints|DependencyNeverSatisfied|ReservationDeleted|AssocMax{_OF_ONE_JOB}")
"""Reasons that neither time nor the end of other jobs removes (https://slurm.schedmd.com/job_reason_codes.html). All
others may go: a hold is released, an account is known again when slurmdbd is back, a node or a budget comes back.
"""
_NEVER_HERE = re.compile(
    f"PartitionTimeLimit|AccountNotAllowed|MaxMemPerLimit|QOSNotAllowed|QOSMin.*|QOSMax{_OF_ONE_JOB}"
)
"""The same of limits that a partition may have; a job that waits in several may start in another one."""


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """One job, or one task of an array."""

    id: str
    """The id as users write it: "8812", or "8812_3" for a task of an array."""
    name: str
    user: str
    state: str
    """Slurm's own word, such as "RUNNING"."""
    reason: str = ""
    exit_code: int | None = None
    """The exit status, negative for a signal, or None if there is none."""
    nodes: str = ""
    has_no_files: bool = False
    """Whether Slurm could not open its files on the node."""
    partitions: str = ""
    """The partitions in which it waits, separated by commas, or the one in which it runs; empty if that is not known.
    """

    @property
    def is_over(self) -> bool:
        return self.state not in _PENDING | _ALIVE

    @property
    def is_pending(self) -> bool:
        return self.state in _PENDING


def status_of(job: SlurmJob, folder: str = "") -> JobStatus:
    """Return the status of a job, with a reason that users understand.

    Args:
        job: the job.
        folder: the folder of its files, as the launcher names it, for the reason of a job whose node does not see it.
    """
    where = f" on {job.nodes}" if job.nodes else ""
    words = _WORDS_OF_STATES.get(job.state, "")
    if job.is_pending:
        return JobStatus(JobState.PENDING, reason=_pending(job), hopeless=_never_starts(job))
    if not job.is_over:
        return JobStatus(JobState.RUNNING, reason=f"{job.state}{where}: {words}" if words else "")
    if job.state == "COMPLETED":
        return JobStatus(JobState.ENDED, job.exit_code or 0)
    if job.has_no_files or job.exit_code == NO_CREDENTIALS:
        return _unshared(job, folder)
    if job.exit_code == NOT_OURS:
        return JobStatus(JobState.ENDED, NOT_OURS, not_ours(_node(job), folder or _SEE_FOLDER, "slurm"), hopeless=True)
    exit_code = -9 if job.state == "OUT_OF_MEMORY" else job.exit_code or None
    return JobStatus(JobState.ENDED, exit_code, f"{job.state}{where}" + (f": {words}" if words else ""))


def _unshared(job: SlurmJob, folder: str) -> JobStatus:
    """Return the status of a job that did not find its files on its node: others would not find theirs."""
    return JobStatus(
        JobState.ENDED,
        job.exit_code or None,
        f"{not_shared(_node(job), folder or _SEE_FOLDER, 'slurm')}, "
        f"or leave out {job.nodes or 'that node'} with the option exclude",
        # A job that was started a second time finds no credentials either, and may be replaced.
        hopeless=job.has_no_files,
    )


def _node(job: SlurmJob) -> str:
    return f"node {job.nodes}" if job.nodes else "its node"


def _pending(job: SlurmJob) -> str:
    reason = job.reason.split("(")[0].strip(" ,") or "None"
    words = _WORDS_OF_REASONS.get(reason.split(",")[0]) or next(
        (words for kind, words in _WORDS_OF_KINDS if re.match(kind, reason)), ""
    )
    if job.state == "CONFIGURING":
        return "CONFIGURING: its node is being prepared"
    return f"{job.reason or 'None'}: {words}" if words else job.reason


def _never_starts(job: SlurmJob) -> bool:
    is_in_one = bool(job.partitions) and "," not in job.partitions
    return bool(_NEVER.fullmatch(job.reason) or (is_in_one and _NEVER_HERE.fullmatch(job.reason)))


# --- squeue -----------------------------------------------------------------------------------------------------------


def read_squeue(text: str) -> list[SlurmJob]:
    """Read the output of `squeue --json`.

    Raises:
        ValueError: the text is not such an output.
    """
    with records_of("squeue --json"):
        records: list[dict[str, Any]] = json.loads(text)["jobs"]
        return [job for record in records for job in _jobs_of_record(record)]


def _jobs_of_record(record: Mapping[str, Any]) -> Iterator[SlurmJob]:
    array, task = _number(record.get("array_job_id")), _number(record.get("array_task_id"))
    code, has_no_files = _exit_code(record.get("exit_code"))
    waiting = str(record.get("array_task_string") or "")
    for id in _ids(_number(record["job_id"]) or 0, array or 0, task, waiting):
        yield SlurmJob(
            id=id,
            name=str(record.get("name") or ""),
            user=str(record.get("user_name") or ""),
            state=_state(record["job_state"]),
            reason=_reason(record.get("state_reason")),
            exit_code=code,
            nodes=str(record.get("nodes") or ""),
            has_no_files=has_no_files,
            partitions=str(record.get("partition") or ""),
        )


def _ids(job: int, array: int, task: int | None, waiting: str) -> Iterator[str]:
    if not array:
        yield str(job)
    elif waiting:
        for each in expand_tasks(waiting):
            yield f"{array}_{each}"
    elif task is not None:
        yield f"{array}_{task}"
    # Otherwise the record remains of an array whose last waiting tasks were cancelled one by one.


def expand_tasks(text: str) -> list[int]:
    """Return the numbers in Slurm's list of array tasks, such as "0-3,7,10-20:5%4"."""
    tasks: list[int] = []
    for part in text.split("%")[0].strip("[]").split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?(?::(\d+))?", part.strip())
        if match:  # "..." does not match: a longer list was cut there
            first, last, step = match.groups()
            tasks.extend(range(int(first), int(last or first) + 1, int(step or 1)))
    return tasks


def _number(value: object) -> int | None:
    """Return a number that is written plainly or as `{"set": ..., "infinite": ..., "number": ...}`."""
    if isinstance(value, Mapping):
        told = cast(Mapping[str, object], value)
        return _number(told.get("number")) if told.get("set", True) and not told.get("infinite") else None
    if isinstance(value, int | float):
        return int(value)
    return int(value) if isinstance(value, str) and value.isdecimal() else None


def _state(value: object) -> str:
    """Return the state of a job; newer versions list a base state and flags, of which a flag takes precedence."""
    words = [str(each) for each in cast(list[object], value)] if isinstance(value, list) else [str(value)]
    for passing in ("COMPLETING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD"):
        if passing in words:
            return passing
    return words[0].split()[0].rstrip("+") if words and words[0] else "UNKNOWN"


def _reason(value: object) -> str:
    return "" if value is None else str(value)


def _exit_code(value: object) -> tuple[int | None, bool]:
    if isinstance(value, Mapping) and "number" not in value:
        told = cast(Mapping[str, Any], value)
        signal: Mapping[str, Any] = told.get("signal") or {}
        number = _number(signal.get("id", signal.get("signal_id"))) or 0
        return _ended(_number(told.get("return_code")) or 0, number)
    status = _number(cast(object, value))
    return (None, False) if status is None else _ended(status >> 8, status & 0x7F)


def _ended(code: int, signal: int) -> tuple[int | None, bool]:
    """Return our exit code. Slurm uses signal 53 for files that it could not open, 125 for out of memory."""
    if signal == _NO_FILES:
        return None, True
    return -signal if signal else code, False


def read_queue(text: str, user: str) -> list[SlurmJob]:
    """Read the output of `squeue --array --noheader --format=QUEUE_FORMAT`, which does not tell exit codes.

    Args:
        text: the output.
        user: whose jobs it lists.
    """
    jobs: list[SlurmJob] = []
    for line in text.split("\n"):
        id, *facts = line.split("|", 5)
        if _JOB_ID.fullmatch(id) and len(facts) == 5:
            state, reason, nodes, partitions, name = facts
            jobs.append(SlurmJob(id, name, user, _state(state), reason, None, nodes, partitions=partitions))
    return jobs


# --- scontrol and sacct -----------------------------------------------------------------------------------------------


def read_scontrol(text: str) -> list[SlurmJob]:
    """Read the output of `scontrol --oneliner show job`."""
    jobs: list[SlurmJob] = []
    for line in text.splitlines():
        # Names of jobs may hold spaces; the names of our jobs do not.
        facts = dict(re.findall(r"(?:^|\s)([A-Za-z:/]+)=(\S*)", line))
        if "JobId" not in facts or "JobState" not in facts:
            continue
        array, tasks = int(facts.get("ArrayJobId", 0)), facts.get("ArrayTaskId", "")
        code, has_no_files = _pair(facts.get("ExitCode", ""))
        for id in _ids(int(facts["JobId"]), array, None, tasks):
            jobs.append(
                SlurmJob(
                    id=id,
                    name=facts.get("JobName", ""),
                    user=facts.get("UserId", "").split("(")[0],
                    state=_state(facts["JobState"]),
                    reason=facts.get("Reason", ""),
                    exit_code=code,
                    nodes=facts.get("NodeList", "").replace("(null)", ""),
                    has_no_files=has_no_files,
                )
            )
    return jobs


def read_sacct(text: str) -> list[SlurmJob]:
    """Read the output of `sacct --noheader --parsable2 --allocations --array` with `SACCT_FIELDS`."""
    jobs: list[SlurmJob] = []
    for line in text.splitlines():
        fields = line.split("|")
        if len(fields) != len(SACCT_FIELDS.split(",")):
            continue
        id, name, user, state, exit_code, nodes = fields
        code, has_no_files = _pair(exit_code)
        array, _, tasks = id.partition("_")
        ids = [f"{array}_{each}" for each in expand_tasks(tasks)] if tasks else [id]
        nodes = "" if nodes == "None assigned" else nodes
        jobs += [SlurmJob(each, name, user, _state(state), "", code, nodes, has_no_files) for each in ids]
    return jobs


def _pair(text: str) -> tuple[int | None, bool]:
    """Read an exit code that is written "code:signal"."""
    match = re.fullmatch(r"(\d+):(\d+)", text)
    return _ended(int(match[1]), int(match[2])) if match else (None, False)
