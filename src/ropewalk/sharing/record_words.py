"""The layout of a record: where its words and buffers are.

mutex │ target kind bound present first second third queue │ ring │ buffer A │ buffer B      see `shared_record.py`
"""

from __future__ import annotations

from ropewalk.sharing.arena import RECORD_BYTES

TARGET, KIND, BOUND, PRESENT, FIRST, SECOND, THIRD, QUEUE = range(8, 16)
"""The places of the words, in units of eight bytes; the mutex comes before them."""
RING, RING_LENGTH = 16, 1024
"""The place of the first word of the ring of calls that wait at a semaphore, and the number of words."""
BUFFER_A = 8 * (RING + RING_LENGTH)
"""The offset of the first buffer, in bytes."""
BUFFER_BYTES = (RECORD_BYTES - BUFFER_A) // 2
BUFFER_B = BUFFER_A + BUFFER_BYTES


__all__ = [
    "BOUND",
    "BUFFER_A",
    "BUFFER_B",
    "BUFFER_BYTES",
    "FIRST",
    "KIND",
    "PRESENT",
    "QUEUE",
    "RING",
    "RING_LENGTH",
    "SECOND",
    "TARGET",
    "THIRD",
]
