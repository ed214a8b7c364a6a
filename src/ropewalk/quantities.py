"""Human-readable quantities: sizes such as "4Gi", durations such as "2h" or "1:30:00", moments, counts, and lists."""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Iterable, Sequence

_UNITS = {
    "": 1,
    "k": 10**3,
    "K": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", re.ASCII)

_SECONDS = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}
_WORDS = re.compile(r"(?:(?P<d>\d+)d)?(?:(?P<h>\d+)h)?(?:(?P<m>\d+)m)?(?:(?P<s>\d+)s)?", re.ASCII)
_CLOCK = re.compile(r"(?:(?P<d>\d+)-)?(?P<h>\d+):(?P<m>[0-5]\d):(?P<s>[0-5]\d)", re.ASCII)
"""The format of Slurm and `squeue`: optional days first."""


_LOG_FROM = 20.0
"""The factor that the range of positive values must exceed for a logarithmic axis."""


def parse_memory(size: str | int) -> int:
    """Parse a size: "4Gi" or "4GiB" (2**30), "500M" or "500MB" (10**6), "1.5G", or a plain number of bytes.

    Returns:
        The size in bytes.

    Raises:
        ValueError: `size` is not in one of these formats, or is 0.
        TypeError: `size` is neither a str nor an int.
    """
    rule = f"must be a whole number of bytes or a size with one of the units {', '.join(u for u in _UNITS if u)}"
    given: object = size
    if isinstance(given, bool) or not isinstance(given, int | str):
        raise TypeError(f"memory {rule}, not {given!r}")
    if isinstance(given, int):
        size_bytes = given
    else:
        match = _SIZE.fullmatch(given)
        if match is None:
            raise ValueError(f"memory {rule}, not {given!r}")
        number, unit = match.groups()
        unit = unit.removesuffix("B")
        if unit not in _UNITS:
            near = next((known for known in _UNITS if known and known.lower() == unit.lower().removesuffix("b")), None)
            hint = f'; did you mean "{number}{near}"?' if near else ""
            raise ValueError(f"memory {rule}, not {given!r}{hint}")
        # Integers stay exact above 2**53; a fraction of a byte is truncated.
        size_bytes = int(float(number) * _UNITS[unit]) if "." in number else int(number) * _UNITS[unit]
    if size_bytes < 1:
        raise ValueError(f"memory must be at least 1 byte, not {given!r}")
    return size_bytes


def parse_duration(duration: str | float) -> float:
    """Parse a duration: "2h", "1h30m", "90s", "1:30:00", "2-00:00:00" (days first), or a number of seconds.

    A text such as "1:30" is an error: it could mean minutes and seconds, or hours and minutes.

    Returns:
        The duration in seconds.

    Raises:
        ValueError: `duration` is not in one of these formats, or is not positive.
    """
    given: object = duration
    seconds = math.nan
    if isinstance(given, int | float) and not isinstance(given, bool):
        seconds = float(given)
    elif isinstance(given, str):
        text = given.strip()
        match = _CLOCK.fullmatch(text) or _WORDS.fullmatch(text)
        if match and text:
            seconds = float(sum(int(match[unit] or 0) * length for unit, length in _SECONDS.items()))
        elif re.fullmatch(r"\d+(\.\d*)?(e[+-]?\d+)?|\.\d+", text, re.ASCII):
            seconds = float(text)
    if not (math.isfinite(seconds) and seconds > 0):
        raise ValueError(f'must be a time such as "2h", "1h30m", "1:30:00" or seconds, above 0, not {given!r}')
    return seconds


def shown_size(size_bytes: float) -> str:
    """Format a size in bytes as KiB, MiB or GiB; 0 is "0 MiB"."""
    if size_bytes >= 2**30:
        return f"{size_bytes / 2**30:.1f} GiB"
    if 0 < size_bytes < 2**20:
        size_kib = size_bytes / 2**10
        return f"{size_kib:.3g} KiB" if size_kib < 1000 else f"{size_kib:.0f} KiB"
    return f"{size_bytes / 2**20:.0f} MiB"


def shown_duration(seconds: float) -> str:
    """Format a duration in seconds: 250 µs, 31.2 ms, 9.8 s, 3m12s, 5h07m, 2d03h.

    Example:
        >>> [shown_duration(seconds) for seconds in (0, 4e-6, 0.0123, 0.9999, 59.97, 3599.7)]
        ['0 s', '4 µs', '12.3 ms', '1 s', '1m00s', '1h00m']
    """
    if not math.isfinite(seconds):
        return f"{seconds} s"
    if seconds >= 59.95:
        whole = round(seconds)
        if whole < 3600:
            return f"{whole // 60}m{whole % 60:02}s"
        if whole < 86_400:
            return f"{whole // 3600}h{whole % 3600 // 60:02}m"
        return f"{whole // 86_400}d{whole % 86_400 // 3600:02}h"
    if seconds == 0 or seconds >= 0.9995:  # with three digits, this would print as "1e+03 ms"
        return f"{seconds:.3g} s"
    return f"{1e3 * seconds:.3g} ms" if seconds >= 0.9995e-3 else f"{1e6 * seconds:.3g} µs"


def shown_moment(seconds: float, zone: datetime.tzinfo | None = None) -> str:
    """Format a Unix time in seconds as the date and the time of a zone; without one, of this machine's clock."""
    return datetime.datetime.fromtimestamp(seconds, zone).strftime("%Y-%m-%d %H:%M:%S")


def wants_log_axis(values: Iterable[float]) -> bool:
    """Return whether all values are positive and their range is so wide that a picture needs a logarithmic axis.

    Example:
        >>> wants_log_axis([1, 10, 100]), wants_log_axis([1, 2]), wants_log_axis([0, 100])
        (True, False, False)
    """
    known = list(values)
    return bool(known) and 0 < min(known) < max(known) / _LOG_FROM


def listed(names: Sequence[str], most: int) -> str:
    """Format the first names of a list, and how many more there are.

    Example:
        >>> listed(["a", "b", "c", "d"], 3), listed(["a", "b"], 3)
        ('a, b, c and 1 more', 'a, b')
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def counted(number: int, thing: str, ending: str = "s") -> str:
    """Format a count with its noun in the singular or plural.

    Example:
        >>> counted(1, "process", "es"), counted(3, "process", "es"), counted(0, "step")
        ('1 process', '3 processes', '0 steps')
    """
    return f"{number} {thing}{'' if number == 1 else ending}"
