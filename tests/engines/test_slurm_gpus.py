"""GPUs and CPUs in one program, on a real Slurm of which one node has two GPUs and the other one none."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.engines.test_slurm_submit import command_in
from tests.lab.slurm import SlurmCluster, new_cluster

WHERE = """
import os, time
import ropewalk as rw

def place():
    return os.environ["SLURMD_NODENAME"], os.environ.get("CUDA_VISIBLE_DEVICES", "")

class Seen:
    def __init__(self):
        self.places = {}

    def tell(self, name, place):
        self.places.setdefault(name, []).append(place)

    def everything(self):
        return self.places

def tell(seen, name):
    seen.tell(name, place())
    while sum(map(len, seen.everything().values())) < 5:  # all are there at once: each has a place of its own
        time.sleep(0.05)

def show(seen):
    tell(seen, "cpu")
    print(seen.everything(), flush=True)

if __name__ == "__main__":
    program = rw.Program("mixed")
    seen = program.add(rw.Service(Seen), name="seen")
    program.add(rw.Worker(tell, seen, "gpu"), name="learner", replicas=GPUS, resources=rw.Resources(gpus=1))
    program.add(rw.Worker(tell, seen, "cpu"), name="actor", replicas=4 - GPUS, resources=rw.Resources(cpus=8))
    program.add(rw.Worker(show, seen), name="show")
    program.launch().wait()
"""

RANK = """
import os
print("rank", os.environ["RANK"], os.environ["LOCAL_RANK"], os.environ["CUDA_VISIBLE_DEVICES"], flush=True)
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    with new_cluster(tmp_path_factory.mktemp("slurm"), num_nodes=2, gpus=2) as cluster:
        yield cluster


def test_nodes_with_gpus_and_without_run_in_one_program(cluster: SlurmCluster) -> None:
    ropewalk = command_in(cluster, "mixed", WHERE.replace("GPUS", "2"))
    done = ropewalk("run", "train.py", "--engine", "slurm")
    assert done.returncode == 0, done.stdout + done.stderr
    [line] = [line for line in done.stdout.splitlines() if "'gpu'" in line]
    places = ast.literal_eval(line[line.index("{") :])
    with_gpus = next(iter(cluster.nodes))
    assert sorted(places["gpu"]) == [(with_gpus, "0"), (with_gpus, "1")], "each has one of its own"
    assert {gpus for _, gpus in places["cpu"]} == {""}, "who asks for none sees none"
    assert len(places["cpu"]) == 3


def test_a_program_that_needs_more_gpus_than_the_cluster_has_is_refused_with_both_numbers(
    cluster: SlurmCluster,
) -> None:
    ropewalk = command_in(cluster, "many", WHERE.replace("GPUS", "1").replace("gpus=1", "gpus=3"))
    done = ropewalk("run", "train.py", "--engine", "slurm")
    assert done.returncode != 0 and "3 GPUs" in done.stderr and "2" in done.stderr, done.stdout + done.stderr


def test_each_rank_has_the_gpu_of_its_local_rank(cluster: SlurmCluster) -> None:
    ropewalk = command_in(cluster, "ranks", RANK)
    done = ropewalk("run", "--ranks", "2", "--gpus", "1", "--engine", "slurm", "train.py")
    assert done.returncode == 0, done.stdout + done.stderr
    ranks = sorted(line[line.index("rank") :].split()[1:] for line in done.stdout.splitlines() if "rank" in line)
    assert [rank[:2] for rank in ranks] == [["0", "0"], ["1", "1"]], done.stdout
    own = [visible.split(",")[int(local)] for _, local, visible in ranks]
    assert sorted(own) == ["0", "1"], done.stdout
