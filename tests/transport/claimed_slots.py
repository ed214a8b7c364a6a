"""The slots of a shared memory that hold messages which somebody may still read."""

from __future__ import annotations

from ropewalk.transport.slots import SlotMemory


def num_claimed(memory: SlotMemory) -> int:
    """How many slots are not free."""
    return sum(sum(slab.mapping[: slab.num_slots]) for slabs in memory._slabs.values() for slab in slabs)
