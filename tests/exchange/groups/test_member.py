"""Replicas of a service form a group over the links of their program, in processes of their own."""

from __future__ import annotations

import threading
import time
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch

import ropewalk as rw
from ropewalk.errors import ExchangeStalled, MemberLost
from ropewalk.exchange.groups.inbox import Packet
from ropewalk.exchange.groups.member import GroupMember, one_way
from ropewalk.program.node_context import on_stop
from tests.patience import PATIENCE_S


class Adder(GroupMember):
    def __init__(self, peers: Any) -> None:
        super().__init__()
        self._peers = peers
        self._results: list[torch.Tensor] = []

    @rw.concurrent(1)  # beside `deliver`, which the others call meanwhile
    def add_up(self, replicas: list[int], epoch: int, numel: int) -> torch.Tensor | None:
        node = rw.current_node()
        if node.replica not in replicas:
            return None
        group = self.group(self._peers, replicas, epoch=epoch, timeout_s=PATIENCE_S)
        assert group.members[group.rank] == f"adders.{node.replica}"
        buffer = torch.arange(numel, dtype=torch.float32) * (node.replica + 1)
        group.all_reduce(buffer, "bucket 0").wait()
        gathered = group.all_gather(memoryview(bytes([node.replica] * node.replica)), [node.replica], "bucket 1")
        assert [len(message) for message, _ in gathered] == replicas == [facts[0] for _, facts in gathered]
        return buffer


@pytest.mark.usefixtures("shared_session")
def test_replicas_of_a_service_add_up_in_groups_that_follow_each_other() -> None:
    program = rw.Program("adders")
    adders = program.declare("adders")
    program.add(rw.Service(Adder, adders), name="adders", replicas=3, preload=["torch"])
    with program.launch() as running:
        client = running.client("adders")
        for epoch, (replicas, numel) in enumerate([([0, 1, 2], 10), ([0, 2], 50_000), ([2, 1, 0], 300_000)]):
            sums = [found for found in client.all.add_up(sorted(replicas), epoch, numel) if found is not None]
            expected = torch.arange(numel, dtype=torch.float32) * sum(replica + 1 for replica in replicas)
            assert len(sums) == len(replicas)
            assert all(torch.equal(found, expected) for found in sums)


class Mortal(GroupMember):
    """Adds up until it is told to die."""

    def __init__(self, peers: Any) -> None:
        super().__init__()
        self._peers = peers
        self._ends = threading.Event()
        self._dies = False

    def run(self) -> None:
        on_stop(self._ends.set)
        # Its first successor is started at once, and dies at once; the next one comes much later.
        if rw.current_node().generation == 0:
            self._ends.wait()
        if self._dies or rw.current_node().generation > 0:
            raise SystemExit(1)  # a death, where nodes are threads

    def die(self) -> None:
        self._dies = True
        self._ends.set()

    @rw.concurrent(1)
    def add_up(self, count: int, timeout_s: float) -> int:
        group = self.group(self._peers, timeout_s=timeout_s)
        buffer = torch.ones(10_000)
        for number in range(count):
            group.all_reduce(buffer, f"bucket {number}").wait()
        return count


def test_a_member_that_is_dead_and_starts_again_much_later_holds_up_nobody_for_longer_than_the_timeout() -> None:
    program = rw.Program("mortals")
    mortals = program.declare("mortals")
    patient = rw.Restart("on_failure", backoff_s=3600.0, backoff_max_s=3600.0)
    program.add(rw.Service(Mortal, mortals), name="mortals", replicas=2, restart=patient)
    with program.launch("threads") as running:
        client = running.client("mortals")
        assert client.all.add_up(3, 20.0) == [3, 3]
        client[1].die()
        due = time.monotonic() + 120
        while (now := running.status().nodes[1]).generation == 0 or now.state in ("running", "starting"):
            assert time.monotonic() < due, now
            time.sleep(0.02)
        with pytest.raises((ExchangeStalled, MemberLost), match="rank 1"):
            client[0].add_up(1, 0.5)


def test_packets_do_not_wait_for_a_service_that_is_not_there() -> None:
    peers: Any = MagicMock()
    peers[1].deliver.send.side_effect = AssertionError("this waits while the service is started again")
    packet = Packet(0, 0, 0, 0, "bucket 0", (), None)
    one_way(peers[1])(packet)
    peers[1].deliver.future.assert_called_once_with(packet)
