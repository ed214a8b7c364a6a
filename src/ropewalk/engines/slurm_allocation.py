"""The allocation that a launcher is in (`salloc`, `sbatch`): its nodes, its share of them, and its steps.

scontrol show job --details ─▶ Allocation   its state, and its CPUs, memory and GPUs on each node
squeue --steps              ─▶ Step         its running steps, by name
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ropewalk.engines.resources import Resources
from ropewalk.engines.slurm_jobs import SlurmJob, expand_tasks, read_scontrol
from ropewalk.engines.slurm_nodes import SlurmNode, count_gpus, expand_names
from ropewalk.last_line import last_line

STEPS_FORMAT = "%i|%j|%N"
"""`--format` of squeue --steps, as `read_steps` expects it."""

_SHARE = re.compile(r"(?<!\S)Nodes=(\S+) CPU_IDs=(\S+) Mem=(\d+) GRES=(\S*)")
_STEP_ID = re.compile(r"\d+\.\d+")
_ENDS = (
    ("out of memory|oom.kill", "OUT_OF_MEMORY"),
    ("due to time limit", "TIMEOUT"),
    ("due to node fail", "NODE_FAIL"),
    ("due to preemption", "PREEMPTED"),
    ("cancelled at", "CANCELLED"),
)
"""Messages of srun about the end of a step, and Slurm's state for each."""


@dataclass(frozen=True, slots=True)
class Allocation:
    """The job whose nodes we use, as Slurm reports it."""

    job: SlurmJob
    nodes: list[SlurmNode]
    """The nodes, with the allocation's CPUs, memory and GPUs, not the host's; none unless the allocation runs."""
    ends: str
    """The end of its time, in Slurm's words."""

    @property
    def is_alive(self) -> bool:
        return self.job.state == "RUNNING" and bool(self.nodes)


@dataclass(frozen=True, slots=True)
class Step:
    """One running step of an allocation."""

    id: str
    """The id as users write it: "8812.3"."""
    name: str
    node: str


def read_allocation(text: str, gpu_type: str = "") -> Allocation | None:
    """Read the output of `scontrol --oneliner --details show job ID`; None if it has no job."""
    jobs = read_scontrol(text)
    if not jobs:
        return None
    facts = dict(re.findall(r"(?:^|\s)([A-Za-z:/]+)=(\S*)", text))
    nodes = [
        SlurmNode(
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
    """Read the output of `squeue --steps --noheader --format=STEPS_FORMAT`, without the batch script's own step."""
    steps: list[Step] = []
    for line in text.splitlines():
        id, _, rest = line.partition("|")
        name, _, node = rest.rpartition("|")
        if _STEP_ID.fullmatch(id):
            steps.append(Step(id, name, node))
    return steps


@dataclass(frozen=True, slots=True)
class StepEnd:
    """How a step ended."""

    state: str
    """Slurm's state, such as "TIMEOUT"."""
    exit_code: int | None
    """The exit status, negative for a signal, or None if it is not known."""
    words: str


def read_end(code: int, said: str) -> StepEnd:
    """Find how a step ended from the exit status of its srun (negative for a signal) and the output of srun."""
    if code < 0:
        return StepEnd("FAILED", None, f"its srun was killed by signal {-code}, and with that it ends")
    if "Unable to create step" in said:  # the code is srun's own
        return StepEnd("FAILED", None, last_words(said))
    # As a shell, srun exits with 128 plus a signal's number; it reports an exit code of that size in words.
    is_signal = code > 128 and "Exited with exit code" not in said
    state = next((state for words, state in _ENDS if re.search(words, said, re.IGNORECASE)), "")
    if not state or (code == 0 and state == "OUT_OF_MEMORY"):  # of a process that the step had started
        state = "FAILED" if code else "COMPLETED"
    return StepEnd(state, 128 - code if is_signal else code, last_words(said))


def last_words(said: str) -> str:
    """Return the last line of srun's output, if there is any, without what it begins with."""
    return last_line(said).removeprefix("srun: ").removeprefix("error: ")


def choose_nodes(
    nodes: Sequence[SlurmNode], taken: Sequence[tuple[str, Resources]], wanted: Resources, count: int
) -> list[str]:
    """Choose nodes for agents of one size: each goes to the node with the fewest agents and room for one more.

    Args:
        nodes: all nodes.
        taken: the node and the resources of each running agent.
        wanted: the request of each new agent.
        count: the number of new agents.

    Returns:
        The names of nodes, fewer than `count` if there is no room for more.
    """
    rooms = {node.name: node.room for node in nodes}
    agents = dict.fromkeys(rooms, 0)
    for name, size in taken:
        if name in rooms:
            rooms[name] = rooms[name].without(size)
            agents[name] += 1
    whole = dataclasses.replace(wanted, cpus=math.ceil(wanted.cpus))  # as Slurm gives CPUs to a step
    chosen: list[str] = []
    while len(chosen) < count:
        free = [name for name, room in rooms.items() if room.holds(whole)]
        if not free:
            break
        name = min(free, key=lambda name: agents[name])
        rooms[name] = rooms[name].without(wanted)
        agents[name] += 1
        chosen.append(name)
    return chosen


def allocation_of(environ: Mapping[str, str]) -> str:
    """Return the id of the allocation that a launcher with this environment uses; empty if there is none.

    A job that we submitted ourselves (`ropewalk submit`) is not an allocation for agents: it has room for its launcher
    only. A step of ours is in a user's allocation, which can be used.
    """
    id = environ.get("SLURM_JOB_ID", "")
    is_our_job = "ROPEWALK_RUN_ID" in environ and "SLURM_STEP_ID" not in environ
    return id if id.isdecimal() and not is_our_job else ""
