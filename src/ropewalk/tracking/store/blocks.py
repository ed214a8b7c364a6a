"""Blocks: many points of one series in a row of the database, and the rule by which small blocks are merged.

A transaction adds a block to each series that it has points of, so a series that is logged once per epoch gets blocks
of one point. As in a log-structured merge tree (O'Neil et al. 1996), `FAN` blocks of about one size become a larger
one: a point is copied once for each power of `FAN`, and a series of n points has at most about FAN * log(n) blocks that
are not full. The bytes of a block are float64 in little-endian order, column by column: steps, times, values.
"""

from __future__ import annotations

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
_POINT_BYTES = 8 * _COLUMNS
_FORMAT = b"\x01"
"""First byte of a block, for formats to come."""


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


def pack(points: Points) -> bytes:
    """Return the bytes of a block."""
    columns = (points.steps, points.times, points.values)
    return b"".join([_FORMAT, *(np.ascontiguousarray(column, "<f8").tobytes() for column in columns)])


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
    joined = np.concatenate(columns, axis=1)
    return Points(*joined)


def _columns(block: bytes) -> NDArray[np.float64]:
    size_bytes = len(block) - len(_FORMAT)
    if not block.startswith(_FORMAT) or size_bytes % _POINT_BYTES:
        raise StoreCorrupt(f"a block of points has {len(block)} bytes and begins with {bytes(block[:1])!r}")
    return np.frombuffer(block, "<f8", offset=len(_FORMAT)).reshape(_COLUMNS, -1)


def pieces(points: Points) -> Iterator[Points]:
    """Yield the points in pieces for one block each: as few as their most points allow, of about one size.

    So that no piece is small if there are enough points for full ones.
    """
    num = -(-len(points) // _MOST)
    for number in range(num):
        yield points[len(points) * number // num : len(points) * (number + 1) // num]


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
