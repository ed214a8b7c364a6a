"""When a process started: with its number, this tells it from every other process of this boot.

In clock ticks since the boot, as the kernel keeps it. Seconds since the epoch, as psutil gives them, change with the
clock of the machine: when that was set, by an hour or by the second of a time server, living processes seemed to be
others that have their numbers.
"""

from __future__ import annotations


def start_ticks(pid: int) -> int:
    """Return when a process started, in clock ticks since the boot; 0 if it has ended, also if nobody has waited yet.

    Args:
        pid: its number.
    """
    try:
        fields = stat_fields(pid)
    except OSError:
        return 0
    return 0 if has_ended(fields) else int(fields[19])


def stat_fields(pid: int, most: int = -1) -> list[str]:
    """Return what the kernel says of a process behind its name: its state first; see proc(5).

    Args:
        pid: its number.
        most: how many fields are needed; what follows them is one more. All are split if it is negative.

    Raises:
        OSError: there is no such process, or /proc is not mounted.
    """
    with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:  # agents read this of each process, every second
        stat = file.read()
    return stat.rpartition(b")")[2].decode("ascii").split(maxsplit=most)  # the name may hold anything


def has_ended(fields: list[str]) -> bool:
    """Return whether a process with these `stat_fields` has ended; it is there until its parent has waited for it."""
    return fields[0] in "ZX"


__all__ = ["has_ended", "start_ticks", "stat_fields"]
