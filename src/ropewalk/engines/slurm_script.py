"""Renders requests to Slurm as text: the options of sbatch, the flags of a job, and its batch script.

Everything here is a pure function, so that the text can be shown (`--dry-run`) and compared before it is sent.
Options are passed as flags and not as `#SBATCH` lines: flags win over variables such as SBATCH_EXPORT, and no text of
a user can break out of them.

The script is that of `job_script`: the agent takes the place of the batch shell, so that the signals that Slurm sends
to that shell (`--signal=B:USR1`, SIGTERM) reach the agent itself.
"""

from __future__ import annotations

import math
import re
import sys
from dataclasses import dataclass, field

from ropewalk.engines.batch_sizes import mib_of
from ropewalk.engines.engine import JobSpec
from ropewalk.engines.job_script import SCRIPT_DESCRIPTOR, job_script
from ropewalk.engines.options import refuse_control_characters
from ropewalk.engines.slurm_nodes import expand_names, read_time, write_time
from ropewalk.near_names import check_choice

_OURS = frozenset(
    [
        "--array",
        "--export",
        "--export-file",
        "--get-user-env",
        "--output",
        "--open-mode",
        "--error",
        "--input",
        "--parsable",
        "--wrap",
        "--wait",
        "--job-name",
        "--requeue",
        "--no-requeue",
        "--nodes",
        "--ntasks",
        "--ntasks-per-node",
        "--cpus-per-task",
        "--signal",
        "--hold",
        "--test-only",
        "--clusters",
        "--quiet",
        "--help",
        "--usage",
        "--version",
    ]
)
"""Flags of sbatch that the engine itself sets; another value would break its guarantees."""
_UNSET = ("SLURM_BITSTR_LEN", "SLURM_JWT")
"""Variables of Slurm's commands, which jobs must not inherit."""


@dataclass(frozen=True)
class SlurmOptions:
    """The options of the engine `slurm`; options without a docstring are the flags of sbatch of the same name."""

    inside: str = "auto"
    """The mode inside an allocation: "auto" runs agents on its nodes, "submit" submits further jobs."""
    partition: str = ""
    account: str = ""
    qos: str = ""
    constraint: str = ""
    reservation: str = ""
    exclude: str = ""
    nodelist: str = ""
    gres: str = ""
    """Further generic resources, such as "nvme:1"; GPUs are requested by the resources of processes."""
    gpu_type: str = ""
    """The type of the GPUs, such as "a100"."""
    exclusive: bool = False
    """Whether each job has its node for itself."""
    mem: str = ""
    """Memory of a job when its processes ask for none, such as "8G"."""
    time: str = ""
    """Time limit of a job when the run sets none, such as "2:00:00"; the partition's default if empty."""
    processes_per_job: int | None = None
    """The most processes in one job; None fills nodes."""
    notice_s: int = 60
    """Seconds before the time limit of a job at which its agent is notified by SIGUSR1; 0 for no notice."""
    folder: str = "~/.ropewalk/slurm"
    """A folder that all hosts share, for credentials and the output of jobs."""
    python: str = sys.executable
    """The Python interpreter on the nodes."""
    setup: list[str] = field(default_factory=list[str])
    """Lines of shell before the agent starts, such as "module load python"; the script is then a login shell.

    The first line that fails ends the job, and the run with the reason if no other job is up.
    """
    extra: list[str] = field(default_factory=list[str])
    """Further flags of sbatch, such as "--mail-type=END"."""
    timeout_s: float = 20.0
    """The timeout of a Slurm command, in seconds."""

    def __post_init__(self) -> None:
        refuse_control_characters(vars(self))
        if "\\" in self.folder:
            raise ValueError(f"folder must hold no backslash, which Slurm would interpret itself, not {self.folder!r}")
        check_choice("inside", self.inside, ("auto", "submit"))
        if self.time:
            read_time(self.time)
        expand_names(self.exclude)
        if (
            self.timeout_s <= 0
            or self.notice_s < 0
            or (self.processes_per_job is not None and self.processes_per_job < 1)
        ):
            raise ValueError("timeout_s and processes_per_job must be above 0, and notice_s 0 or more")
        if len(expand_names(self.nodelist)) > 1:
            raise ValueError(
                f"nodelist={self.nodelist} names several nodes, and Slurm would give all of them to each job; name "
                "one, or use exclude, constraint or reservation to choose among nodes"
            )
        for word in self.extra:
            if not re.match(r"--[a-z]", word):
                raise ValueError(f"extra must hold long flags of sbatch, such as --mail-type=END, not {word!r}")
            if word.split("=")[0] in _OURS:
                raise ValueError(f"extra must not hold {word}: the engine sets it itself")


def job_flags(options: SlurmOptions, spec: JobSpec) -> list[str]:
    """Return the flags of sbatch for one job.

    Raises:
        ValueError: the option `mem` is not a size.
    """
    wanted = {
        "nodes": "1",
        "ntasks": "1",
        "cpus-per-task": str(math.ceil(spec.resources.cpus)),
        "mem": f"{mib_of(spec.resources)}M" if spec.resources.memory_bytes else options.mem,
        "gres": ",".join(filter(None, [_gpus(options, spec), options.gres])),
        "time": write_time(spec.time_limit_s) if spec.time_limit_s is not None else options.time,
        "signal": f"B:USR1@{options.notice_s}" if options.notice_s else "",
    }
    for name in ("partition", "account", "qos", "constraint", "reservation", "exclude", "nodelist"):
        wanted[name] = getattr(options, name)
    flags = [f"--{name}={value}" for name, value in wanted.items() if value]
    if options.exclusive:
        flags.append("--exclusive")
    # A restart is always a fresh submission. The environment of sbatch itself is nearly empty, see run_command.
    return [*flags, "--no-requeue", "--export=ALL", *options.extra]


def _gpus(options: SlurmOptions, spec: JobSpec) -> str:
    if not spec.resources.gpus:
        return ""
    return ":".join(filter(None, ["gpu", options.gpu_type, str(spec.resources.gpus)]))


def step_flags(options: SlurmOptions, spec: JobSpec, allocation: str, node: str, gpus_there: int) -> list[str]:
    """Return the flags of srun for one step of an allocation.

    Args:
        options: the options of the engine.
        spec: the job.
        allocation: the id of the allocation.
        node: the node on which the step runs.
        gpus_there: the number of GPUs that the allocation has on that node.

    Returns:
        The flags, without the command.
    """
    gpus = _gpus(options, spec) or ("none" if gpus_there and not options.gres else "")
    wanted = {
        "jobid": allocation,
        "nodelist": node,
        "nodes": "1",
        "ntasks": "1",
        "cpus-per-task": str(math.ceil(spec.resources.cpus)),
        # Without this flag a step takes all memory, and the next step waits; 0 shares it.
        "mem": f"{mib_of(spec.resources)}M" if spec.resources.memory_bytes else options.mem or "0",
        "gres": ",".join(filter(None, [gpus, options.gres])),
        "time": write_time(spec.time_limit_s) if spec.time_limit_s is not None else options.time,
    }
    flags = [f"--{name}={value}" for name, value in wanted.items() if value]
    return [*flags, "--exact", "--mpi=none", "--input=none", "--export=ALL"]


def step_script(options: SlurmOptions, spec: JobSpec, run_id: str, folder: str) -> str:
    """Return the script of each step of a request; as `batch_script`, but it takes its number and writes its own log.

    The output does not flow through srun, so that no output is lost if srun ends.
    """
    script = job_script("slurm", spec, run_id, folder, '"$1"', setup=options.setup, unset=_UNSET, writes_log=True)
    return f"{script.removesuffix(chr(10))} {SCRIPT_DESCRIPTOR}<&-\n"  # the job does not inherit it


def batch_script(options: SlurmOptions, spec: JobSpec, run_id: str, folder: str) -> str:
    """Return the script of each job of a request.

    Args:
        options: the options of the engine.
        spec: the job; its `stdin` does not appear in the script.
        run_id: the run, for the job's environment.
        folder: the folder with the files of standard inputs, if the job has one.

    Returns:
        The text of the script.

    Raises:
        ValueError: the environment has a name or value that no shell can set.
    """
    number = "${SLURM_ARRAY_TASK_ID:-0}"
    return job_script("slurm", spec, run_id, folder, number, setup=options.setup, unset=_UNSET)
