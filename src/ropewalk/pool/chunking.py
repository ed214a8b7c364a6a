"""How much work is sent at once: the size of chunks, and the credit of workers. Pure.

A chunk is a number of items that are pickled together. By default its size follows multiprocessing (four chunks per
worker): few enough chunks that pickling is cheap; as tasks can be recalled one by one, smaller chunks are not needed
for balance.

Credit is the amount of work that a worker may hold, in time: tiny tasks are sent in batches, tasks of a millisecond a
few ahead, long tasks one at a time. A worker on another host also holds the work that it does during a round trip to
the launcher.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

_CHUNKS_PER_WORKER = 4
"""Results of a chunk are sent before it ends, so a large chunk delays nothing, but it must stay a fair share."""


def default_chunksize(num_items: int, num_workers: int) -> int:
    """Return multiprocessing's default: about four chunks for each worker."""
    return max(1, -(-num_items // (num_workers * _CHUNKS_PER_WORKER)))


def check_chunksize(chunksize: int) -> None:
    """Raise `ValueError` for a size that the user cannot mean."""
    if chunksize < 1:
        raise ValueError(f"Chunksize must be 1+, not {chunksize}")


def chunks(items: Iterable[Any], size: int) -> Iterator[tuple[Any, ...]]:
    """Yield tuples of `size` items; the last may be shorter. If the iterable raises, the unfinished tuple is lost."""
    iterator = iter(items)
    while chunk := tuple(islice(iterator, size)):
        yield chunk


class Pace:
    """Expected durations of tasks, learnt from those that have ended; one estimate per code."""

    low_ns = 5e6
    """Nanoseconds: a worker is given more when the work it holds lasts less than this..."""
    high_ns = 10e6
    """...up to this much: enough to hide the round trip to the launcher, short enough to be fair."""
    far = 8
    """A long task is sent ahead to wait at a remote worker if the round trip takes a noticeable part of its duration.
    """
    most_items = 1024
    """The largest number of items and of bytes in one batch."""
    most_bytes = 32 << 20
    worth_ns = 1e6
    """Nanoseconds of work from which on it is worth recalling for an idle worker."""
    late = 0.25
    """Work that has exceeded its expected duration by this fraction is not taken to be about to end."""
    silence_s = 0.02
    """Seconds without a message after which the page of a worker that holds several tasks is read."""

    def __init__(self) -> None:
        self._expected: dict[str, float] = {}
        self._ended: dict[str, float] = {}

    def observe(self, code: str, ns: float) -> None:
        """Note that tasks of this code took `ns` nanoseconds each."""
        known = self._expected.get(code)
        self._expected[code] = ns if known is None else known + 0.25 * (ns - known)

    def expected_ns(self, code: str) -> float | None:
        """Return the expected nanoseconds of one task of this code; None before the first has ended."""
        return self._expected.get(code)

    def ended(self, code: str, now: float) -> None:
        """Note that tasks of this code have ended, with the monotonic time in seconds."""
        self._ended[code] = now

    def last_end(self, code: str) -> float:
        """Return the monotonic time at which a task of this code ended last; 0 before the first has."""
        return self._ended.get(code, 0.0)

    def too_little_ns(self, pace_ns: float, way_ns: float) -> float:
        """Return the nanoseconds of work below which a worker is given more.

        Args:
            pace_ns: expected nanoseconds of one task.
            way_ns: nanoseconds of a round trip to the worker.
        """
        one_ahead_ns = 1.5 * pace_ns if pace_ns <= self.far * way_ns else 0.0
        return max(self.low_ns + way_ns, one_ahead_ns)

    def enough_ns(self, pace_ns: float, way_ns: float) -> float:
        """Return the nanoseconds of work above which a worker is given no more; arguments as in `too_little_ns`."""
        one_ahead_ns = 2 * pace_ns if pace_ns <= self.far * way_ns else 0.0
        return max(self.high_ns + way_ns, one_ahead_ns)

    def left_ns(self, expected_ns: float, silent_s: float) -> float:
        """Return the nanoseconds left of work expected to take `expected_ns`, at a worker that reports only at its end.

        Work that is far over its expected duration is taken to have no end in sight.
        """
        late_ns = silent_s * 1e9 - expected_ns
        return math.inf if late_ns > max(self.low_ns, self.late * expected_ns) else max(0.0, -late_ns)

    def worth_recalling(self, load_ns: float, silent_s: float) -> bool:
        """Return whether work of that length, at a worker silent for `silent_s`, is worth recalling for an idle one."""
        return load_ns > self.worth_ns or silent_s > 0.005

    def forget(self, code: str) -> None:
        """Drop the estimate of a code that no more tasks are expected of."""
        self._expected.pop(code, None)
        self._ended.pop(code, None)
