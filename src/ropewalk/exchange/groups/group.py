"""The interface of groups: a few collectives, and an epoch number that stands for a fixed set of members.

A group is fixed: it has the same members from beginning to end. When a member dies or joins, the survivors form a group
of the next **epoch**, and packets that still arrive from the old one are dropped. Members are identified by their rank,
0 to size - 1; `members` has their names, which stay the same across epochs.

All calls are made by one thread per member (the communication thread), in the same order on every member.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence

from torch import Tensor

from ropewalk.exchange.groups.board import Board
from ropewalk.exchange.traffic import MemberTraffic


class Work(abc.ABC):
    """An operation that has begun."""

    @abc.abstractmethod
    def wait(self) -> None:
        """Wait until the operation is done; raises its error if it failed. May be called twice."""

    @property
    @abc.abstractmethod
    def done(self) -> bool: ...


class CompletedWork(Work):
    """An operation that was done at once."""

    def wait(self) -> None:
        return

    @property
    def done(self) -> bool:
        return True


class Group(abc.ABC):
    """The members of an exchange.

    Every collective raises `MemberLost` when a member is gone, `ExchangeStalled` when one does not arrive within its
    timeout, and `ExchangeAborted` when `abort` was called on this member meanwhile. After such an error the group
    cannot be used any more.

    Attributes:
        rank: rank of this process, from 0.
        size: number of members.
        epoch: counts the groups that followed each other.
        members: names of the members by rank; a member has the same name in all epochs.
        traffic: exact counters of bytes sent and received by this member.
        board: where members post their progress, so that a stall can name the missing members; None where there is
            none.
    """

    rank: int
    size: int
    epoch: int
    members: tuple[str, ...]
    traffic: MemberTraffic
    board: Board | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} rank {self.rank} of {self.size}, epoch {self.epoch}>"

    @abc.abstractmethod
    def all_reduce(self, buffer: Tensor, tag: str) -> Work:
        """Begin to replace `buffer` with the sum over all members; the group owns the buffer until the work is done.

        The order of additions is the same on every member, so that all hold the same bits.

        Args:
            buffer: one-dimensional; the same numel and dtype on every member.
            tag: label of the exchange, the same on every member; named in errors, counters and traces.

        Returns:
            The work to wait for.
        """

    @abc.abstractmethod
    def all_gather(
        self, message: memoryview, facts: Sequence[int], tag: str
    ) -> list[tuple[memoryview, tuple[int, ...]]]:
        """Send a message to every member and receive theirs, by rank; blocks.

        Args:
            message: bytes, possibly of a different length on each member; where all are empty, only the facts travel.
            facts: a few integers of 64 bits that travel ahead with the length; the same count on every member.
            tag: as in `all_reduce`.

        Returns:
            For each rank its message and its facts. This member's message is `message` itself; the memory of the others
            is valid until the next call.
        """

    @abc.abstractmethod
    def broadcast(self, buffer: Tensor, root: int, tag: str) -> None:
        """Replace `buffer` with that of the member with rank `root`; blocks."""

    def count_broadcast(self, buffer: Tensor, root: int, tag: str) -> None:
        """Count the bytes of a broadcast in which the root sends to each member."""
        if self.rank == root:
            self.traffic.add(tag, sent=buffer.nbytes * (self.size - 1))
        else:
            self.traffic.add(tag, received=buffer.nbytes)

    @abc.abstractmethod
    def abort(self) -> None:
        """Wake up threads that wait in a call of this group, which then raises `ExchangeAborted`; from any thread."""

    @abc.abstractmethod
    def close(self) -> None:
        """Close connections; may be called twice."""
