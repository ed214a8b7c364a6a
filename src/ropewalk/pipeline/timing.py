"""Estimates the time of an operator from many passes, on a machine that may do other work as well.

    quiet machine  ▁▁▁▁▁▁▁▁▁▁▁▁▂▁▁▁▁      the lower quartile is the time
    busy machine   ▁▁▇▁▁▁▁▇▇▁▁▁▇▁▁▁▁      the same, even if three of four samples are disturbed;
                                          half the interquartile range shows that some are

Disturbances (other processes, page faults, an evicted cache) only make an operator slower, so
low samples are the reliable ones; the lowest of all is luck. A median is right only if most
of the passes are undisturbed.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection

from ropewalk.pipeline.operator_runs import OperatorRuns, Times
from ropewalk.pipeline.profiles import LARGE_SPREAD

WARM_UP = 3
"""Warm-up passes before the first measured one, in which allocators, caches and kernels settle."""
_MOST_ROUNDS = 4
"""Most rounds of the requested passes, which are repeated while the times of operators vary widely."""


def take_times(runs: OperatorRuns, repeats: int, report: Callable[[str], None] = lambda _: None) -> None:
    """Time each operator `repeats` times, or up to four times as often while the times vary widely.

    Args:
        runs: runs the operators, and keeps their times.
        repeats: passes in a round.
        report: called with a line of text about the progress.
    """
    for number in range(WARM_UP):
        report(f"warming up, pass {number + 1} of {WARM_UP}")
        _measure(runs, keep=False)
    for number in range(_MOST_ROUNDS):
        for repeat in range(repeats):
            again = f", round {number + 1}, since times vary by {spread(runs.times.values()):.0%}" if number else ""
            report(f"pass {repeat + 1} of {repeats}{again}")
            _measure(runs, keep=True)
        if spread(runs.times.values()) < LARGE_SPREAD:
            break


def _measure(runs: OperatorRuns, *, keep: bool) -> None:
    runs.measure(split=False, keep=keep)
    runs.measure(split=True, keep=keep)


def undisturbed_s(samples: Collection[float]) -> float:
    """Return the lower quartile: the undisturbed time, if at least a quarter of the samples was undisturbed."""
    if len(samples) < 2:
        return math.fsum(samples)
    return statistics.quantiles(samples, n=4, method="inclusive")[0]


def spread_s(times: Times) -> float:
    """Return half the interquartile range of forward plus backward, in seconds."""
    pairs = zip(times.forward, times.backward, strict=True) if times.backward else ((took,) for took in times.forward)
    sums = [math.fsum(pair) for pair in pairs]
    if len(sums) < 2:
        return 0.0
    first, _, third = statistics.quantiles(sums, n=4, method="inclusive")
    return (third - first) / 2


def spread(operators: Collection[Times]) -> float:
    """Return the spread of all operators together, as a share of their time."""
    took_s = math.fsum(undisturbed_s(times.forward) + undisturbed_s(times.backward) for times in operators)
    return math.fsum(map(spread_s, operators)) / took_s if took_s else 0.0
