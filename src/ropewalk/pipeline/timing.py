"""What an operator takes, from what it took in many passes on a machine that may have other work to do.

    quiet pass     ▁▁▁▁▁▁▁▁▁▁▁▁▂▁▁▁▁      the lower quartile is the time
    busy machine   ▁▁▇▁▁▁▁▇▇▁▁▁▇▁▁▁▁      ... here too, while three of four samples may be disturbed;
                                          half the distance between the quartiles says that some are

What disturbs (other processes, page faults, a cache that somebody else emptied) only makes
an operator slower, so low samples are those to believe; the lowest of all is luck. A median
is right only while most of the passes are undisturbed.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection

from ropewalk.pipeline.operator_runs import OperatorRuns, Times
from ropewalk.pipeline.profiles import LARGE_SPREAD

#: Passes before the first one that counts: allocators, caches and kernels settle.
WARM_UP = 3
#: So many times the passes that were asked for are made, at most, while the times of operators vary much.
_MOST_ROUNDS = 4


def take_times(runs: OperatorRuns, repeats: int, report: Callable[[str], None] = lambda _: None) -> None:
    """Take the time of each operator `repeats` times, or up to four times as often while they vary much.

    Args:
        runs: keep the times.
        repeats: passes in a round.
        report: is told in words how far it is.
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
    """The lower quartile: what is taken when nothing disturbs, if a quarter of the samples were not disturbed."""
    if len(samples) < 2:
        return math.fsum(samples)
    return statistics.quantiles(samples, n=4, method="inclusive")[0]


def spread_s(times: Times) -> float:
    """Half the distance between the quartiles of forward plus backward."""
    pairs = zip(times.forward, times.backward, strict=True) if times.backward else ((took,) for took in times.forward)
    sums = [math.fsum(pair) for pair in pairs]
    if len(sums) < 2:
        return 0.0
    first, _, third = statistics.quantiles(sums, n=4, method="inclusive")
    return (third - first) / 2


def spread(operators: Collection[Times]) -> float:
    """That of all operators, as a share of what they take."""
    took_s = math.fsum(undisturbed_s(times.forward) + undisturbed_s(times.backward) for times in operators)
    return math.fsum(map(spread_s, operators)) / took_s if took_s else 0.0
