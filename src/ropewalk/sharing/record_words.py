"""The layout of a record: where its words and buffers are.

mutex │ target kind bound present first second third queue sleepers │ ring │ second ring │ buffer A │ buffer B
                                                                                               see `shared_record.py`
"""

from __future__ import annotations

from ropewalk.sharing.arena import RECORD_BYTES

TARGET, KIND, BOUND, PRESENT, FIRST, SECOND, THIRD, QUEUE, SLEEPERS = range(8, 17)
"""The places of the words, in units of eight bytes; the mutex comes before them."""
IN_DEPOT = 2
"""The PRESENT of a queue that its depot keeps."""
RING, RING_LENGTH = 32, 1024
"""The place of the first word of the ring of calls that wait, and the number of words."""
SLEEPING = RING + RING_LENGTH
"""The place of the first word of the ring of calls that wait at conditions, which is as long."""
PUTS, GETS, FINISHED, AHEAD, PUTTERS, PUTTERS_RING = FIRST, SECOND, THIRD, KIND, SLEEPERS, SLEEPING
"""What a queue has in these places: see `queue_ring.py`."""
PLACE_BITS = 20
"""The width of a place in a ring, of which a word holds several: head, middle, and the number of calls behind it."""
PLACES = (1 << PLACE_BITS) - 1
"""The bits of a place: places are counted modulo 2**20, a multiple of the length of a ring."""
NUM_WAITING = 2 * PLACE_BITS
"""The number of words behind middle is the word with the places, shifted to the right by this."""
NUMBER_BITS = 8
"""The width of a call's number in its process, above which the word of a call has the seat of that process."""
BUFFER_A = 8 * (SLEEPING + RING_LENGTH)
"""The offset of the first buffer, in bytes."""
BUFFER_BYTES = (RECORD_BYTES - BUFFER_A) // 2
BUFFER_B = BUFFER_A + BUFFER_BYTES


__all__ = [
    "AHEAD",
    "BOUND",
    "BUFFER_A",
    "BUFFER_B",
    "BUFFER_BYTES",
    "FINISHED",
    "FIRST",
    "GETS",
    "IN_DEPOT",
    "KIND",
    "NUMBER_BITS",
    "NUM_WAITING",
    "PLACES",
    "PLACE_BITS",
    "PRESENT",
    "PUTS",
    "PUTTERS",
    "PUTTERS_RING",
    "QUEUE",
    "RING",
    "RING_LENGTH",
    "SECOND",
    "SLEEPERS",
    "SLEEPING",
    "TARGET",
    "THIRD",
]
