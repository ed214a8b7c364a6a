"""The depot's part in queues whose items are in memory that its host shares.

    a call that the ring cannot make ─▶ RingedQueue ─ seizes the items ─▶ QueueState: decided here, as for other hosts
                                              └ at rest again, and no other host takes part ─▶ given back to the ring

The calls that wait in the ring when it is seized are woken, and made again here. Until then a *claim* has the place of
each of `get`, and its item: so a process that is stopped keeps its turn. The calls that wait here when the queue is
given back end with `QueueInRing`, and are made again there. The depot also notices the end of each process, and drops
its calls in the ring.
"""

from __future__ import annotations

import contextlib
import functools
import mmap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from ropewalk.calls.payloads import PackedValue
from ropewalk.sharing.arena import NUM_SEATS
from ropewalk.sharing.lock_rings import place_of
from ropewalk.sharing.queue_memory import CALL, GET, HEADER_BYTES, JOIN, JOINED, PUT, QueueRing, opened, sealed, side
from ropewalk.sharing.queue_ring import drop
from ropewalk.sharing.record_words import IN_DEPOT, PRESENT, RING_LENGTH, TARGET
from ropewalk.sharing.states.queue import QueueState
from ropewalk.sharing.states.waiting import CallOutcome, ItemLease, Party, Waiter
from ropewalk.sharing.waiting_calls import QueuedItem
from ropewalk.transport.process_mutex import lock, post, unlock

if TYPE_CHECKING:
    from ropewalk.sharing.arena import DepotArena
    from ropewalk.sharing.recorded_state import DepotCallers
    from ropewalk.transport.frames import Part


_MOST_GIVEN_BYTES = 1 << 20
"""Bytes of the items with which a queue is given back, at most."""
_FIRST_GIVEN, _MOST_GIVEN = 64, 4096
"""Items with which a queue is given back, at most: just after it was seized, and ever, which takes some milliseconds in
which its depot does nothing else. Each call that is made here meanwhile allows for one more of them: so a backlog that
lasts is given back as well, and to move the items to and fro takes no more time than the calls did."""


class QueueInRing(Exception):
    """The queue is in shared memory again: the call is made there."""


class RingedQueue(QueueState):
    """The state of a queue as the depot keeps it while the ring does not.

    Args:
        callers: the numbers of callers.
        slot: the place of the queue's record.
        maxsize, joinable: as for `QueueState`.
    """

    METHODS: ClassVar = QueueState.METHODS | {"get_or_leave"}
    LENDING: ClassVar = QueueState.LENDING | {"get_or_leave"}

    def __init__(self, callers: DepotCallers, slot: int, maxsize: int = 0, joinable: bool = False) -> None:
        assert callers.arena
        super().__init__(maxsize, joinable)
        self.slot = slot
        self.part = 0
        self._arena: DepotArena = callers.arena
        self._callers = callers
        self._ring = QueueRing(callers.arena, slot)
        self._is_ringed = True
        self._far: set[str] = set()
        """The processes that have called and cannot use the ring, by `Party.process`."""
        self._leaving: set[Waiter] = set()
        """The calls that wait and can be made in the ring."""
        self._claims: list[Waiter] = []
        """The calls of `get` that have waited in the ring and are not made here yet, in their turn."""
        self._most_given = _FIRST_GIVEN
        for name in QueueState.METHODS:
            setattr(self, name, functools.partial(self._call, getattr(self, name)))

    def begin(self, target: int) -> None:
        """Write the first state."""
        self._ring.begin(target, max(self._maxsize, 0))

    def get_or_leave(self, waiter: Waiter, lot: ItemLease | None = None) -> list[CallOutcome]:
        """Lend the first item, as `get`, to a process that can use the ring; `QueueInRing` if it has to be taken there.

        Args:
            waiter: the call.
            lot: as for `get`.
        """
        self._most_given += 1
        if not self._is_ringed and self._may_leave():
            items, num_unfinished, waiting = self.leave()
            give_back(self._ring, [item.packed.parts for item in items], num_unfinished)
            self._is_ringed = True
            outcomes = [CallOutcome(each, error=QueueInRing()) for each in (*waiting, waiter)]
            outcomes = self._without_claims(outcomes)
            self._leaving.clear()
            self._claims.clear()
            return outcomes
        if self._is_ringed:
            return [CallOutcome(waiter, error=QueueInRing())]
        claim = next((claim for claim in self._claims if claim.party.process == waiter.party.process), None)
        if claim:
            self._claims.remove(claim)
            self._leaving.discard(claim)
        outcomes = self._without_claims(self.pass_on(claim, waiter) if claim else super().get(waiter, lot))
        if not any(outcome.waiter is waiter for outcome in outcomes):
            self._leaving.add(waiter)
        return outcomes

    def give_up(self, waiter: Waiter, timed_out: bool) -> list[CallOutcome]:
        """End a call; see `SharedState`."""
        self._leaving.discard(waiter)
        return self._without_claims(super().give_up(waiter, timed_out))

    def begun(self) -> list[CallOutcome]:
        """Handle a report; see `QueueState`."""
        return self._without_claims(super().begun())

    def unclaim(self, process: str) -> list[CallOutcome]:
        """Handle that calls of a process were interrupted, which will not be made here."""
        outcomes = list[CallOutcome]()
        for claim in [claim for claim in self._claims if claim.party.process == process]:
            self._claims.remove(claim)
            outcomes += self.give_up(claim, False)
        return outcomes

    def party_gone(self, process: str, name: str) -> list[CallOutcome]:
        """Handle the end of a process, and wake the threads whose turn it is: it may have died before it did."""
        self._far.discard(process)
        self._leaving = {waiter for waiter in self._leaving if waiter.party.process != process}
        outcomes = self._without_claims(super().party_gone(process, name))
        self._claims = [claim for claim in self._claims if claim.party.process != process]
        number = self._callers.number_of(process)
        if number is not None and number <= NUM_SEATS:
            self._wake(drop(self._ring, number))
        return outcomes

    def close(self) -> None:
        """Give the record back."""
        clear(self._ring)
        self._arena.free_record(self.slot)

    def _call(self, method: Any, waiter: Any, *args: Any) -> list[CallOutcome]:
        if self._callers.number(waiter.caller) > NUM_SEATS:
            self._far.add(waiter.party.process)
        self._most_given += 1
        seized = seize(self._ring) if self._is_ringed else None
        if seized:
            items, num_unfinished, waiting = seized
            self._is_ringed, self._most_given = False, _FIRST_GIVEN
            self.enter([_queued(parts) for parts in items], num_unfinished)
            for word in waiting:
                process = self._callers.process_of(place_of(word & CALL)[0])
                if word & GET and process:
                    claim = Waiter(Party(process, ""))
                    self._claims.append(claim)
                    self._leaving.add(claim)
                    super().get(claim)
            self._wake(waiting)
        return self._without_claims(method(waiter, *args))

    def _without_claims(self, outcomes: list[CallOutcome]) -> list[CallOutcome]:
        """Return the outcomes of calls that were made here: a claim keeps its own until its call is made."""
        return [outcome for outcome in outcomes if outcome.waiter not in self._claims]

    def _may_leave(self) -> bool:
        """Whether the processes of this host can go on with the queue by themselves."""
        line = self._line
        if self._far or line.size_bytes > _MOST_GIVEN_BYTES or len(line) > min(self._most_given, _MOST_GIVEN):
            return False
        if any(getter not in self._leaving for getter, _ in self._getters) or not self.is_at_rest():
            return False
        self._most_given = _FIRST_GIVEN  # to look at the items takes as long as to move them
        items: list[Any] = line.items
        num_bytes = sum(item.size_bytes + (1 + len(item.packed.parts)) * 2 * HEADER_BYTES for item in items)
        return num_bytes <= _MOST_GIVEN_BYTES and not any(item.packed.fds for item in items)

    def _wake(self, words: Iterable[int]) -> None:
        for word in words:
            post(self._arena.berth(*place_of(word & CALL)))


def seize(ring: QueueRing) -> tuple[list[list[bytes]], int, list[int]] | None:
    """Have the depot keep the queue from now on; None if it does.

    Returns:
        The items, each as its parts; the number of those that are unfinished; and the words of the calls that waited.
    """
    words = ring.words
    try:
        lock(ring.mutex)
        if words[PRESENT] == IN_DEPOT:
            return None
        items, unfinished = [opened(*item) for item in ring.items()], ring.unfinished
        waiting = [*ring.calls(GET), *ring.calls(PUT | JOIN | JOINED)]
        for queue, calls in map(side, (GET, PUT)):
            words[calls : calls + RING_LENGTH] = memoryview(bytes(8 * RING_LENGTH)).cast("q")
            words[queue] = 0
        words[PRESENT] = IN_DEPOT
        return items, unfinished, waiting
    finally:
        unlock(ring.mutex)


def give_back(ring: QueueRing, items: Sequence[Sequence[Part]], unfinished: int) -> None:
    """Have the processes of the host keep the queue again; for its depot.

    Args:
        ring: the queue.
        items: the items in it, each as its parts, together at most `_MOST_GIVEN_BYTES`, with `HEADER_BYTES` for each.
        unfinished: how many are not finished.
    """
    try:
        lock(ring.mutex)
        at = 0
        for parts in items:
            ring.write(at, *sealed(parts))
            at = ring.after(at)
        ring.restart(at, len(items), unfinished)
    finally:
        unlock(ring.mutex)


def clear(ring: QueueRing) -> None:
    """Give the memory of the items back to the system; for the depot of a queue that nobody uses any more."""
    ring.words[TARGET] = 0
    with contextlib.suppress(OSError):  # it goes with the depot
        ring.memory.madvise(mmap.MADV_REMOVE)


def _queued(parts: list[bytes]) -> QueuedItem:
    return QueuedItem(PackedValue(parts), sum(map(len, parts)))


__all__ = ["QueueInRing", "RingedQueue", "give_back", "seize"]
