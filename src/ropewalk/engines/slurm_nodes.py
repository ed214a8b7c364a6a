"""The nodes of a Slurm cluster, and how many jobs they can ever hold.

Slurm accepts a request that no node can fulfil and lets it wait for ever. These functions detect such a request before
it is sent, from the configured capacity of the nodes in the output of sinfo, busy or not.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ropewalk.engines.batch_sizes import hours_and_minutes
from ropewalk.engines.resources import HostCapacity, Resources

SINFO_FORMAT = "%N|%P|%o|%c|%m|%T|%a|%l|%h|%f|%G"
"""`--format` of sinfo, as `read_sinfo` expects it; no field contains a vertical bar."""

_GPU = re.compile(r"gpu(?::([^:,(]+))??:(\d+)(?:\([^)]*\))?(?:,|$)")
_UNUSABLE = ("down", "drain", "fail", "maint", "unk", "inval", "perfctrs", "future", "error")
_MIB = 2**20


@dataclass(frozen=True, slots=True)
class SlurmNode:
    """One host in one partition."""

    name: str
    partition: str
    is_default: bool
    """Whether its partition is used when none is named."""
    address: str
    """An IP address or a host name."""
    cpus: int
    memory_mib: int | None
    """None if the cluster does not report it."""
    gpus: int
    state: str
    is_open: bool
    """Whether its partition starts jobs."""
    time_limit_s: float | None
    jobs_per_cpu: int
    """How many jobs its partition puts on one CPU at the same time; 0 if a job has exclusive use of the node."""
    features: frozenset[str]

    @property
    def is_usable(self) -> bool:
        """Whether jobs can start on it today, once it is free."""
        return self.is_open and not self.state.startswith(_UNUSABLE) and not self.state.endswith("*")

    @property
    def room(self) -> HostCapacity:
        """Its capacity for processes."""
        return HostCapacity(self.cpus, self.gpus, None if self.memory_mib is None else self.memory_mib * _MIB)


def read_sinfo(text: str, gpu_type: str = "") -> list[SlurmNode]:
    """Read the output of `sinfo --all --Node --exact --noheader --format=SINFO_FORMAT`; other lines are ignored.

    Args:
        text: the output of sinfo.
        gpu_type: the only type of GPUs to count; all types if empty.

    Returns:
        One record for each node and partition.
    """
    nodes: list[SlurmNode] = []
    for line in text.splitlines():
        fields = [field.strip() for field in line.split("|")]
        if len(fields) != len(SINFO_FORMAT.split("|")):
            continue
        name, partition, address, cpus, memory, state, available, limit, sharing, features, gres = fields
        if not cpus.rstrip("+").isdecimal():
            continue
        mib = int(memory.rstrip("+")) if memory.rstrip("+").isdecimal() else 0
        nodes.append(
            SlurmNode(
                name=name,
                partition=partition.rstrip("*"),
                is_default=partition.endswith("*"),
                address=address,
                cpus=int(cpus.rstrip("+")),
                memory_mib=mib if mib > 1 else None,  # Slurm reports 1 if memory is not configured
                gpus=count_gpus(gres, gpu_type),
                state=state.lower(),
                is_open=available == "up",
                time_limit_s=read_time(limit),
                jobs_per_cpu=_jobs_per_cpu(sharing),
                features=frozenset(features.split(",")) - {"(null)", ""},
            )
        )
    return nodes


def count_gpus(gres: str, gpu_type: str = "") -> int:
    """Count the GPUs, of a type if one is given, in a list such as "gpu:a100:4(S:0-1),nvme:1"."""
    return sum(int(count) for kind, count in _GPU.findall(gres) if not gpu_type or kind == gpu_type)


def _jobs_per_cpu(sharing: str) -> int:
    """Read the OverSubscribe of a partition; "YES:n" shares only with jobs that allow it, which ours do not."""
    kind, _, count = sharing.partition(":")
    if kind == "EXCLUSIVE":
        return 0
    return int(count) if kind == "FORCE" and count.isdecimal() else 1


def most_jobs(nodes: Sequence[SlurmNode], job: Resources, is_exclusive: bool = False) -> int:
    """Return how many jobs of one size fit on the nodes at the same time."""
    total = 0
    for node in nodes:
        place = node.room.holds(job)
        total += min(place, 1) if is_exclusive or not node.jobs_per_cpu else place * node.jobs_per_cpu
    return total


def read_time(text: str) -> float | None:
    """Read a time limit as Slurm writes it: "30" (minutes), "10:00", "2:00:00", "1-12:00:00".

    Returns:
        Seconds, or None if there is no limit.

    Raises:
        ValueError: the text is not such a time.
    """
    if text.lower() in ("infinite", "unlimited", "n/a", "not_set", ""):
        return None
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text)
    if match is None:
        raise ValueError(f"a time is written minutes, hours:minutes:seconds or days-hours:minutes, not {text!r}")
    days, first, second, third = (int(part) if part else None for part in match.groups())
    if days is not None:  # days-hours:minutes:seconds
        return float(days * 86400 + (first or 0) * 3600 + (second or 0) * 60 + (third or 0))
    if third is not None:
        return float((first or 0) * 3600 + (second or 0) * 60 + third)
    return float((first or 0) * 60 + (second or 0))


def write_time(seconds: float) -> str:
    """Write a time as Slurm reads it, in whole minutes, rounded up."""
    return f"{hours_and_minutes(seconds)}:00"


def expand_names(text: str) -> list[str]:
    """Return the names in a list of nodes, such as "n[1-3,07-08],login".

    Raises:
        ValueError: the text is not such a list.

    Example:
        >>> expand_names("n[08-10],gpu")
        ['n08', 'n09', 'n10', 'gpu']
    """
    names: list[str] = []
    for word in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", text):
        match = re.fullmatch(r"([^\[]*)\[([^\]]*)\](.*)", word)
        if match is None:
            names.append(word.strip())
            continue
        before, inside, after = match.groups()
        for part in inside.split(","):
            first, _, last = part.partition("-")
            if not first.isdecimal() or not (last or first).isdecimal():
                raise ValueError(f"a list of nodes is written n[1-3,7],login, not {text!r}")
            ends = expand_names(after) or [""]
            for number in range(int(first), int(last or first) + 1):
                names += [f"{before.strip()}{number:0{len(first)}}{end}" for end in ends]
    return names
