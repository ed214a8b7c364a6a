"""`LinkGroup`: collectives over Ropewalk's own links, which are encrypted between hosts and can lose a member.

    member 0 ── sends[1](packet) ──▶ inbox of member 1          one-way calls; `deliver` files the packet
    all-reduce of large buffers: slice k of every buffer goes to member k, which adds it up and sends the sum to all

        reduce-scatter                          all-gather
        member 0  a0 a1 a2 ─▶ a1 to 1, a2 to 2      a0 + b0 + c0 ─▶ 1 and 2
        member 1  b0 b1 b2 ─▶ b0 to 0, b2 to 2      a1 + b1 + c1 ─▶ 0 and 2      2 (M-1)/M of the bytes, as in a ring
        member 2  c0 c1 c2 ─▶ c0 to 0, c1 to 1      a2 + b2 + c2 ─▶ 0 and 1

All sums are added in the order of ranks, so all members hold the same bits, which are those of one process. Small
buffers are sent to every member at once: M - 1 messages, but only one delay.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
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
"""Up to this size in bytes every member receives every buffer: one delay instead of two, and M / 2 times the bytes."""
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
        flat = held.view(-1)
        if flat.nbytes <= _SMALL_BYTES:
            self._send_to_all(number, 0, tag, _bytes_of(flat).copy())
            self._add_up(flat, number, tag)
        else:
            self._add_up_slices(flat, number, tag)
        if not on_cpu:
            buffer.copy_(held)
        return CompletedWork()

    def all_gather(
        self, message: memoryview, facts: Sequence[int], tag: str
    ) -> list[tuple[memoryview, tuple[int, ...]]]:
        number = self._next()
        # A copy, because a slow member may not have read it when the next message is made in the same memory.
        payload = np.array(message, dtype=np.uint8) if len(message) else None
        self._send_to_all(number, 0, tag, payload, tuple(facts))
        found: list[tuple[memoryview, tuple[int, ...]]] = [(message, tuple(facts))] * self.size
        for packet in self._take_from_all(number, 0, tag):
            found[packet.source] = (memoryview(b"" if packet.payload is None else packet.payload), packet.facts)
        return found

    def broadcast(self, buffer: Tensor, root: int, tag: str) -> None:
        number = self._next()
        if self.rank == root:
            self._send_to_all(number, 0, tag, _bytes_of(buffer.cpu()).copy())
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

    def _add_up_slices(self, flat: Tensor, number: int, tag: str) -> None:
        slices = flat.tensor_split(self.size)
        # No copies: a slice is overwritten only by its sum, which its receiver sends when it has read it.
        for to in self._others:
            self._send(to, number, 0, tag, _bytes_of(slices[to]))
        own = slices[self.rank]
        self._add_up(own, number, tag)
        # A copy, because the buffer is the caller's after this returns.
        self._send_to_all(number, 1, tag, _bytes_of(own).copy())
        for packet in self._take_from_all(number, 1, tag):
            slices[packet.source].copy_(_tensor_of(packet.payload, flat.dtype))

    def _add_up(self, flat: Tensor, number: int, tag: str) -> None:
        """Add to a tensor, in the order of ranks, those that the others have sent to this member."""
        terms = {
            packet.source: _tensor_of(packet.payload, flat.dtype) for packet in self._take_from_all(number, 0, tag)
        }
        terms[self.rank] = flat.clone()
        flat.copy_(terms[0])
        for rank in range(1, self.size):
            flat.add_(terms[rank])

    @property
    def _others(self) -> list[int]:
        """The ranks of the others; each member begins with the next one, so that not all send to one at once."""
        return [(self.rank + step) % self.size for step in range(1, self.size)]

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

    def _send_to_all(
        self, number: int, part: int, tag: str, payload: NDArray[np.uint8] | None, facts: tuple[int, ...] = ()
    ) -> None:
        for to in self._others:
            self._send(to, number, part, tag, payload, facts)

    def _take_from_all(self, number: int, part: int, tag: str) -> Iterator[Packet]:
        """Yield the packets of all others, as they arrive."""
        missing = set(self._others)
        while missing:
            packet = self._take(missing, number, part, tag)
            missing.remove(packet.source)
            yield packet

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
