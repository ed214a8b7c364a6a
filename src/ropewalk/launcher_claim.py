"""`LauncherClaim`: a lock on a folder, by which launchers see that another one works on what is kept there.

The kernel releases it when the launcher ends, whatever ends it. States in a store say the same, but later: between a
look at them and a change, another launcher may do both.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path
from typing import Self

from ropewalk.trusted_files import make_private_folder

_LOCK = "launcher.lock"


class LauncherClaim:
    """Holds the lock of a folder until it is closed.

    Args:
        descriptor: the open file; None: it could not be made, or its file system has no locks, and nothing is claimed.
    """

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor

    @classmethod
    def on(cls, folder: Path) -> Self | None:
        """Claim a folder; None if another launcher has claimed it.

        Args:
            folder: made if it is missing, for this user only.
        """
        descriptor = None
        try:
            make_private_folder(folder)
            descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if descriptor is not None:
                os.close(descriptor)
            return None
        except OSError:  # a full disk, or a file system without locks: its launcher runs all the same
            pass
        return cls(descriptor)

    def close(self) -> None:
        """Release it; may be called twice."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with contextlib.suppress(OSError):
                os.close(descriptor)


__all__ = ["LauncherClaim"]
