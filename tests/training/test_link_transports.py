"""Another way for activations to travel is one class and one entry: here, tensors that are handed over as they are.

So would a transport between devices that both ends have: it encodes nothing, and reaches only some of the workers.
"""

from __future__ import annotations

import contextlib
import socket
import tempfile
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import torch

from ropewalk.exchange.tensor_codec import TensorCodec
from ropewalk.pipeline.plans import Edge, Plan, Stage
from ropewalk.pipeline.stages.in_memory_links import LinkMessage, Tag
from ropewalk.training import links as links_module
from ropewalk.training.link_transports import EncodedArrival, LinkOwner, LinkPeer
from ropewalk.training.links import ProcessLinks
from tests.patience import PATIENCE_S

PLAN = Plan(
    (Stage(0, ("a",), (0,)), Stage(1, ("b",), (1,)), Stage(2, ("c",), (2,))),
    (Edge("a", 0, (1, 2), 4, 4), Edge("b", 1, (2,), 4, 4)),
)
FIRST, SECOND, THIRD = PLAN.workers

_mailboxes: dict[int, Mailbox] = {}


class Handed(NamedTuple):
    note: bytes
    what: Any

    def tree(self) -> Any:
        return self.what


class Mailbox:
    """Handed-over trees for the first two workers, which have something in common that the third has not."""

    is_behind = False
    lost = ""

    def __init__(self, owner: LinkOwner) -> None:
        self._owner = owner
        self._arrived: deque[Handed] = deque()
        _mailboxes[id(self)] = self

    def address(self) -> int | None:
        return id(self) if self._owner.me != THIRD else None

    def link(self, peer: LinkPeer) -> Mailbox | None:
        return _mailboxes[peer.address] if peer.address is not None and self.address() is not None else None

    def arrived(self) -> Iterable[Handed]:
        while self._arrived:
            yield self._arrived.popleft()

    def send(self, tree: Any, note: bytes) -> int:
        self._arrived.append(Handed(note, tree))
        self._owner.doorbell.ring()
        return 0

    def fileno(self) -> int:
        return -1

    def flush(self) -> None: ...

    def close(self) -> None:
        _mailboxes.pop(id(self), None)


class Datagrams:
    """Encoded trees by datagrams to any process of this host: the descriptor tells of them, and no doorbell is rung."""

    is_behind = False
    lost = ""

    def __init__(self, owner: LinkOwner) -> None:
        self._codec, self._folder = owner.codec, tempfile.TemporaryDirectory()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(self.address())
        self._socket.setblocking(False)

    def address(self) -> str:
        return f"{self._folder.name}/inbox"

    def link(self, peer: LinkPeer) -> DatagramLink | None:
        return DatagramLink(self._codec, peer.address) if peer.is_here else None

    def fileno(self) -> int:
        return self._socket.fileno()

    def arrived(self) -> Iterable[EncodedArrival]:
        with contextlib.suppress(BlockingIOError):
            while True:
                yield EncodedArrival(memoryview(bytearray(self._socket.recv(1 << 20))), self._codec)

    def close(self) -> None:
        self._socket.close()
        self._folder.cleanup()


class DatagramLink(NamedTuple):
    codec: TensorCodec
    address: str

    is_behind = False
    lost = ""

    def send(self, tree: Any, note: bytes) -> int:
        encoded = self.codec.encode(tree, note)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as outgoing:
            outgoing.sendto(encoded.to_tensor().numpy().tobytes(), self.address)
        return encoded.size_bytes

    def fileno(self) -> int:
        return -1

    def flush(self) -> None: ...

    def close(self) -> None: ...


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[ProcessLinks]]:
    monkeypatch.setattr(links_module, "TRANSPORTS", {"hands": Mailbox, **links_module.TRANSPORTS})
    workers = [ProcessLinks(0, worker, PLAN, slots=2) for worker in PLAN.workers]
    endpoints = {links.me: links.endpoint() for links in workers}
    for links in workers:
        links.connect(endpoints)
    yield workers
    for links in workers:
        links.close()


def received(links: ProcessLinks, tag: Tag) -> LinkMessage:
    while not links.has(tag):
        assert links.wait(PATIENCE_S), f"{tag} has not come"
    return links.receive(tag)


def test_each_worker_is_reached_by_the_first_transport_that_can(workers: list[ProcessLinks]) -> None:
    first, second, third = workers
    tensor = torch.ones(3)
    first.send(Tag("a", 0, 1, 0), LinkMessage(tensor))
    first.send(Tag("a", 0, 2, 0), LinkMessage(tensor))
    assert received(second, Tag("a", 0, 1, 0)).tree is tensor, "handed over as it is"
    encoded = received(third, Tag("a", 0, 2, 0)).tree
    assert encoded is not tensor
    assert torch.equal(encoded, tensor)
    assert first.traffic[SECOND].size_bytes == 0 < first.traffic[THIRD].size_bytes


def test_gradients_and_room_come_back_the_same_way(workers: list[ProcessLinks]) -> None:
    first, second, _ = workers
    there, back = Tag("a", 0, 1, 0), Tag("a", 1, 0, 0)
    for number in range(2):
        first.send(there._replace(micro_batch=number), LinkMessage(torch.ones(1)))
    assert not first.has_room(there)
    assert second.has(there)
    second.receive(there)
    assert first.has_room(there)
    second.send(back, LinkMessage((torch.ones(2),), weight=1.5))
    assert received(first, back).weight == 1.5


def test_a_worker_that_no_transport_reaches_is_named(workers: list[ProcessLinks]) -> None:
    links, other = ProcessLinks(0, FIRST, PLAN), workers[2]
    with pytest.raises(ValueError, match=r"\(host 'mars'\).* share no memory, and there is no client"):
        links.connect({THIRD: replace(other.endpoint(), host="mars")})
    links.close()


def test_a_transport_may_have_a_descriptor_of_its_own_in_place_of_the_doorbell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links_module, "TRANSPORTS", {"datagrams": Datagrams})
    first, second, third = workers = [ProcessLinks(0, worker, PLAN) for worker in PLAN.workers]
    endpoints = {links.me: links.endpoint() for links in workers}
    for links in workers:
        links.connect(endpoints)
    first.send(Tag("a", 0, 1, 0), LinkMessage(torch.ones(3)))
    assert torch.equal(received(second, Tag("a", 0, 1, 0)).tree, torch.ones(3))
    assert not third.wait(0.0)
    sender = threading.Timer(0.05, first.send, (Tag("a", 0, 2, 0), LinkMessage(torch.ones(2))))
    sender.start()
    assert torch.equal(received(third, Tag("a", 0, 2, 0)).tree, torch.ones(2)), "it wakes a worker that waits"
    sender.join()
    for links in workers:
        links.close()
