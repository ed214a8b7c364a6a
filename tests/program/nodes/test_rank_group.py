"""Ranks: torch.distributed needs no address in user code."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from ropewalk.program.nodes.rank_group import RankGroup
from tests.program.nodes.stand_in import free_port

RANK = """
import json, os, sys
import torch, torch.distributed as dist  # once, for both ranks
from ropewalk.program.nodes.rank_group import RankGroup
from tests.program.nodes.stand_in import StandIn

class Context(StandIn):
    def rendezvous(self):
        rank, size = str(self.replica), str(self.replicas)
        return {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size,
                "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": sys.argv[1]}

def train(scale):
    dist.init_process_group("gloo")
    value = torch.tensor([scale * (dist.get_rank() + 1)])
    dist.all_reduce(value)
    line = json.dumps([dist.get_rank(), dist.get_world_size(), value.item()]) + "\\n"
    os.write(1, line.encode())  # at once: the other rank writes to the same pipe
    dist.destroy_process_group()

other = os.fork()
RankGroup(train, 2, 10.0).run(Context(replica=int(not other), replicas=2))
if other:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(other, 0)[1]))
"""


def test_a_process_group_is_made_without_an_address() -> None:
    pytest.importorskip("torch")
    command = [sys.executable, "-c", RANK, str(free_port())]
    ranks = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=100, check=True)
    assert sorted(map(json.loads, ranks.stdout.splitlines())) == [[0, 2, 30.0], [1, 2, 30.0]]


def test_ranks_end_by_themselves_and_are_called_by_nobody() -> None:
    node = RankGroup(print, 3, "hello", end="!")
    assert (node.finite, node.num_replicas, node.methods()) == (True, 3, None)
    assert node.arguments() == {"function": print, "args[0]": "hello", "kwargs['end']": "!"}
