"""A group whose members are threads of one process: for tests, for debugging, and for many members on one host.

    member 0 ── all_reduce #3 ──▶ ┌ shared state ─────┐
    member 1 ── all_reduce #3 ──▶ │ call 3: 2 of 3 in │ ◀── the last member adds up, in the order of ranks
    member 2                      └───────────────────┘

Each member numbers its own calls, so the n-th call of one is matched with the n-th calls of the others. The group keeps
the promises of `Group`, failures included: `leave` stands for the death of a process.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor

from ropewalk.errors import ExchangeAborted, ExchangeInvalid, ExchangeStalled, MemberLost
from ropewalk.exchange.groups.board import Board, MemoryBoard
from ropewalk.exchange.groups.group import Group, Work
from ropewalk.exchange.traffic import MemberTraffic, ring_bytes

R = TypeVar("R")


@dataclass(slots=True)
class _Collective:
    """One collective: the values that members have contributed so far, by rank."""

    what: str
    tag: str
    brought: dict[int, Any] = field(default_factory=dict[int, Any])
    done: bool = False
    error: Exception | None = None
    """Why the last member could not complete it."""


class _GroupState:
    """State that the members of one group share."""

    def __init__(self, size: int) -> None:
        self.changed: threading.Condition = threading.Condition()
        self.size = size
        self.calls: dict[int, _Collective] = {}
        self.lost: set[int] = set()

    def enter(
        self, number: int, rank: int, what: str, tag: str, value: Any, complete: Callable[[_Collective], None]
    ) -> _Collective:
        """Contribute `value` to a call; the last member completes it for all."""
        with self.changed:
            call = self.calls.setdefault(number, _Collective(what, tag))
            if (call.what, call.tag) != (what, tag):
                raise ExchangeInvalid(
                    f"member {rank} calls {what}({tag!r}) where others call {call.what}({call.tag!r}); "
                    "every member makes the same calls in the same order"
                )
            call.brought[rank] = value
            if len(call.brought) == self.size:
                try:
                    complete(call)
                except Exception as error:  # each member raises it
                    call.error = error
                call.done = True
                del self.calls[number]
                self.changed.notify_all()
            return call


class _Waiting(Work):
    """One member's view of a call."""

    def __init__(self, group: ThreadGroup, call: _Collective) -> None:
        self._group = group
        self._call = call

    @property
    def done(self) -> bool:
        return self._call.done

    def wait(self) -> None:
        self._group._wait(self._call)  # pyright: ignore[reportPrivateUsage]


class ThreadGroup(Group):
    """A member of a group inside this process; `make` makes all of them."""

    def __init__(
        self, rank: int, room: _GroupState, epoch: int, members: tuple[str, ...], timeout_s: float, board: Board
    ) -> None:
        self.rank = rank
        self.size: int = room.size
        self.epoch = epoch
        self.members = members
        self.traffic: MemberTraffic = MemberTraffic()
        self.board: Board | None = board
        self._room = room
        self._timeout_s = timeout_s
        self._num_calls = 0
        self._aborted = False

    @classmethod
    def make(
        cls, size: int, epoch: int = 0, members: Sequence[str] | None = None, timeout_s: float = 30.0
    ) -> list[ThreadGroup]:
        """Make all members of a new group, by rank; each is for one thread.

        Args:
            size: number of members, at least 1.
            epoch: epoch of the group.
            members: names by rank; None for "member 0", "member 1", ...
            timeout_s: seconds to wait for a member before a collective fails.
        """
        names = tuple(members or (f"member {rank}" for rank in range(size)))
        if size < 1 or len(names) != size:
            raise ValueError(f"a group has at least 1 member and a name for each, not {size} and {names}")
        room = _GroupState(size)
        boards = MemoryBoard.make(size)
        return [cls(rank, room, epoch, names, timeout_s, boards[rank]) for rank in range(size)]

    def all_reduce(self, buffer: Tensor, tag: str) -> Work:
        def add_up(call: _Collective) -> None:
            buffers: list[Tensor] = [call.brought[rank] for rank in range(self.size)]
            total = buffers[0].clone()
            for other in buffers[1:]:
                total += other
            for each in buffers:
                each.copy_(total)

        # Under torch.no_grad, because the last of the threads writes to the buffers of all.
        with torch.no_grad():
            call = self._enter("all_reduce", tag, buffer, add_up)
        moved = ring_bytes(buffer.nbytes, self.size)
        self.traffic.add(tag, sent=moved, received=moved)
        return _Waiting(self, call)

    def all_gather(
        self, message: memoryview, facts: Sequence[int], tag: str
    ) -> list[tuple[memoryview, tuple[int, ...]]]:
        # A copy, because the sender may reuse the memory as soon as its own call returns.
        call = self._enter("all_gather", tag, (bytes(message), tuple(facts)), lambda call: None)
        self._wait(call)
        gathered: list[tuple[bytes, tuple[int, ...]]] = [call.brought[rank] for rank in range(self.size)]
        others, header = self.size - 1, 8 * (1 + len(facts))
        self.traffic.add(
            tag,
            sent=message.nbytes * others,
            received=sum(len(data) for data, _ in gathered) - message.nbytes,
            headers_sent=header * others,
        )
        return [
            (message if rank == self.rank else memoryview(data), theirs) for rank, (data, theirs) in enumerate(gathered)
        ]

    def broadcast(self, buffer: Tensor, root: int, tag: str) -> None:
        def copy(call: _Collective) -> None:
            for rank, each in call.brought.items():
                if rank != root:
                    each.copy_(call.brought[root])

        with torch.no_grad():
            self._wait(self._enter("broadcast", tag, buffer, copy))
        self.count_broadcast(buffer, root, tag)

    def abort(self) -> None:
        with self._room.changed:
            self._aborted = True
            self._room.changed.notify_all()

    def leave(self) -> None:
        """Leave as if this member's process had died: the others get `MemberLost` where they wait for it."""
        with self._room.changed:
            self._room.lost.add(self.rank)
            self._room.changed.notify_all()

    def close(self) -> None:
        return

    def _enter(self, what: str, tag: str, value: Any, complete: Callable[[_Collective], None]) -> _Collective:
        number, self._num_calls = self._num_calls, self._num_calls + 1
        with self._room.changed:
            self._refuse_if_over(what, tag)
            return self._room.enter(number, self.rank, what, tag, value, complete)

    def _wait(self, call: _Collective) -> None:
        began = time.monotonic()
        with self._room.changed:
            while not call.done:
                self._refuse_if_over(call.what, call.tag)
                if missing := self._room.lost - call.brought.keys():
                    names = tuple(self.members[rank] for rank in sorted(missing))
                    raise MemberLost(
                        f"{', '.join(names)} (of {self.size} members, epoch {self.epoch}) left before "
                        f"{call.what}({call.tag!r}); form a group of the others",
                        ranks=tuple(sorted(missing)),
                        members=names,
                        epoch=self.epoch,
                    )
                waited = time.monotonic() - began
                if waited >= self._timeout_s:
                    late = tuple(sorted(set(range(self.size)) - call.brought.keys()))
                    raise ExchangeStalled(
                        f"ranks {', '.join(map(str, late))} did not come to {call.what}({call.tag!r}) within "
                        f"{self._timeout_s:g} s; look there, or raise timeout_s",
                        ranks=late,
                        waited_s=waited,
                    )
                self._room.changed.wait(self._timeout_s - waited)
        if call.error is not None:
            raise ExchangeInvalid(
                f"{call.what}({call.tag!r}) of {self.size} members cannot be: {call.error}; every member brings as "
                "many values of one dtype"
            ) from call.error

    def _refuse_if_over(self, what: str, tag: str) -> None:
        if self._aborted:
            raise ExchangeAborted(
                f"{what}({tag!r}) of epoch {self.epoch} was aborted; go on with the next group", epoch=self.epoch
            )


def run_members(groups: Sequence[ThreadGroup], body: Callable[[ThreadGroup], R], timeout_s: float = 60.0) -> list[R]:
    """Run `body(group)` of every member in a thread of its own, and return the results by rank.

    A member whose body raises leaves the group, as a process that dies does. Its error is raised here; an error that
    reports the loss of another member is raised only if there is no other.

    Args:
        groups: the members, as `ThreadGroup.make` returns them.
        body: called with a member's group, in that member's thread.
        timeout_s: seconds to wait for all members.
    """
    results: dict[int, R] = {}
    errors: list[BaseException] = []

    def run(group: ThreadGroup) -> None:
        try:
            results[group.rank] = body(group)
        except BaseException as error:  # raised again below, in the thread of the caller
            errors.append(error)
            group.leave()

    threads = [threading.Thread(target=run, args=(group,), name=f"rank {group.rank}", daemon=True) for group in groups]
    for thread in threads:
        thread.start()
    end = time.monotonic() + timeout_s
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    if errors:
        raise next((error for error in errors if not isinstance(error, MemberLost)), errors[0])
    if stuck := [thread.name for thread in threads if thread.is_alive()]:
        raise ExchangeStalled(f"{', '.join(stuck)} did not end within {timeout_s:g} s", waited_s=timeout_s)
    return [results[group.rank] for group in groups]
