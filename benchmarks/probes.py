"""What a tree of processes costs: processor time and memory, read from the kernel."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Collection

import psutil

MB = 1_000_000


def family() -> list[int]:
    """This process and all its descendants."""
    return [os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))]


def cpu_s(pids: Collection[int]) -> float:
    """User and system time of processes, all threads and also the ended ones.

    This is the processes' own clock and counts nanoseconds. `/proc/PID/stat`, and
    so psutil, counts hundredths of a second: a whole row uses twenty of them.
    """
    return sum(time.clock_gettime((~pid << 3) | 2) for pid in pids)  # the kernel's MAKE_PROCESS_CPUCLOCK


def rollup(pid: int) -> dict[str, int]:
    """Memory of one process in bytes by the kernel's names, such as Pss and Rss.

    Raises:
        ProcessLookupError: it has ended.
    """
    with open(f"/proc/{pid}/smaps_rollup") as file:
        next(file)
        return {name.rstrip(":"): int(kilobytes) * 1024 for name, kilobytes, _ in map(str.split, file)}


def held_bytes(pids: Collection[int]) -> int:
    """Memory that processes hold together, each page once.

    That is the sum of their proportional shares, and what lies in memfds that
    nobody has mapped at the moment, which no process's share shows.
    """
    shares: list[dict[str, int]] = []
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):
            shares.append(rollup(pid))
    mapped_shared = sum(share["Pss_Shmem"] for share in shares)
    return sum(share["Pss"] for share in shares) + max(0, sealed_bytes(pids) - mapped_shared)


def sealed_bytes(pids: Collection[int]) -> int:
    files: dict[int, int] = {}
    for pid in pids:
        # What a process has open may be closed, and the process gone, at any of these steps.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for number in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(FileNotFoundError):
                    path = f"/proc/{pid}/fd/{number}"
                    if os.readlink(path).startswith("/memfd:"):
                        facts = os.stat(path)
                        files[facts.st_ino] = facts.st_blocks * 512
    return sum(files.values())
