"""Blocks: many points of one series in a row of the database, and the rule by which small blocks are merged.

A transaction adds a block to each series that it has points of, so a series that is logged once per epoch gets blocks
of one point. As in a log-structured merge tree (O'Neil et al. 1996), `FAN` blocks of about one size become a larger
one: a point is copied once for each power of `FAN`, and a series of n points has at most about FAN * log(n) blocks that
are not full. A block begins with its steps and times, which all series of the same records share, and which are short
if they can be: steps of equal distances are two numbers, and times are counted in units of 2^-22 s, the distance of
neighbouring float64 since 2004. Its values are float64. Everything is in little-endian order.

    format 1 │ 1                                                  │ steps │ times │ values     each of 8 bytes
    format 2 │ 2 · kinds, 1 byte · number of points, 4 bytes    │ steps │ times │ values
             │                          steps, kind 0: of 8 bytes; 1: first and distance, of 8 bytes
             │                          times, kind 0: of 8 bytes; 2: first, of 8 bytes, and units since then, of 4

Stores of earlier versions have blocks of format 1.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ropewalk.errors import StoreCorrupt

FAN = 8
"""How many blocks of about one size are merged."""
FULL = 1024
"""A block with this many points, 24 KiB, is not merged any more: larger ones are hardly read faster, and a series that
is logged a thousand times a second gets blocks of this size at once, of which merging would copy every point again."""
_MOST = 2 * FULL
_COLUMNS = 3
_PLAIN, _SHORT = b"\x01", b"\x02"
"""First bytes of the formats."""
_HEAD = struct.Struct("<cBI")
_EVEN_STEPS, _COUNTED_TIMES = 1, 2
_FEW = 4
"""Blocks with fewer points are not shortened."""
_UNIT_S = 2.0**-22


@dataclass(frozen=True, slots=True, eq=False)
class Points:
    """Points of a series, in the order of their times.

    Attributes:
        steps: float64, shape (n,).
        times: seconds since the epoch, float64, shape (n,).
        values: float64, shape (n,); NaN and infinities are kept.
    """

    steps: NDArray[np.float64]
    times: NDArray[np.float64]
    values: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.values)

    def in_order(self) -> Points:
        """Return the points in the order of their times, those of one time in the order in which they came.

        They come so from one process; of two that work on a run one after the other, the last of the first may come
        after the first of the second.
        """
        if np.all(self.times[1:] >= self.times[:-1]):
            return self
        return self[np.argsort(self.times, kind="stable")]

    def __getitem__(self, chosen: slice | NDArray[np.int64]) -> Points:
        return Points(self.steps[chosen], self.times[chosen], self.values[chosen])


def joined(first: Points, second: Points) -> Points:
    """Return the points of both, in the order of their times."""
    pairs = ((first.steps, second.steps), (first.times, second.times), (first.values, second.values))
    return Points(*map(np.concatenate, pairs)).in_order()


def pack(points: Points) -> bytes:
    """Return the bytes of a block."""
    return pack_axes(points.steps, points.times) + points.values.astype("<f8", copy=False).tobytes()


def pack_axes(steps: NDArray[np.float64], times: NDArray[np.float64]) -> bytes:
    """Return the beginning of a block, which is followed by the values, float64 in little-endian order."""
    kinds = 0
    if (short_steps := _even(steps)) is not None:
        kinds |= _EVEN_STEPS
    if (short_times := _counted(times)) is not None:
        kinds |= _COUNTED_TIMES
    head = _HEAD.pack(_SHORT, kinds, len(steps))
    return b"".join([head, short_steps or _bytes(steps), short_times or _bytes(times)])


def _even(steps: NDArray[np.float64]) -> bytes | None:
    """Return first and distance of steps; None if they have no equal distances, bit for bit."""
    if len(steps) < _FEW or not np.isfinite(steps[0]):  # two that are infinite have no distance
        return None
    with np.errstate(over="ignore"):
        ends = np.array([steps[0], steps[1] - steps[0]])
    return _bytes(ends) if _bytes(_steps(ends, len(steps))) == _bytes(steps) else None


def _steps(ends: NDArray[np.float64], count: int) -> NDArray[np.float64]:
    with np.errstate(over="ignore", invalid="ignore"):
        return ends[0] + ends[1] * np.arange(count)


def _counted(times: NDArray[np.float64]) -> bytes | None:
    """Return the first time and the units since then; None if these do not give the times, bit for bit."""
    if len(times) < _FEW or not np.isfinite(times).all():
        return None
    with np.errstate(over="ignore"):
        units = (times - times[0]) / _UNIT_S
    if not (units.min() >= 0 and units.max() < 2**32):
        return None
    counted = units.astype("<u4")
    return _bytes(times[:1]) + counted.tobytes() if _bytes(_times(times[0], counted)) == _bytes(times) else None


def _times(first: np.float64, units: NDArray[np.uint32]) -> NDArray[np.float64]:
    return first + units * _UNIT_S


def _bytes(column: NDArray[np.float64]) -> bytes:
    return np.ascontiguousarray(column, "<f8").tobytes()


def unpack(blocks: Sequence[bytes]) -> Points:
    """Return the points of consecutive blocks.

    Raises:
        StoreCorrupt: the bytes of a block are not those of `pack`.
    """
    columns = [_columns(block) for block in blocks]
    if not columns:
        return Points(np.empty(0), np.empty(0), np.empty(0))
    if len(columns) == 1:
        return Points(*columns[0])
    return Points(*(np.concatenate(parts) for parts in zip(*columns, strict=True)))


def _columns(block: bytes) -> tuple[NDArray[np.float64], ...]:
    try:
        if block.startswith(_SHORT):
            return _short_columns(block)
        if block.startswith(_PLAIN):
            return tuple(np.frombuffer(block, "<f8", offset=1).reshape(_COLUMNS, -1))
    except (ValueError, struct.error):  # it has too few bytes, or too many
        pass
    raise StoreCorrupt(f"a block of points has {len(block)} bytes and begins with {bytes(block[:1])!r}")


def _short_columns(block: bytes) -> tuple[NDArray[np.float64], ...]:
    _, kinds, count = _HEAD.unpack_from(block)
    is_even, is_counted = bool(kinds & _EVEN_STEPS), bool(kinds & _COUNTED_TIMES)
    num_steps, units_bytes = 2 if is_even else count, 4 * count if is_counted else 0
    num_times = 1 if is_counted else count
    if (
        kinds > _EVEN_STEPS | _COUNTED_TIMES
        or len(block) != _HEAD.size + 8 * (num_steps + num_times + count) + units_bytes
    ):
        raise ValueError("these bytes are not a block of points")
    steps = np.frombuffer(block, "<f8", num_steps, _HEAD.size)
    times = np.frombuffer(block, "<f8", num_times, _HEAD.size + steps.nbytes)
    values = np.frombuffer(block, "<f8", count, len(block) - 8 * count)
    if is_counted:
        times = _times(times[0], np.frombuffer(block, "<u4", count, len(block) - 12 * count))
    return _steps(steps, count) if is_even else steps, times, values


def cuts(num: int) -> Iterator[tuple[int, int]]:
    """Yield where points are cut for one block each: as few as their most points allow, of about one size.

    So that no block is small if there are enough points for full ones.
    """
    blocks = -(-num // _MOST)
    for number in range(blocks):
        yield num * number // blocks, num * (number + 1) // blocks


def num_to_merge(counts: Sequence[int]) -> int:
    """Decide how many blocks at the end of a series become one.

    Args:
        counts: points in the blocks since the last full one, in their order.

    Returns:
        The number of blocks; 0 if they stay as they are.
    """
    sizes, num_merged = list(counts), 0
    while sizes:
        tail = next((num for num, size in enumerate(reversed(sizes)) if _tier(size) > _tier(sizes[-1])), len(sizes))
        if tail < FAN:
            break
        num_merged = len(counts) - (len(sizes) - tail)
        sizes[-tail:] = [sum(sizes[-tail:])]
        if sizes[-1] >= FULL:
            break
    return num_merged


def num_small(counts: Sequence[int]) -> int:
    """Return how many blocks at the end of a series are not full."""
    return next((num for num, size in enumerate(reversed(counts)) if size >= FULL), len(counts))


def _tier(count: int) -> int:
    """Return the power of `FAN` that a size has reached."""
    return (count.bit_length() - 1) // (FAN.bit_length() - 1)
