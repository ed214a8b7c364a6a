"""Files of output that keep only their end, so that a run of weeks does not fill the folder of its sockets.

That folder is mostly in memory: `/run/user/UID`, or a /tmp of the kind tmpfs. The file goes on growing, and its
beginning becomes a hole, which takes no space:

    [ hole ........................ ][ at least `most_bytes` of text ]

So what readers have as their position stays true, several processes may append, and nothing is copied.
"""

from __future__ import annotations

import contextlib
import os

from ropewalk.transport import kernel

MOST_BYTES = 16 << 20
"""Bytes that are kept of the output of a process for which no folder was named (the setting `logs`)."""
_BLOCK_BYTES = 4096
"""The kernel gives whole pages back; of a part of one it would write zeros over the text."""


def give_beginning_back(fd: int, most_bytes: int | None = None) -> None:
    """Make a hole of the beginning of a file, once twice of what is kept takes space.

    Args:
        fd: opened for writing.
        most_bytes: what is kept; None: `MOST_BYTES`.
    """
    most_bytes = MOST_BYTES if most_bytes is None else most_bytes
    facts = os.fstat(fd)
    if facts.st_blocks * 512 > 2 * most_bytes:
        with contextlib.suppress(OSError):  # a file system without holes, such as an old NFS, keeps all
            kernel.punch_hole(fd, max(0, facts.st_size - most_bytes) // _BLOCK_BYTES * _BLOCK_BYTES)


def first_kept(fd: int) -> int:
    """Return the position of the first byte that was not given back; 0 if nothing was."""
    try:
        return os.lseek(fd, 0, os.SEEK_DATA)
    except OSError:  # it is empty, or is no plain file
        return 0


__all__ = ["MOST_BYTES", "first_kept", "give_beginning_back"]
