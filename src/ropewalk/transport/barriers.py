"""A memory barrier that one process issues for others: membarrier(2).

It is the expensive half of an asymmetric Dekker protocol, on the side that seldom acts. The other side only stores its
claim and then reads the fence, which costs nothing.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform

# membarrier(2) has no wrapper in libc; the numbers are those of Linux (include/uapi/linux/membarrier.h).
_MEMBARRIER = {"x86_64": 324, "aarch64": 283}.get(platform.machine())
_GLOBAL_EXPEDITED, _REGISTER_GLOBAL_EXPEDITED = 2, 4
_libc = ctypes.CDLL(None, use_errno=True)
_joined = False

STORES_ARE_ORDERED = platform.machine() == "x86_64"
"""Whether all CPUs here see the stores of one of them in the order in which it made them."""


def join_barriers() -> None:
    """Register this process, so that `full_barrier` of other processes reaches it.

    A worker calls it once, after the fork.

    Raises:
        OSError: the kernel has no such barrier (before Linux 4.16), or a seccomp filter refuses it.
    """
    global _joined
    if _MEMBARRIER is None:
        raise OSError(errno.ENOSYS, f"its number on {platform.machine()} is not known to Ropewalk")
    if _libc.syscall(_MEMBARRIER, _REGISTER_GLOBAL_EXPEDITED, 0, 0):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    _joined = True


def full_barrier() -> None:
    """Issue a memory barrier on every CPU that runs a registered process (about a microsecond)."""
    if _MEMBARRIER is not None:
        _libc.syscall(_MEMBARRIER, _GLOBAL_EXPEDITED, 0, 0)


def can_fence() -> bool:
    """Return whether `full_barrier` works here; where it is refused, tasks once handed out cannot be taken back."""
    if not _joined:
        try:
            join_barriers()
        except OSError:
            return False
    return True


__all__ = ["STORES_ARE_ORDERED", "can_fence", "full_barrier", "join_barriers"]
