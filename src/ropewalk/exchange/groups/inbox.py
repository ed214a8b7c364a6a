"""Inboxes hold packets from other members until they are taken, by sender and number, not in order of arrival."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection
from typing import Any, NamedTuple

from ropewalk.errors import ExchangeAborted, ExchangeStalled, MemberLost

NOTE = -1
"""In place of a collective's number: the packet is a note for the board, and replaces the last one of its sender."""


class Packet(NamedTuple):
    """A packet from one member to another.

    Attributes:
        epoch: epoch of the group; packets of earlier epochs are dropped on arrival.
        source: rank of the sender in that epoch.
        number: number of the collective in the group, from 0; members issue them in the same order. `NOTE` for a note.
        part: part of the collective, where it has several.
        tag: tag of the collective, to detect members that are in different collectives.
        facts: integers that travel with the payload.
        payload: bytes-like or an array; None for nothing.
    """

    epoch: int
    source: int
    number: int
    part: int
    tag: str
    facts: tuple[int, ...]
    payload: Any


class Inbox:
    """The inbox of one member, for all its groups. `deliver` is fast and may be called by any thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._epoch = 0
        self._packets: dict[tuple[int, int, int, int], tuple[Packet, float]] = {}
        self._lost: dict[tuple[int, int], str] = {}
        self._aborted: set[int] = set()

    def deliver(self, packet: Packet) -> None:
        """File a packet. Packets of earlier epochs and duplicates are dropped; packets of later epochs wait."""
        with self._changed:
            if packet.epoch >= self._epoch:
                key = (packet.epoch, packet.source, packet.number, packet.part)
                if packet.number == NOTE:
                    self._packets[key] = (packet, time.monotonic())
                    return
                self._packets.setdefault(key, (packet, time.monotonic()))
                self._changed.notify_all()

    def enter(self, epoch: int) -> None:
        """Accept only packets of this epoch and later ones from now on."""
        with self._changed:
            self._epoch = epoch
            self._packets = {key: value for key, value in self._packets.items() if key[0] >= epoch}
            self._lost = {key: value for key, value in self._lost.items() if key[0] >= epoch}

    def lose(self, epoch: int, rank: int, member: str) -> None:
        """Record that a member has died: no more packets will come from it in this epoch."""
        with self._changed:
            self._lost[epoch, rank] = member
            self._changed.notify_all()

    def abort(self, epoch: int) -> None:
        """End all waits for packets of this epoch."""
        with self._changed:
            self._aborted.add(epoch)
            self._changed.notify_all()

    def note(self, epoch: int, source: int) -> bytes | None:
        """Return the last note of a member; None if there is none."""
        with self._changed:
            found = self._packets.get((epoch, source, NOTE, 0))
        return bytes(found[0].payload) if found else None

    def check(self, epoch: int) -> None:
        """Raise the error that `take` of this epoch would raise without waiting, if any."""
        with self._changed:
            self._raise_if_over(epoch)

    def take(self, epoch: int, number: int, part: int, tag: str, sources: Collection[int], timeout_s: float) -> Any:
        """Return the first packet that comes from any of `sources`, with the time of its arrival.

        Args:
            epoch: epoch of the group.
            number: number of the collective.
            part: part of the collective.
            tag: tag of the collective, which the packet must have.
            sources: ranks of the possible senders.
            timeout_s: seconds to wait.

        Raises:
            MemberLost: any member of the epoch died.
            ExchangeAborted: `abort` was called.
            ExchangeStalled: no packet came within `timeout_s`, or a member is in another collective.
        """
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while True:
                self._raise_if_over(epoch)
                keys = [(epoch, source, number, part) for source in sources]
                if arrived := [key for key in keys if key in self._packets]:
                    first = min(arrived, key=lambda key: self._packets[key][1])
                    return _checked(self._packets.pop(first), tag)
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    ranks = tuple(sorted(sources))
                    raise ExchangeStalled(
                        f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))} did not come to {tag!r} "
                        f"within {timeout_s:g} s; they may still compute (raise timeout_s), be stopped, or exchange "
                        "other gradients than this member",
                        ranks=ranks,
                        waited_s=timeout_s,
                    )
                self._changed.wait(left_s)

    def _raise_if_over(self, epoch: int) -> None:
        if epoch in self._aborted or epoch < self._epoch:
            raise ExchangeAborted(f"the exchange of epoch {epoch} was given up here", epoch=epoch)
        lost = {rank: member for (of, rank), member in self._lost.items() if of == epoch}
        if lost:
            names = ", ".join(f"rank {rank} ({member})" for rank, member in sorted(lost.items()))
            raise MemberLost(
                f"{names} of epoch {epoch} is gone; the others go on in the next epoch",
                ranks=tuple(sorted(lost)),
                members=tuple(member for _, member in sorted(lost.items())),
                epoch=epoch,
            )


def _checked(found: tuple[Packet, float], tag: str) -> tuple[Packet, float]:
    packet, _ = found
    if packet.tag != tag:
        raise ExchangeStalled(
            f"rank {packet.source} is at {packet.tag!r} where this member is at {tag!r}: they exchange different "
            "gradients, or in another order; every member must use the same parameters in the same steps",
            ranks=(packet.source,),
            tensors=((packet.source, tag),),
        )
    return found
