"""How much work travels at once: the size of chunks, and the credit of workers. Pure.

A chunk is what is pickled together. By default it follows multiprocessing (four
chunks per worker): few enough that pickling is cheap, and since tasks can be taken
back one by one, no smaller than that is needed for balance.

Credit is how much a worker may hold. It is counted in time: tiny tasks travel in
batches, tasks of a millisecond a few ahead, long ones one at a time. A worker on
another host also holds what it does while a message and its answer are under way.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

#: Results of a chunk are sent on before it ends, so a large chunk delays nothing, but it must stay a fair share.
_CHUNKS_PER_WORKER = 4


def default_chunksize(num_items: int, num_workers: int) -> int:
    """The rule of multiprocessing: about four chunks for each worker."""
    return max(1, -(-num_items // (num_workers * _CHUNKS_PER_WORKER)))


def chunks(items: Iterable[Any], size: int) -> Iterator[tuple[Any, ...]]:
    """Tuples of `size` items; the last may be shorter. An exception of the iterable loses the unfinished one."""
    iterator = iter(items)
    while chunk := tuple(islice(iterator, size)):
        yield chunk


class Pace:
    """What tasks are expected to take, learnt from those that have ended; one figure per code."""

    #: A worker is given more when what it holds lasts less than this...
    low_ns = 5e6
    #: ...and as much as lasts this long: enough to hide the way to the launcher and back, short enough to be fair.
    high_ns = 10e6
    #: A long task waits at a far worker, behind the one before it, if going there takes a noticeable part of its time.
    far = 8
    #: The most items and bytes of one batch.
    most_items = 1024
    most_bytes = 32 << 20
    #: Work of this length is worth fetching from a worker for an idle one.
    worth_ns = 1e6
    #: Work that takes longer than expected by this part of it is not about to end.
    late = 0.25
    #: A worker that holds several tasks and says nothing for so long is looked at.
    silence_s = 0.02

    def __init__(self) -> None:
        self._expected: dict[str, float] = {}

    def observe(self, code: str, ns: float) -> None:
        """Tasks of this code took `ns` each, just now."""
        known = self._expected.get(code)
        self._expected[code] = ns if known is None else known + 0.25 * (ns - known)

    def expected_ns(self, code: str) -> float | None:
        """What one task of this code is expected to take; None before the first has ended."""
        return self._expected.get(code)

    def too_little_ns(self, pace_ns: float, way_ns: float) -> float:
        """A worker that holds less than this is given more.

        Args:
            pace_ns: what one task is expected to take.
            way_ns: how long a message to the worker and its answer are under way.
        """
        one_ahead_ns = 1.5 * pace_ns if pace_ns <= self.far * way_ns else 0.0
        return max(self.low_ns + way_ns, one_ahead_ns)

    def enough_ns(self, pace_ns: float, way_ns: float) -> float:
        """A worker is given no more than this; the arguments are those of `too_little_ns`."""
        one_ahead_ns = 2 * pace_ns if pace_ns <= self.far * way_ns else 0.0
        return max(self.high_ns + way_ns, one_ahead_ns)

    def left_ns(self, expected_ns: float, silent_s: float) -> float:
        """How much is left of work that was expected to take so long, of a worker that tells at its end only.

        When it is late by far the expectation was wrong, and there is no end in sight.
        """
        late_ns = silent_s * 1e9 - expected_ns
        return math.inf if late_ns > max(self.low_ns, self.late * expected_ns) else max(0.0, -late_ns)

    def worth_recalling(self, load_ns: float, silent_s: float) -> bool:
        """Whether work of that expected length, at a worker that silent, is worth fetching for an idle one."""
        return load_ns > self.worth_ns or silent_s > 0.005

    def forget(self, code: str) -> None:
        """No tasks of this code are expected any more."""
        self._expected.pop(code, None)
