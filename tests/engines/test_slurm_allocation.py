"""What Slurm says of an allocation and its steps, read; and where agents go."""

from __future__ import annotations

import pytest

from ropewalk.engines.engine import JobSpec
from ropewalk.engines.resources import Resources
from ropewalk.engines.slurm_allocation import (
    Allocation,
    Step,
    choose_nodes,
    read_allocation,
    read_end,
    read_steps,
)
from ropewalk.engines.slurm_script import SlurmOptions, step_flags

#: As Slurm 22.05 prints it, with fewer of its facts, and GPUs.
_JOB = (
    "JobId=8812 JobName=mine UserId=ada(1000) JobState=RUNNING Reason=None ExitCode=0:0 EndTime=2026-11-21T18:00:00 "
    "Partition=gpu NodeList=n[1-3] NumNodes=3 NumCPUs=36 JOB_GRES=gpu:a100:4   Nodes=n[1-2] "
    "CPU_IDs=0-15 Mem=16000 GRES=gpu:a100:2(IDX:0-1)   Nodes=n3 CPU_IDs=0-1,8-9 Mem=0 GRES= MinCPUsNode=1\n"
)


def allocation(text: str = _JOB) -> Allocation:
    found = read_allocation(text)
    assert found
    return found


def test_each_node_has_what_is_of_it_in_the_allocation() -> None:
    found = allocation()
    assert found.is_alive and found.ends == "2026-11-21T18:00:00"
    facts = [(node.name, node.cpus, node.memory_mib, node.gpus) for node in found.nodes]
    assert facts == [("n1", 16, 16000, 2), ("n2", 16, 16000, 2), ("n3", 4, None, 0)]
    assert [node.gpus for node in (read_allocation(_JOB, "h100") or found).nodes] == [0, 0, 0]
    assert not allocation(_JOB.replace("RUNNING", "TIMEOUT")).is_alive
    assert read_allocation("") is None


def test_agents_go_where_the_fewest_are_and_one_more_has_room() -> None:
    nodes = allocation().nodes
    assert choose_nodes(nodes, [], Resources(), 4) == ["n1", "n2", "n3", "n1"]
    assert choose_nodes(nodes, [("n1", Resources())], Resources(cpus=15.5), 3) == ["n2"]
    assert choose_nodes(nodes, [("gone", Resources())], Resources(gpus=1), 9) == ["n1", "n2"] * 2
    assert choose_nodes(nodes[2:], [], Resources(cpus=0.5), 9) == ["n3"] * 4, "a step has whole CPUs"


def test_steps_are_told_by_name_and_the_batch_script_is_none() -> None:
    assert read_steps("8812.batch|batch|n1\n8812.0|a|b|n1\n\n8812.12|c|n[1-2]\n8812.TBD|d|\n") == [
        Step("8812.0", "a|b", "n1"),
        Step("8812.12", "c", "n[1-2]"),
    ]


@pytest.mark.parametrize(
    ("code", "said", "state", "exit_code", "words"),
    [
        (0, "", "COMPLETED", 0, ""),
        (7, "srun: error: n1: task 0: Exited with exit code 7", "FAILED", 7, "n1: task 0: Exited with exit code 7"),
        (137, "srun: error: n1: task 0: Exited with exit code 137", "FAILED", 137, "exit code 137"),
        (137, "srun: error: n1: task 0: Killed\nsrun: Force Terminated StepId=1.2", "FAILED", -9, "Force Terminated"),
        (143, "srun: error: n1: task 0: Terminated", "FAILED", -15, "Terminated"),
        (1, "srun: error: Unable to create step for job 1: More processors", "FAILED", None, "More processors"),
        (-9, "", "FAILED", None, "its srun was killed by signal 9"),
        (137, "error: *** STEP 2.0 ON n1 CANCELLED AT 2026-11-21T17:34:50 DUE TO TIME LIMIT ***", "TIMEOUT", -9, ""),
        (137, "error: *** STEP 2.0 ON n1 CANCELLED AT 2026-11-21T17:34:50 ***", "CANCELLED", -9, ""),
        (137, "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=1.0.", "OUT_OF_MEMORY", -9, ""),
        (0, "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=1.0.", "COMPLETED", 0, ""),
    ],
)
def test_ends_of_steps_are_read_from_srun(code: int, said: str, state: str, exit_code: int | None, words: str) -> None:
    end = read_end(code, said)
    assert (end.state, end.exit_code) == (state, exit_code)
    assert words in end.words


@pytest.mark.parametrize(
    ("options", "resources", "gpus_there", "flags"),
    [
        (SlurmOptions(), Resources(), 0, ["--cpus-per-task=1", "--mem=0"]),
        (SlurmOptions(mem="8G", gres="nvme:1"), Resources(), 2, ["--cpus-per-task=1", "--mem=8G", "--gres=nvme:1"]),
        (SlurmOptions(), Resources(cpus=2.5), 2, ["--cpus-per-task=3", "--mem=0", "--gres=none"]),
        (
            SlurmOptions(mem="8G", gpu_type="a100", time="1:00:00", partition="gpu"),
            Resources(gpus=2, memory="1Gi"),
            2,
            ["--cpus-per-task=1", "--mem=1024M", "--gres=gpu:a100:2", "--time=1:00:00"],
        ),
    ],
)
def test_a_step_asks_for_its_share_and_no_more(
    options: SlurmOptions, resources: Resources, gpus_there: int, flags: list[str]
) -> None:
    spec = JobSpec(command=["agent"], resources=resources)
    always = ["--jobid=8812", "--nodelist=n1", "--nodes=1", "--ntasks=1"]
    ending = ["--exact", "--mpi=none", "--input=none", "--export=ALL"]
    assert step_flags(options, spec, "8812", "n1", gpus_there) == [*always, *flags, *ending]
