"""The time of a run's records: that of the launcher when it began here, and from then on by a clock that nobody sets.

The points of a series are in the order of their times, because several processes may write it. The clock of a machine
is set while runs go on: by a time server after a start without a network, or when a laptop wakes. With `time.time`, an
hour back put what came later before what had come: the last value of a metric was an old one, and an attempt ended
before it had begun. A host whose clock is hours from that of the launcher did the same to a run that went on there.
"""

from __future__ import annotations

import time

from ropewalk.processes import bootstrap


class RunClock:
    """Returns the seconds since the epoch, without jumps; it goes on while the machine sleeps."""

    def __init__(self) -> None:
        self._offset_s = bootstrap.launcher_time() - time.clock_gettime(time.CLOCK_BOOTTIME)

    def __call__(self) -> float:
        return self._offset_s + time.clock_gettime(time.CLOCK_BOOTTIME)


__all__ = ["RunClock"]
