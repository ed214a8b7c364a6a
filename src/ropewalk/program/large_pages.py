"""Large pages for the memory of large states, so that a fork has few pages to copy.

The time of a fork grows with the number of pages. NumPy's memory is in pages of 2 MiB; but where this process writes
while a child lives, the kernel splits them into pages of 4 KiB, and takes minutes to join them again by itself: with
200 MB, the next fork takes 25 ms instead of 1.8 ms. It joins them at once on request (`MADV_COLLAPSE`, Linux 6.1).
"""

from __future__ import annotations

import contextlib
import ctypes
import time
from collections.abc import Sequence

_LARGE_BYTES = 2 << 20
_MADV_COLLAPSE = 25
_LONG_S, _PAUSE_S = 0.0001, 0.002


def join_pages(buffers: Sequence[memoryview]) -> None:
    """Have the kernel move buffers into large pages, where they fill any and the kernel can.

    This is done page by page, with pauses, because each takes 0.5 ms in which nothing else can get new pages.
    """
    with contextlib.suppress(OSError, AttributeError, TypeError, ValueError):  # not available on this system
        madvise = ctypes.CDLL(None).madvise
        for buffer in buffers:
            if buffer.nbytes >= 2 * _LARGE_BYTES and not buffer.readonly:
                address = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
                first = -(-address // _LARGE_BYTES) * _LARGE_BYTES
                last = (address + buffer.nbytes) // _LARGE_BYTES * _LARGE_BYTES
                for page in range(first, last, _LARGE_BYTES):
                    begun = time.monotonic()
                    madvise(ctypes.c_void_p(page), ctypes.c_size_t(_LARGE_BYTES), _MADV_COLLAPSE)
                    if time.monotonic() - begun > _LONG_S:  # otherwise it was a large page before
                        time.sleep(_PAUSE_S)


__all__ = ["join_pages"]
