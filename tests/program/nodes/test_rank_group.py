"""Ranks: torch.distributed needs no address in user code."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from ropewalk.program.nodes.rank_group import RankGroup
from tests.program.nodes.stand_in import free_port

RANK = """
import json, sys
from ropewalk.program.nodes.rank_group import RankGroup
from tests.program.nodes.stand_in import StandIn

class Context(StandIn):
    def rendezvous(self, size):
        rank = str(self.replica)
        return {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size),
                "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": sys.argv[2]}

def train(scale):
    import torch, torch.distributed as dist
    dist.init_process_group("gloo")
    value = torch.tensor([scale * (dist.get_rank() + 1)])
    dist.all_reduce(value)
    print(json.dumps([dist.get_rank(), dist.get_world_size(), value.item()]))
    dist.destroy_process_group()

RankGroup(train, 2, 10.0).run(Context(replica=int(sys.argv[1]), replicas=2))
"""


def test_a_process_group_is_made_without_an_address() -> None:
    pytest.importorskip("torch")
    port = str(free_port())
    ranks = [
        subprocess.Popen([sys.executable, "-c", RANK, str(rank), port], stdout=subprocess.PIPE, env=os.environ)
        for rank in range(2)
    ]
    try:
        said = [json.loads(rank.communicate(timeout=50)[0]) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert said == [[0, 2, 30.0], [1, 2, 30.0]]


def test_ranks_end_by_themselves_and_are_called_by_nobody() -> None:
    node = RankGroup(print, 3, "hello", end="!")
    assert (node.finite, node.num_replicas, node.methods()) == (True, 3, None)
    assert node.arguments() == {"function": print, "args[0]": "hello", "kwargs['end']": "!"}
