"""A queue in shared memory whose items go round after a few."""

from __future__ import annotations

import pytest

from ropewalk.sharing.arena import DepotArena
from ropewalk.sharing.queue_memory import COUNT_AT, RUN, QueueRing
from ropewalk.sharing.record_words import FINISHED, GETS, PUTS, RING_LENGTH
from ropewalk.sharing.ringed_queue import seize

SMALL_CELLS = 10


@pytest.fixture(autouse=True)
def small_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Items go round after a few."""
    monkeypatch.setattr(QueueRing, "num_cells", SMALL_CELLS)


def a_ring(arena: DepotArena, bound: int = 0, num_before: int = 0) -> QueueRing:
    """Return an empty queue, into which a number of items were put before."""
    slot = arena.take_record()
    ring = QueueRing(arena, slot)
    ring.begin(1, bound)
    ring.words[PUTS] = ring.words[GETS] = num_before << COUNT_AT
    ring.words[FINISHED] = num_before
    if ring.num_cells == SMALL_CELLS:  # the others are of no item
        ring.headers[-1] = ring.headers[SMALL_CELLS] = RUN | 5 << COUNT_AT
    arena.free_record(slot)  # for the next one of this test
    return ring


def contents(ring: QueueRing) -> tuple[list[bytes], int, list[int]]:
    """Return the items, the number of unfinished ones and the calls; leaves the ring as it is."""
    before = bytes(ring.record[: 8 * (2 * RING_LENGTH + 64)])
    found = seize(ring)
    assert found
    ring.record[64 : len(before)] = before[64:]  # not the mutex
    return [parts[0] for parts in found[0]], found[1], found[2]
