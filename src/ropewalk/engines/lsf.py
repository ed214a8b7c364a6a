"""The engine for IBM Spectrum LSF: bsub submits jobs, bjobs lists them, bkill ends them.

It is tested with stand-ins for these commands and has never run on a real cluster. The options and formats are those
of "IBM Spectrum LSF command reference 10.1" (bsub, bjobs -o -json, bkill, bhosts -o -json), which needs LSF 10.1.0.2.

    submit ─▶ bsub -J "name[1-3]" < script
    poll   ─▶ bjobs -a -u USER -o "..." -json
    cancel ─▶ bkill -s KILL to running jobs, then bkill

LSF forgets jobs that have ended after an hour (CLEAN_PERIOD of lsb.params). The tasks of an array are counted from 1,
the jobs of a request from 0.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ropewalk.engines.batch import BatchJob, user_name
from ropewalk.engines.batch_queue import QueueEngine, QueueOptions, given_flags, refuse_own_flags
from ropewalk.engines.batch_sizes import BatchHost, hours_and_minutes, mib_of
from ropewalk.engines.cluster_commands import ClusterCommands, answer_of, records_of, words_of
from ropewalk.engines.engine import JobSpec, JobState, JobStatus
from ropewalk.engines.options import read_options
from ropewalk.engines.resources import HostCapacity
from ropewalk.errors import EngineError

BJOBS_FIELDS = "jobid jobindex job_name stat exit_code exit_reason pend_reason exec_host"
"""`-o` of bjobs, as `read_bjobs` expects it."""
BHOSTS_FIELDS = "host_name status max"
"""`-o` of bhosts, as `read_bhosts` expects it."""

_COMMANDS = ClusterCommands(
    missing=(
        "run the launcher where the commands of LSF are (a login node, or inside a job), and source the profile.lsf "
        "of the cluster first"
    ),
    silent="are LSF's daemons up (lsid, badmin showstatus)?",
    away="LSF does not answer, lsid tells more",
    passing=(
        "lsf is down",
        "lsf is processing",
        "cannot connect to lsf",
        "daemon not responding",
        "communication time out",
        "connection refused",
        "slave lim configuration is not ready",
    ),
    advice=(
        ("no such queue", "choose a queue with the option queue (bqueues lists them)"),
        ("cannot use the queue", "choose another queue with the option queue (bqueues -u USER lists yours)"),
        ("project", "choose a project of yours with the option project"),
        ("user group", "choose a group of yours with the option user_group (bugroup lists them)"),
        (
            "resource requirement",
            "the option resources must hold requirement strings (lsinfo lists resources)",
        ),
        ("runlimit", "ask for less time, or choose another queue with the option queue (bqueues -l shows limits)"),
        ("run limit", "ask for less time, or choose another queue with the option queue (bqueues -l shows limits)"),
        ("pending job", "you have as many jobs in the queue as you may; wait, or ask for fewer processes"),
        ("array", "the cluster allows smaller arrays only (MAX_JOB_ARRAY_SIZE); ask for fewer jobs at once"),
    ),
    kept=("LSF_ENVDIR", "LSF_SERVERDIR", "LSF_BINDIR", "LSF_LIBDIR", "XLSF_UIDDIR", "LD_LIBRARY_PATH"),
)
_OWN_FLAGS = r"-(?:J|o|oo|e|eo|i|is|I\w*|K|H|n|r|rn|env|L|pack|Zs|tty)$"
"""Flags of bsub that the engine itself sets, or that would break its guarantees."""
_PENDING = ("PEND", "PSUSP", "WAIT", "FWD_PEND", "PROV")
_ENDED = ("DONE", "EXIT")
_WORDS_OF_STATES = {
    "PSUSP": "it is held; bresume releases it",
    "USUSP": "it was suspended by its user or the administrator",
    "SSUSP": "it was suspended by LSF, to make room for others or because its host is loaded",
    "UNKWN": "its host does not answer LSF",
    "ZOMBI": "it was ended while its host did not answer LSF",
}
_ADVICE_FOR_ENDS = (
    ("TERM_MEMLIMIT", "ask for more with the memory of the run"),
    ("TERM_RUNLIMIT", "ask for more with the time limit of the run"),
    ("TERM_PREEMPT", "a job of higher priority took its place"),
)


@dataclass(frozen=True)
class LsfOptions(QueueOptions):
    """The options of the engine `lsf`: those of `QueueOptions`, and what only LSF has."""

    folder: str = "~/.ropewalk/lsf"
    """A folder that all hosts share, for credentials and the output of jobs."""
    user_group: str = ""
    """The user group of the jobs (`bsub -G`); `project` is `bsub -P`."""
    gpu: str = ""
    """Further requirements for GPUs, such as "mode=exclusive_process"; their number comes from the processes."""
    gpus_per_host: int = 0
    """The GPUs of a host, which LSF does not report with the sizes of hosts."""
    resources: list[str] = field(default_factory=list[str])
    """Further resource requirement strings (`bsub -R`), such as "select[type==X86_64]"."""
    reserve_per_task: bool = False
    """Whether the cluster reserves memory for each slot (RESOURCE_RESERVE_PER_TASK=y), not for each host."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.time and not re.fullmatch(r"\d+(:\d+)?", self.time):
            raise ValueError(f"time is written minutes or hours:minutes, not {self.time!r}")
        if self.gpus_per_host < 0:
            raise ValueError("gpus_per_host must be 0 or more")
        refuse_own_flags(self.extra, _OWN_FLAGS, "bsub")


class LsfEngine(QueueEngine):
    """Speaks to LSF through its commands; see `LsfOptions` for its options."""

    name = "lsf"
    system = "LSF"
    submit_command = "bsub"
    commands = _COMMANDS
    id_form = re.compile(r"(?P<job>\d+)(?:\[(?P<task>\d+)\])?")
    gone = "already finished|is not found|no matching job|no unfinished job|no job found|job has finished"
    needed = ("bsub", "bjobs", "bkill", "bhosts")
    probes = (("cluster", ("lsid",)), ("queue", ("bqueues",)))
    size_advice = (
        "give the GPUs of a host with the option gpus_per_host, or the size of jobs with the option processes_per_job"
    )
    task_number = "$((${LSB_JOBINDEX:-0} > 0 ? LSB_JOBINDEX - 1 : 0))"

    def __init__(self, options: Mapping[str, object] | None = None) -> None:
        self.options = read_options(self.name, LsfOptions, options or {})
        super().__init__(self.options, self.options.folder)

    def _message(self, spec: JobSpec, count: int, run_id: str, name: str, folder: str) -> tuple[list[str], str]:
        return bsub_flags(self.options, spec, count, name), self._script(spec, run_id, folder)

    def _read_ids(self, printed: str, count: int) -> list[str] | None:
        match = re.search(r"^Job <(\d+)> is submitted", printed, re.MULTILINE)
        if match is None:
            return None
        return [f"{match[1]}[{task}]" for task in range(1, count + 1)] if count > 1 else [match[1]]

    def _number(self, id: str) -> int:
        return max(0, super()._number(id) - 1)

    def _queue(self) -> dict[str, BatchJob]:
        try:
            printed = self._ask("bjobs", "-a", "-u", user_name(), "-o", BJOBS_FIELDS, "-json")
        except EngineError as error:
            if re.search(self.gone, words_of(error), re.IGNORECASE):
                return {}
            raise
        with answer_of("bjobs"):
            return {job.id: job for job in read_bjobs(printed)}

    def _signal(self, ids: Sequence[str], signal: str) -> None:
        self._tell(["bkill", "-s", signal], ids)

    def _remove(self, ids: Sequence[str]) -> None:
        self._tell(["bkill"], ids)

    def _cluster_hosts(self) -> list[BatchHost]:
        printed = self._ask("bhosts", "-X", "-o", BHOSTS_FIELDS, "-json")
        with answer_of("bhosts"):
            return read_bhosts(printed, self.options.gpus_per_host)


def bsub_flags(options: LsfOptions, spec: JobSpec, count: int, name: str) -> list[str]:
    """Return the flags of bsub for the jobs of one request."""
    slots = math.ceil(spec.resources.cpus)
    flags = ["-J", f"{name}[1-{count}]" if count > 1 else name, "-o", "/dev/null", "-rn"]
    flags += ["-n", str(slots), "-R", "span[hosts=1]"]
    if spec.resources.memory_bytes:
        mib = mib_of(spec.resources)
        flags += ["-R", f"rusage[mem={math.ceil(mib / slots) if options.reserve_per_task else mib}MB]"]
    if spec.resources.gpus:
        flags += ["-gpu", ":".join(filter(None, [f"num={spec.resources.gpus}", options.gpu]))]
    limit = hours_and_minutes(spec.time_limit_s) if spec.time_limit_s is not None else options.time
    flags += given_flags({"-W": limit, "-q": options.queue, "-P": options.project, "-G": options.user_group})
    for requirement in options.resources:
        flags += ["-R", requirement]
    return [*flags, *options.extra]


# --- What LSF prints --------------------------------------------------------------------------------------------------


def read_bjobs(text: str) -> list[BatchJob]:
    """Read the output of `bjobs -o BJOBS_FIELDS -json`.

    Raises:
        ValueError: the text is not such an output.
    """
    jobs: list[BatchJob] = []
    for record in _records(text):
        if "STAT" not in record:  # {"JOBID": ..., "ERROR": "Job <7> is not found"}
            continue
        number = str(record["JOBID"]).partition("[")[0]
        index = re.search(r"\d+", str(record.get("JOBINDEX", ""))) or re.search(r"(?<=\[)\d+", str(record["JOBID"]))
        id = f"{number}[{index[0]}]" if index and int(index[0]) else number
        name = re.sub(r"\[[^\]]*\](%\d+)?$", "", str(record.get("JOB_NAME", "")))
        jobs.append(BatchJob(id, name, _status(record), record["STAT"] == "RUN"))
    return jobs


def _records(text: str) -> list[dict[str, Any]]:
    with records_of("a command of LSF with -json"):
        records: list[dict[str, Any]] = json.loads(text, strict=False)["RECORDS"]
        if not all(isinstance(record, dict) for record in records):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError("a record is not a table")
        return records


def _status(record: Mapping[str, Any]) -> JobStatus:
    state = str(record["STAT"])
    words = _WORDS_OF_STATES.get(state, "")
    if state in _PENDING:
        return JobStatus(JobState.PENDING, reason=words or _told(record.get("PEND_REASON")))
    if state not in _ENDED:
        return JobStatus(JobState.RUNNING, reason=words)
    code = _exit_code(str(record.get("EXIT_CODE", "")))
    if state == "DONE":
        return JobStatus(JobState.ENDED, code or 0)
    killed = f"it was killed by signal {-code}" if code is not None and code < 0 else ""
    reason = _told(record.get("EXIT_REASON")) or killed
    advice = next((advice for term, advice in _ADVICE_FOR_ENDS if term in reason), "")
    return JobStatus(
        JobState.ENDED, -9 if "TERM_MEMLIMIT" in reason else code, "; ".join(filter(None, [reason, advice]))
    )


def _told(value: object) -> str:
    """Return a field of text; LSF writes a dash for one without a value."""
    return "" if value in (None, "-") else " ".join(str(value).split())


def _exit_code(text: str) -> int | None:
    """Return our exit code: LSF writes 128 and the number of the signal for a job that a signal has killed."""
    if not text.strip().isdecimal():
        return None
    code = int(text)
    return 128 - code if 128 < code <= 192 else code


def read_bhosts(text: str, gpus: int = 0) -> list[BatchHost]:
    """Read the output of `bhosts -o BHOSTS_FIELDS -json`; hosts without a limit of slots are left out.

    Args:
        text: the output.
        gpus: the GPUs of each host.

    Returns:
        The hosts; the limit of job slots counts as their CPUs.

    Raises:
        ValueError: the text is not such an output.
    """
    return [
        BatchHost(str(record.get("HOST_NAME", "")), HostCapacity(int(slots), gpus), record.get("STATUS") != "unavail")
        for record in _records(text)
        if (slots := str(record.get("MAX", ""))).isdecimal() and int(slots)
    ]
