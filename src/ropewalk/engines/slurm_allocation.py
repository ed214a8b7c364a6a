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
from ropewalk.engines.slurm_nodes import SlurmNode, count_gpus, expand_names

#: `--format` of squeue --steps, as `read_steps` expects it.
STEPS_FORMAT = "%i|%j|%N"

_SHARE = re.compile(r"(?<!\S)Nodes=(\S+) CPU_IDs=(\S+) Mem=(\d+) GRES=(\S*)")
_STEP_ID = re.compile(r"\d+\.\d+")
#: What srun says of the end of a step, and Slurm's word for it.
_ENDS = (
    ("out of memory|oom.kill", "OUT_OF_MEMORY"),
    ("due to time limit", "TIMEOUT"),
    ("due to node fail", "NODE_FAIL"),
    ("due to preemption", "PREEMPTED"),
    ("cancelled at", "CANCELLED"),
)


@dataclass(frozen=True, slots=True)
class Allocation:
    """What Slurm says of the job whose nodes we use."""

    job: SlurmJob
    nodes: list[SlurmNode]
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
    """Read the output of `squeue --steps --noheader --format=STEPS_FORMAT`; the batch script itself is no such step."""
    steps: list[Step] = []
    for line in text.splitlines():
        id, _, rest = line.partition("|")
        name, _, node = rest.rpartition("|")
        if _STEP_ID.fullmatch(id):
            steps.append(Step(id, name, node))
    return steps


@dataclass(frozen=True, slots=True)
class StepEnd:
    """How a step has ended."""

    state: str
    """Slurm's word for it, such as "TIMEOUT"."""
    exit_code: int | None
    """The exit status, minus a signal, or None if it is not known."""
    words: str


def read_end(code: int, said: str) -> StepEnd:
    """How a step ended, from how its srun did: its exit status (negative for a signal), and what it said."""
    if code < 0:
        return StepEnd("FAILED", None, f"its srun was killed by signal {-code}, and with that it ends")
    if "Unable to create step" in said:  # the code is of srun itself
        return StepEnd("FAILED", None, last_line(said))
    # srun ends as a shell does, with 128 and a signal's number; an exit code that looks the same it tells in words.
    is_signal = code > 128 and "Exited with exit code" not in said
    state = next((state for words, state in _ENDS if re.search(words, said, re.IGNORECASE)), "")
    if not state or (code == 0 and state == "OUT_OF_MEMORY"):  # of something that it had started
        state = "FAILED" if code else "COMPLETED"
    return StepEnd(state, 128 - code if is_signal else code, last_line(said))


def last_line(said: str) -> str:
    """The last that srun has said, if anything."""
    lines = [line for line in said.splitlines() if line.strip()]
    return lines[-1].removeprefix("srun: ").removeprefix("error: ") if lines else ""


def choose_nodes(
    nodes: Sequence[SlurmNode], taken: Sequence[tuple[str, Resources]], wanted: Resources, count: int
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
    rooms = {node.name: node.room for node in nodes}
    agents = dict.fromkeys(rooms, 0)
    for name, size in taken:
        if name in rooms:
            rooms[name] = rooms[name].without(size)
            agents[name] += 1
    whole = dataclasses.replace(wanted, cpus=math.ceil(wanted.cpus))  # as a step has them
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
    """The id of the allocation that a launcher with this environment is to use; empty if there is none.

    A job that we submitted ourselves (`ropewalk submit`) is no allocation that a user made for agents: it has the place
    of its launcher only. In a step of ours, which is in a user's allocation, it is.
    """
    id = environ.get("SLURM_JOB_ID", "")
    is_our_job = "ROPEWALK_RUN_ID" in environ and "SLURM_STEP_ID" not in environ
    return id if id.isdecimal() and not is_our_job else ""
