from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from typing import Any, cast

import pytest
import torch
from torch import Tensor

import ropewalk as rw
from ropewalk.exchange.groups.member import one_way
from ropewalk.exchange.tensor_codec import ALIGN, TensorCodec
from ropewalk.pipeline.plans import Edge, Plan, PlanWorker, Stage
from ropewalk.pipeline.stages.in_memory_links import LinkMessage, Tag
from ropewalk.training import links as links_module
from ropewalk.training import stage_fleet
from ropewalk.training.far_links import FarLink, FarMessage, memory_of
from ropewalk.training.link_transports import LinkOwner
from ropewalk.training.links import Endpoint, ProcessLinks
from ropewalk.transport.slots import Doorbell

PLAN = Plan((Stage(0, ("a",), (0,)), Stage(1, ("b",), (1,))), (Edge("a", 0, (1,), 4, 4),))

OWNER = LinkOwner(3, PlanWorker(0, 0), PLAN, TensorCodec(), cast(Doorbell, None), [], deque())


class Seat:
    """A worker that believes its host to be another one than the others'."""

    def __init__(self, peers: Any) -> None:
        torch.set_num_threads(1)
        self._peers = peers
        node = rw.current_node()
        links_module.host_of_this_process = lambda: f"host {node.replica}"
        self._links = ProcessLinks(1, PLAN.workers[node.replica], PLAN)

    @rw.concurrent(8)
    def deliver(self, message: FarMessage) -> None:
        self._links.deliver(message)

    def endpoint(self) -> Endpoint:
        return self._links.endpoint()

    def connect(self, endpoints: Mapping[PlanWorker, Endpoint]) -> None:
        self._links.connect(endpoints, {worker: one_way(self._peers[worker.group]) for worker in PLAN.workers})

    def echo(self, num: int) -> None:
        for number in range(num):
            tree = self._received(Tag("a", 0, 1, number)).tree
            self._links.send(Tag("a", 1, 0, number), LinkMessage((tree, 2 * tree)))

    def ask(self, sizes: list[int]) -> bool:
        """Whether the answers to all that is sent, which is under way at once, are right."""
        tensors = [torch.rand(size) for size in sizes]
        for number, tensor in enumerate(tensors):
            self._links.send(Tag("a", 0, 1, number), LinkMessage(tensor))
        answers = [self._received(Tag("a", 1, 0, number)).tree for number in range(len(sizes))]
        return all(
            torch.equal(one, tensor) and torch.equal(two, 2 * tensor)
            for (one, two), tensor in zip(answers, tensors, strict=True)
        )

    def _received(self, tag: Tag) -> LinkMessage:
        while not self._links.has(tag):
            assert self._links.wait(120)
        return self._links.receive(tag)


@pytest.fixture
def seats(trainings: rw.Session) -> Iterator[Any]:
    program = rw.Program("far")
    peers = program.declare("seats")
    program.add(rw.Service(Seat, peers), name="seats", replicas=2, preload=stage_fleet.PRELOADED)
    with program.launch(session=trainings) as running:
        yield running.client("seats")


def test_tensors_go_to_another_host_and_back_over_the_programs_own_connections(seats: Any) -> None:
    endpoints = dict(zip(PLAN.workers, seats.all.endpoint(), strict=True))
    assert len({endpoint.host for endpoint in endpoints.values()}) == 2
    seats.all.connect(endpoints)
    sizes = [1, 1000, 0, 300_000, 3_000_000] * 4
    echo = seats[1].echo.future(len(sizes))
    assert seats[0].ask(sizes)
    echo.result()


def sent(tensor: Tensor) -> FarMessage:
    messages: list[FarMessage] = []

    def deliver(message: FarMessage) -> Future[None]:
        messages.append(message)
        return Future()

    FarLink(OWNER, deliver).send(tensor, b"note")
    return messages[0]


def test_a_message_says_who_sent_it_and_when() -> None:
    message = sent(torch.ones(3))
    assert (message.epoch, message.sender) == (3, PlanWorker(0, 0))
    assert torch.equal(TensorCodec().decode(memory_of(message)), torch.ones(3))


def test_tensors_are_aligned_wherever_the_message_came_to_lie() -> None:
    message = sent(torch.rand(100))
    for shift in range(0, ALIGN, 7):
        memory = torch.empty(len(message.blob) + 2 * ALIGN, dtype=torch.uint8)
        blob = memory[shift : shift + len(message.blob)].copy_(message.blob)
        found = TensorCodec().decode(memory_of(message._replace(blob=blob)))
        assert found.data_ptr() % ALIGN == 0


def test_a_peer_that_is_known_to_be_gone_is_lost_at_once() -> None:
    def deliver(_: FarMessage) -> Future[None]:
        raise ConnectionError("gone")

    bell = Doorbell()
    link = FarLink(OWNER._replace(doorbell=bell), deliver)
    link.send(None, b"")
    assert link.lost == "ConnectionError: gone"
    assert bell.heard() == ([], True), "its worker is woken"
