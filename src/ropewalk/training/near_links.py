"""Links to workers on this host: through slots in shared memory, which are announced by the receiver's doorbell."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ropewalk.exchange.tensor_codec import TensorCodec
from ropewalk.training.link_transports import EncodedArrival, LinkOwner, LinkPeer
from ropewalk.transport.slots import Announced, DoorbellHandle, PeerSlots, SlotMemory


class NearLink:
    """The link to one worker of this host."""

    def __init__(self, peer: LinkPeer, memory: SlotMemory, me: int, codec: TensorCodec) -> None:
        self.slots = PeerSlots(peer.address)
        self._doorbell = DoorbellHandle(peer.doorbell, me)
        self._memory = memory
        self._codec = codec
        self.fileno = self._doorbell.fileno
        self.flush = self._doorbell.flush

    def send(self, tree: Any, note: bytes) -> int:
        encoded, doorbell = self._codec.encode(tree, note), self._doorbell
        if not doorbell.is_lost:  # else the receiver would not return the slot
            slot = self._memory.claim(encoded.size_bytes)
            encoded.write(slot.address)
            doorbell.announce(slot, encoded.size_bytes)
        return encoded.size_bytes

    @property
    def lost(self) -> str:
        return "its process is gone" if self._doorbell.is_lost else ""

    @property
    def is_behind(self) -> bool:
        return self._doorbell.is_behind

    def close(self) -> None:
        self._doorbell.close()
        self.slots.close()


class NearLinks:
    """The links to all workers of this host; see `LinkTransport`.

    Args:
        owner: the worker.
    """

    def __init__(self, owner: LinkOwner) -> None:
        self.memory = SlotMemory()
        self._numbers = {worker: number for number, worker in enumerate(owner.plan.workers)}
        self._me = self._numbers[owner.me]
        self._codec = owner.codec
        self._links: dict[int, NearLink] = {}
        self._announced = owner.announced

    def address(self) -> Any:
        return self.memory.place

    def link(self, peer: LinkPeer) -> NearLink | None:
        if not peer.is_here:
            return None
        link = NearLink(peer, self.memory, self._me, self._codec)
        self._links[self._numbers[peer.worker]] = link
        return link

    def fileno(self) -> int:
        return -1

    def arrived(self) -> Sequence[EncodedArrival]:
        found: list[EncodedArrival] = []
        early: list[Announced] = []
        for message in self._announced:
            link = self._links.get(message.sender)
            if link is None:  # it has connected to us, but we have not connected to it yet
                early.append(message)
            else:
                found.append(EncodedArrival(link.slots.open(message), self._codec))
        self._announced[:] = early
        return found

    def close(self) -> None:
        self._links.clear()
        self._announced.clear()
        self.memory.close()


__all__ = ["NearLink", "NearLinks"]
