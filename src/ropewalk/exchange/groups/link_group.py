"""`LinkGroup`: collectives over Ropewalk's own links, which are encrypted between hosts and can lose a member.

    member 0 ── sends[1](packet) ──▶ inbox of member 1          one-way calls; `deliver` files the packet
    all-reduce of large buffers: a ring (Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms, 2009)

        reduce-scatter                       all-gather
        c0 ─▶ 1 ─▶ 2 ─▶ 3   (each adds)      c0 ─▶ 0 ─▶ 1 ─▶ 2      every chunk goes round twice: 2 (M-1)/M of the bytes

A chunk is summed along the ring in one order and then passed on, so all members hold the same bits. Small buffers are
sent to every member at once and added in the order of ranks: M - 1 messages, but only one delay.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ropewalk.errors import ExchangeInvalid, ServiceLost
from ropewalk.exchange.groups.board import Board
from ropewalk.exchange.groups.group import CompletedWork, Group, Work
from ropewalk.exchange.groups.inbox import NOTE, Inbox, Packet
from ropewalk.exchange.groups.link_emulation import EmulatedPort, LinkEmulation
from ropewalk.exchange.traffic import MemberTraffic

_SMALL_BYTES = 512
"""Up to this size in bytes every member receives every buffer. That is one delay instead of 2 (M - 1), which hardly
matters to a neighbour, and M / 2 times the bytes, which matters on a slow link."""
_FACT_BYTES = 8

Send = Callable[[Packet], object]


class LinkGroup(Group):
    """A group over one-way calls to the other members.

    Args:
        rank: rank of this member.
        members: names of all members by rank.
        epoch: epoch of the group; larger than that of every earlier group of these members.
        sends: by rank, a function that delivers a packet to that member's inbox and does not wait; this member's own is
            not used.
        inbox: inbox of this member, to which the others send.
        timeout_s: seconds to wait for a member before a collective fails.
        shaping: makes the links slower than they are, for experiments.

    Raises:
        ExchangeInvalid: ranks, names and functions do not fit.
    """

    def __init__(
        self,
        rank: int,
        members: Sequence[str],
        epoch: int,
        sends: Sequence[Send],
        inbox: Inbox,
        *,
        timeout_s: float = 300.0,
        shaping: LinkEmulation | None = None,
    ) -> None:
        if not 0 <= rank < len(members) or len(sends) != len(members):
            raise ExchangeInvalid(f"rank {rank} of {len(members)} members with {len(sends)} ways to send cannot be")
        self.rank = rank
        self.size: int = len(members)
        self.epoch = epoch
        self.members: tuple[str, ...] = tuple(members)
        self.traffic: MemberTraffic = MemberTraffic()
        self._sends = sends
        self._inbox = inbox
        self._timeout_s = timeout_s
        self._port = EmulatedPort(shaping) if shaping else None
        self._number = 0
        self.board: Board | None = LinkBoard(rank, epoch, sends, inbox)
        inbox.enter(epoch)

    def all_reduce(self, buffer: Tensor, tag: str) -> Work:
        number = self._next()
        if self.size == 1:
            return CompletedWork()
        on_cpu = buffer.device.type == "cpu"
        held = buffer if on_cpu else buffer.cpu()
        if held.numel() * held.element_size() <= _SMALL_BYTES:
            self._add_up(held, number, tag)
        else:
            self._ring(held, number, tag)
        if not on_cpu:
            buffer.copy_(held)
        return CompletedWork()

    def all_gather(
        self, message: memoryview, facts: Sequence[int], tag: str
    ) -> list[tuple[memoryview, tuple[int, ...]]]:
        number = self._next()
        # A copy, because a slow member may not have read it when the next message is made in the same memory.
        payload = np.array(message, dtype=np.uint8) if len(message) else None
        for step in range(1, self.size):
            self._send((self.rank + step) % self.size, number, 0, tag, payload, tuple(facts))
        found: list[tuple[memoryview, tuple[int, ...]]] = [(message, tuple(facts))] * self.size
        missing = set(range(self.size)) - {self.rank}
        while missing:
            packet = self._take(missing, number, 0, tag)
            missing.remove(packet.source)
            found[packet.source] = (memoryview(b"" if packet.payload is None else packet.payload), packet.facts)
        return found

    def broadcast(self, buffer: Tensor, root: int, tag: str) -> None:
        number = self._next()
        if self.rank == root:
            payload = _bytes_of(buffer.cpu()).copy()
            for step in range(1, self.size):
                self._send((root + step) % self.size, number, 0, tag, payload)
        else:
            packet = self._take({root}, number, 0, tag)
            buffer.copy_(_tensor_of(packet.payload, buffer.dtype).view(buffer.shape))

    def lose(self, rank: int) -> None:
        """Record that a member has died: threads that wait here for the group get the error. For any thread."""
        self._inbox.lose(self.epoch, rank, self.members[rank])

    def abort(self) -> None:
        self._inbox.abort(self.epoch)

    def close(self) -> None:
        self.abort()

    def _add_up(self, held: Tensor, number: int, tag: str) -> None:
        payload = _bytes_of(held).copy()
        for step in range(1, self.size):
            self._send((self.rank + step) % self.size, number, 0, tag, payload)
        terms = {self.rank: _tensor_of(payload, held.dtype)}
        missing = set(range(self.size)) - {self.rank}
        while missing:
            packet = self._take(missing, number, 0, tag)
            missing.remove(packet.source)
            terms[packet.source] = _tensor_of(packet.payload, held.dtype)
        flat = held.view(-1)
        flat.copy_(terms[0])
        for rank in range(1, self.size):
            flat.add_(terms[rank])

    def _ring(self, held: Tensor, number: int, tag: str) -> None:
        chunks = list(torch.tensor_split(held.view(-1), self.size))
        following, before = (self.rank + 1) % self.size, (self.rank - 1) % self.size
        steps = self.size - 1
        for part in range(2 * steps):
            adds = part < steps
            # After `steps` parts this member holds the whole sum of chunk rank + 1.
            at = (self.rank - part) % self.size if adds else (self.rank + 1 - (part - steps)) % self.size
            # While sums travel, a chunk is overwritten only by its successor that comes back, so the next member has
            # read it. When sums are passed on, no answer comes back, and the buffer is the caller's after this returns:
            # a copy.
            payload = _bytes_of(chunks[at])
            self._send(following, number, part, tag, payload if adds else payload.copy())
            arrived = _tensor_of(self._take({before}, number, part, tag).payload, held.dtype)
            into = chunks[(at - 1) % self.size]
            if adds:
                into.add_(arrived)
            else:
                into.copy_(arrived)

    def _next(self) -> int:
        self._inbox.check(self.epoch)
        number, self._number = self._number, self._number + 1
        return number

    def _send(
        self, to: int, number: int, part: int, tag: str, payload: NDArray[np.uint8] | None, facts: tuple[int, ...] = ()
    ) -> None:
        size_bytes, header_bytes = 0 if payload is None else payload.nbytes, _FACT_BYTES * (1 + len(facts))
        if self._port:
            self._port.sent(size_bytes + header_bytes)
        try:
            self._sends[to](Packet(self.epoch, self.rank, number, part, tag, facts, payload))
        except ServiceLost:
            self.lose(to)
            self._inbox.check(self.epoch)
        self.traffic.add(tag, sent=size_bytes, headers_sent=header_bytes)

    def _take(self, sources: set[int], number: int, part: int, tag: str) -> Packet:
        packet, arrived_at = cast(
            "tuple[Packet, float]", self._inbox.take(self.epoch, number, part, tag, sources, self._timeout_s)
        )
        size_bytes = 0 if packet.payload is None else memoryview(packet.payload).nbytes
        header_bytes = _FACT_BYTES * (1 + len(packet.facts))
        if self._port:
            self._port.received(size_bytes + header_bytes, arrived_at)
        self.traffic.add(tag, received=size_bytes)
        return packet


class LinkBoard:
    """A board that each member keeps for itself: a note is sent to all others. Notes are not shaped and not counted."""

    def __init__(self, rank: int, epoch: int, sends: Sequence[Send], inbox: Inbox) -> None:
        self._rank = rank
        self._epoch = epoch
        self._sends = sends
        self._inbox = inbox

    def post(self, note: bytes) -> None:
        packet = Packet(self._epoch, self._rank, NOTE, 0, "note", (), note)
        self._inbox.deliver(packet)
        for rank, send in enumerate(self._sends):
            if rank != self._rank:
                with contextlib.suppress(ServiceLost):  # the next collective will tell
                    send(packet)

    def read(self) -> list[bytes | None]:
        return [self._inbox.note(self._epoch, rank) for rank in range(len(self._sends))]


def _bytes_of(flat: Tensor) -> NDArray[np.uint8]:
    """Return the memory of a contiguous tensor, of any dtype, as uint8."""
    return cast("NDArray[np.uint8]", flat.detach().contiguous().view(-1).view(torch.uint8).numpy())


def _tensor_of(payload: Any, dtype: torch.dtype) -> Tensor:
    """Return a tensor over received memory; it must only be read."""
    memory = np.frombuffer(payload, dtype=np.uint8)
    # Torch warns about memory that cannot be written, and nothing here writes to it.
    memory = memory if memory.flags.writeable else memory.copy()
    return torch.from_numpy(memory).view(dtype)  # pyright: ignore[reportUnknownMemberType]
