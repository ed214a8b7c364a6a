"""What an exchange asks of those it talks to: a handful of collectives, and a number for who takes part.

A group is fixed: the same members from beginning to end. When one dies or joins, the survivors form a
group of the next **epoch**, and what still arrives from the old one is dropped. Members are called by their
rank, 0 to size - 1; `members` says which process that is, in a way that outlives epochs.

All calls are made by one thread per member (the communication thread), in the same order on every member.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence

from torch import Tensor

from ropewalk.exchange.groups.board import Board
from ropewalk.exchange.traffic import MemberTraffic


class Work(abc.ABC):
    """Something that was begun."""

    @abc.abstractmethod
    def wait(self) -> None:
        """Wait until it is done; raises what it failed with. May be called twice."""

    @property
    @abc.abstractmethod
    def done(self) -> bool: ...


class CompletedWork(Work):
    """What was done at once."""

    def wait(self) -> None:
        return

    @property
    def done(self) -> bool:
        return True


class Group(abc.ABC):
    """The members of an exchange.

    Every collective raises `MemberLost` when a member is gone, `ExchangeStalled` when one does not arrive within
    its timeout, and `ExchangeAborted` when `abort` was called here meanwhile. After that the group is of no use.

    Attributes:
        rank: which of the members this process is, from 0.
        size: how many there are.
        epoch: counts the groups that followed each other.
        members: names of the members by rank, the same in all epochs.
        traffic: what was sent and received here, exactly.
        board: where members post how far they are, so that a stall can name who is missing; None where there is none.
    """

    rank: int
    size: int
    epoch: int
    members: tuple[str, ...]
    traffic: MemberTraffic
    board: Board | None = None

    @abc.abstractmethod
    def all_reduce(self, buffer: Tensor, tag: str) -> Work:
        """Begin to replace `buffer` by the sum over all members; it belongs to the group until the work is done.

        The order of additions is the same on every member, so that all hold the same bits.

        Args:
            buffer: flat; the same numel and dtype on every member.
            tag: what is exchanged, the same on every member; named in errors, counters and traces.
        """

    @abc.abstractmethod
    def all_gather(
        self, message: memoryview, facts: Sequence[int], tag: str
    ) -> list[tuple[memoryview, tuple[int, ...]]]:
        """Give a message to every member and get theirs, by rank; blocks.

        Args:
            message: bytes, of another length on each member perhaps; where all are empty, only the facts travel.
            facts: a few whole numbers (64 bits) that travel ahead with the length; as many on every member.
            tag: as in `all_reduce`.

        Returns:
            For each rank its message and its facts. The own one is `message` itself; the memory of the others is
            theirs to use until the next call.
        """

    @abc.abstractmethod
    def broadcast(self, buffer: Tensor, root: int, tag: str) -> None:
        """Replace `buffer` by that of the member with rank `root`; blocks."""

    def count_broadcast(self, buffer: Tensor, root: int, tag: str) -> None:
        """Note what a broadcast moved, where the root sends to each member."""
        if self.rank == root:
            self.traffic.add(tag, sent=buffer.nbytes * (self.size - 1))
        else:
            self.traffic.add(tag, received=buffer.nbytes)

    @abc.abstractmethod
    def abort(self) -> None:
        """Wake up who waits in a call of this group, which then raises `ExchangeAborted`; from any thread."""

    @abc.abstractmethod
    def close(self) -> None:
        """Let go of connections; may be called twice."""
