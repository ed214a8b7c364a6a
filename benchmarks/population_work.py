"""The functions that the benchmark of populations sends to workers."""

from __future__ import annotations

import time

#: A crowd's clock stands here in its place: see `population_crowd`.
sleep = time.sleep


def rest(duration_s: float) -> float:
    sleep(duration_s)
    return duration_s
