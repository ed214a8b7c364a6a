"""The allocation that a launcher is inside of (`salloc`, `sbatch`): its nodes, what of them is ours, and its steps.

scontrol show job --details ─▶ Allocation   its state, and for each node the CPUs, memory and GPUs that we have
squeue --steps              ─▶ Step         what runs there, by name
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ropewalk.engines.resources import Resources
from ropewalk.engines.slurm_jobs import SlurmJob, expand_tasks, read_scontrol
from ropewalk.engines.slurm_nodes import Node, count_gpus, expand_names, mib_of

#: `--format` of squeue --steps, as `read_steps` expects it.
STEPS_FORMAT = "%i|%j|%N"

_SHARE = re.compile(r"(?<!\S)Nodes=(\S+) CPU_IDs=(\S+) Mem=(\d+) GRES=(\S*)")
_STEP_ID = re.compile(r"\d+\.\d+")


@dataclass(frozen=True, slots=True)
class Allocation:
    """What Slurm says of the job whose nodes we use."""

    job: SlurmJob
    nodes: list[Node]
    """With the CPUs, memory and GPUs that are the allocation's, not the host's; none unless it runs."""
    ends: str
    """When its time is over, in Slurm's words."""

    @property
    def is_alive(self) -> bool:
        return self.job.state == "RUNNING" and bool(self.nodes)


@dataclass(frozen=True, slots=True)
class Step:
    """One step of an allocation that runs."""

    id: str
    """As users write it: "8812.3"."""
    name: str
    node: str


def read_allocation(text: str, gpu_type: str = "") -> Allocation | None:
    """Read the output of `scontrol --oneliner --details show job ID`; None if it tells of no job."""
    jobs = read_scontrol(text)
    if not jobs:
        return None
    facts = dict(re.findall(r"(?:^|\s)([A-Za-z:/]+)=(\S*)", text))
    nodes = [
        Node(
            name=name,
            partition=facts.get("Partition", ""),
            is_default=False,
            address=name,
            cpus=len(expand_tasks(cpus)),
            memory_mib=int(memory) or None,
            gpus=count_gpus(gres, gpu_type),
            state="allocated",
            is_open=True,
            time_limit_s=None,
            jobs_per_cpu=1,
            features=frozenset(),
        )
        for names, cpus, memory, gres in _SHARE.findall(text)
        for name in expand_names(names)
    ]
    return Allocation(jobs[0], nodes, facts.get("EndTime", ""))


def read_steps(text: str) -> list[Step]:
    """Read the output of `squeue --steps --noheader --format=STEPS_FORMAT`; the batch script itself is no such step."""
    steps: list[Step] = []
    for line in text.splitlines():
        id, _, rest = line.partition("|")
        name, _, node = rest.rpartition("|")
        if _STEP_ID.fullmatch(id):
            steps.append(Step(id, name, node))
    return steps


def share_per_node(nodes: Sequence[Node], process: Resources) -> int:
    """How many processes an agent should host, if each node has one agent; 0 if no node can host even one."""
    places = [node.holds(process) for node in nodes]
    return max(places, key=lambda share: (share * sum(place >= share for place in places), share), default=0)


def choose_nodes(
    nodes: Sequence[Node], taken: Sequence[tuple[str, Resources]], wanted: Resources, count: int
) -> list[str]:
    """Where so many agents of one size go: each to the node that has the fewest of them and room for one more.

    Args:
        nodes: all there are.
        taken: what runs already, each with its node.
        wanted: what one asks for.
        count: of agents.

    Returns:
        The names of nodes, fewer than `count` if there is no room for more.
    """
    left = {node.name: node for node in nodes}
    agents = dict.fromkeys(left, 0)
    for name, size in taken:
        if name in left:
            left[name] = _without(left[name], size)
            agents[name] += 1
    chosen: list[str] = []
    while len(chosen) < count:
        free = [name for name, node in left.items() if node.holds(_whole(wanted)) >= 1]
        if not free:
            break
        name = min(free, key=lambda name: agents[name])
        left[name] = _without(left[name], wanted)
        agents[name] += 1
        chosen.append(name)
    return chosen


def _whole(size: Resources) -> Resources:
    """A step has whole CPUs."""
    return dataclasses.replace(size, cpus=math.ceil(size.cpus))


def _without(node: Node, size: Resources) -> Node:
    return dataclasses.replace(
        node,
        cpus=node.cpus - math.ceil(size.cpus),
        gpus=node.gpus - size.gpus,
        memory_mib=None if node.memory_mib is None else node.memory_mib - mib_of(size),
    )


def allocation_of(environ: Mapping[str, str]) -> str:
    """The id of the allocation that a launcher with this environment is to use; empty if there is none.

    A job that we submitted ourselves (`ropewalk submit`) is no allocation that a user made for agents: it has the place
    of its launcher only. In a step of ours, which is in a user's allocation, it is.
    """
    id = environ.get("SLURM_JOB_ID", "")
    is_our_job = "ROPEWALK_RUN_ID" in environ and "SLURM_STEP_ID" not in environ
    return id if id.isdecimal() and not is_our_job else ""
