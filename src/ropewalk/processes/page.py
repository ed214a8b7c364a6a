"""The task page: what a worker is doing, in memory that survives its death.

Each process shares one small memory file with its agent. Before each task the worker writes which task it starts; after
each task it writes the result, if it is small. So when a worker is killed at any instant, its agent still knows which
task it was in and what it had finished, and the right task is blamed for a death. Loading the code of a task counts as
part of the task.

    words │ current · started · fence from · fence to · version · base · count · spill used · request
    codes │ one byte per slot: what kind of result; nothing need be written for None
    values│ eight bytes per slot: a small number, or where in `spill` the pickle lies
    spill │ pickled results

Tasks of one worker are numbered; slot k belongs to task `base + k`, and those before
`current` have ended (between tasks, `count` of them). When the worker has sent its
results it clears the slots and moves `base` (the version is odd meanwhile, so that a
reader notices).

The fence takes tasks back from a worker without its help, even while it is deep in
C code. It is an asymmetric Dekker protocol: the worker writes `current` and then
reads the fence; the agent writes the fence, makes every CPU pass a memory barrier
(membarrier(2), the expensive half on the rare side), and then reads `current`. At
least one of them sees the other. A task that both might claim is left to the
worker, which reports it as skipped if it did not run it (docs/theory.md, "Recall fence").
"""

from __future__ import annotations

import mmap
import os
import struct
import time

import msgspec

from ropewalk.transport.barriers import STORES_ARE_ORDERED, can_fence, full_barrier
from ropewalk.transport.kernel import memory_file

SLOTS = 2048
PAGE_BYTES = 64 * 1024

CURRENT, STARTED_NS, FENCE_FROM, FENCE_TO, VERSION, BASE, COUNT, SPILL_USED, REQUEST = range(9)
"""The last one is written by the agent for the owner of the process, which gives it its meaning; 0 at first."""
_NUM_WORDS = 16
_CODES_AT = 8 * _NUM_WORDS
_VALUES_AT = _CODES_AT + SLOTS
_SPILL_AT = _VALUES_AT + 8 * SLOTS
SPILL_BYTES = PAGE_BYTES - _SPILL_AT

IDLE = -1
"""Value of `current` while the worker is between tasks."""
OPEN = 2**62
"""Value of the fence while nothing is recalled."""

NONE, INT, FLOAT, BOOL, PICKLED, ERROR = range(6)
"""Kinds of results in a slot."""


class PageReport(msgspec.Struct, frozen=True, array_like=True):
    """A reading of a page by an agent."""

    current: int
    """The current task, or IDLE."""
    running_s: float
    """Seconds since it began that task."""
    base: int
    """The number of the task in the first slot."""
    codes: bytes
    """Kinds of the results of the finished tasks, in order."""
    values: bytes
    spill: bytes


class TaskPage:
    """A task page mapped into this process: the worker writes it, the agent reads it."""

    def __init__(self, fd: int) -> None:
        self._map = mmap.mmap(fd, PAGE_BYTES)
        view = memoryview(self._map)
        self.words: memoryview[int] = view[:_CODES_AT].cast("q")
        self.codes: memoryview[int] = view[_CODES_AT:_VALUES_AT]
        self.values: memoryview[int] = view[_VALUES_AT:_SPILL_AT].cast("q")
        self.floats: memoryview[float] = view[_VALUES_AT:_SPILL_AT].cast("d")
        self.spill: memoryview[int] = view[_SPILL_AT:]

    def report(self, *, ended: bool = False) -> PageReport:
        """Return a consistent copy of the page; without results if the worker is clearing them at this moment.

        Args:
            ended: whether the worker has ended. While it runs, other CPUs may see its results later than their number,
                where neither the machine nor a barrier keeps them in order; there, no results are reported.
        """
        words = self.words
        current, started, base = IDLE, 0, 0
        for _ in range(8):
            version = words[VERSION]
            full_barrier()
            current, started, base = words[CURRENT], words[STARTED_NS], words[BASE]
            count = words[COUNT] if current == IDLE else current - base
            full_barrier()  # stores before the `current` that we read are visible now
            if not (ended or STORES_ARE_ORDERED or can_fence()):
                count = 0
            codes = bytes(self.codes[: max(0, min(count, SLOTS))])
            values = bytes(self.values[: len(codes)])
            spill = bytes(self.spill[: min(words[SPILL_USED], SPILL_BYTES)])
            if version % 2 == 0 and words[VERSION] == version:
                break
        else:
            codes = values = spill = b""
        running_s = max(0, time.monotonic_ns() - started) / 1e9 if current != IDLE else 0.0
        return PageReport(current, running_s, base, codes, values, spill)

    def fence(self, until: int, *, everything: bool = False) -> int:
        """Take back tasks before `until` that have not started: half of them, or all; returns the first of them.

        Tasks behind an earlier fence stay there: they belong to another worker by now. Returns `until` when there is
        nothing to take. Only the agent calls this.

            current │ not started ... │ fenced before ... │ not started ... │ until
        """
        words = self.words
        current = words[CURRENT]
        if current == IDLE or not can_fence() or current + 1 >= until:
            return until
        fenced_from, fenced_to = words[FENCE_FROM], words[FENCE_TO]
        # A fence whose last task is `current` still stands: the worker may not have read it yet.
        still_fenced = fenced_from < fenced_to and fenced_to > current
        if not still_fenced:
            fenced_from = fenced_to = until
        num_before = max(0, fenced_from - current - 1)
        num_left = 0 if everything else min(num_before, (num_before + max(0, until - fenced_to)) // 2)
        first = min(fenced_from, current + 1 + num_left)
        if not still_fenced:
            words[FENCE_FROM] = OPEN
        words[FENCE_TO] = max(until, fenced_to)  # a fence that stands only grows: it is never open for a moment
        words[FENCE_FROM] = first
        full_barrier()
        current = words[CURRENT]
        return until if current == IDLE else max(first, current + 1)

    def clear(self, count: int, base: int) -> None:
        """Clear `count` results that were sent; the first slot is task `base` from now on."""
        words = self.words
        words[VERSION] += 1
        self.codes[:count] = bytes(count)
        words[BASE] = base
        words[COUNT] = words[SPILL_USED] = 0
        words[VERSION] += 1

    def close(self) -> None:
        """Unmap; may be called twice."""
        for view in (self.words, self.codes, self.values, self.floats, self.spill):
            view.release()
        self._map.close()


def create_page() -> int:
    """Create an idle page; returns the descriptor of its memory file, which the caller owns."""
    fd = memory_file("ropewalk-page")
    os.ftruncate(fd, PAGE_BYTES)
    os.pwrite(fd, struct.pack("<8q", IDLE, 0, OPEN, 0, 0, 0, 0, 0), 0)
    return fd


def results_of(report: PageReport) -> list[tuple[int, object]]:
    """Return the finished tasks of a report, in order: (kind, value or pickle)."""
    values = struct.unpack(f"<{len(report.codes)}q", report.values)
    results: list[tuple[int, object]] = []
    for code, value in zip(report.codes, values, strict=True):
        if code == NONE:
            results.append((code, None))
        elif code == FLOAT:
            results.append((code, struct.unpack("<d", struct.pack("<q", value))[0]))
        elif code == BOOL:
            results.append((code, bool(value)))
        elif code == INT:
            results.append((code, value))
        else:
            at, length = value >> 32, value & 0xFFFFFFFF
            results.append((code, report.spill[at : at + length]))
    return results
