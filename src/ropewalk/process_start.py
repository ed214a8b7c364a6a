"""When a process started: with its number, this tells it from every other process of this boot.

In clock ticks since the boot, as the kernel keeps it. Seconds since the epoch, as psutil gives them, change with the
clock of the machine: when that was set, by an hour or by the second of a time server, living processes seemed to be
others that have their numbers.
"""

from __future__ import annotations

from pathlib import Path


def start_ticks(pid: int) -> int:
    """Return when a process started, in clock ticks since the boot; 0 if it has ended, also if nobody has waited yet.

    Args:
        pid: its number.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return 0
    fields = stat.rpartition(")")[2].split()  # behind the name, which may hold anything
    return 0 if fields[0] in "ZX" else int(fields[19])


__all__ = ["start_ticks"]
