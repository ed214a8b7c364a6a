"""A memory barrier that one process makes for many: membarrier(2).

It is the expensive half of an asymmetric Dekker protocol, on the side that seldom acts. The other side only stores its
claim and then reads the fence, which costs nothing.
"""

from __future__ import annotations

import ctypes
import platform
import sys

# membarrier(2) has no wrapper in libc; the numbers are those of Linux (include/uapi/linux/membarrier.h).
_MEMBARRIER = {"x86_64": 324, "aarch64": 283}.get(platform.machine()) if sys.platform == "linux" else None
_GLOBAL_EXPEDITED, _REGISTER_GLOBAL_EXPEDITED = 2, 4
_libc = ctypes.CDLL(None, use_errno=True)
_registered = False


def join_barriers() -> None:
    """Make this process one that `full_barrier` of others reaches; a worker calls it once, after the fork."""
    global _registered
    if _MEMBARRIER is not None:
        _registered = _libc.syscall(_MEMBARRIER, _REGISTER_GLOBAL_EXPEDITED, 0, 0) == 0


def full_barrier() -> None:
    """A memory barrier on every CPU that runs a process which has joined (about a microsecond)."""
    if _MEMBARRIER is not None:
        _libc.syscall(_MEMBARRIER, _GLOBAL_EXPEDITED, 0, 0)


def can_fence() -> bool:
    """Whether tasks can be recalled here: needs membarrier (Linux 4.16, and no seccomp filter against it)."""
    if not _registered:
        join_barriers()
    return _registered


__all__ = ["can_fence", "full_barrier", "join_barriers"]
