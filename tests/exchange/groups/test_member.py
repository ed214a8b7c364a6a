"""Replicas of a service form a group over the links of their program, in processes of their own."""

from __future__ import annotations

from typing import Any

import torch

import ropewalk as rw
from ropewalk.exchange.groups.member import Member


class Adder(Member):
    def __init__(self, peers: Any) -> None:
        super().__init__()
        self._peers = peers
        self._results: list[torch.Tensor] = []

    @rw.concurrent(1)  # beside `deliver`, which the others call meanwhile
    def add_up(self, replicas: list[int], epoch: int, numel: int) -> torch.Tensor | None:
        node = rw.current_node()
        if node.replica not in replicas:
            return None
        group = self.group(self._peers, replicas, epoch=epoch, timeout_s=20)
        assert group.members[group.rank] == f"adders.{node.replica}"
        buffer = torch.arange(numel, dtype=torch.float32) * (node.replica + 1)
        group.all_reduce(buffer, "bucket 0").wait()
        gathered = group.all_gather(memoryview(bytes([node.replica] * node.replica)), [node.replica], "bucket 1")
        assert [len(message) for message, _ in gathered] == replicas == [facts[0] for _, facts in gathered]
        return buffer


def test_replicas_of_a_service_add_up_in_groups_that_follow_each_other() -> None:
    program = rw.Program("adders")
    adders = program.declare("adders")
    program.add(rw.Service(Adder, adders), name="adders", replicas=3)
    with program.launch() as running:
        client = running.client("adders")
        for epoch, (replicas, numel) in enumerate([([0, 1, 2], 10), ([0, 2], 50_000), ([2, 1, 0], 300_000)]):
            sums = [found for found in client.all.add_up(sorted(replicas), epoch, numel) if found is not None]
            expected = torch.arange(numel, dtype=torch.float32) * sum(replica + 1 for replica in replicas)
            assert len(sums) == len(replicas)
            assert all(torch.equal(found, expected) for found in sums)
