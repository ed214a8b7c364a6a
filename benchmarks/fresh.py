"""Measurements that need an interpreter of their own; prints one line of JSON.

python fresh.py first-result ropewalk        seconds from before Pool(4) to the first result: cold, then again
python fresh.py many-workers ropewalk 128    seconds until all are at work, and what they hold
python fresh.py closing ropewalk 1000        seconds from close() until no worker is left
python fresh.py killed futures               how a map ends of whose workers one is killed
"""

from __future__ import annotations

import functools
import json
import os
import signal
import statistics
import sys
import tempfile
import threading
import time
from typing import Any

import work
from contenders import Contender, opener


def first_result(name: str) -> dict[str, float]:
    make = opener(name)
    assert make is not None
    seconds: list[float] = []
    for answer in (1, 2):
        start = time.perf_counter()
        contender = make(4)
        assert contender.apply(work.noop, answer) == answer
        seconds.append(time.perf_counter() - start)
        contender.close()
    return {"cold_s": seconds[0], "next_s": seconds[1]}


def many_workers(name: str, count: int) -> dict[str, float]:
    import probes  # psutil, which the other measurement should not load before its start

    make = opener(name)
    assert make is not None
    with tempfile.NamedTemporaryFile() as register:
        start = time.monotonic()
        contender = make(count)
        arrivals: list[tuple[int, float]] = contender.map(
            functools.partial(work.check_in, register.name, count), range(count), chunksize=1
        )
    workers = {pid for pid, _ in arrivals}
    status = str(contender.pool.status()) if hasattr(contender.pool, "status") else ""
    assert len(workers) == count, f"{len(workers)} workers for {count} tasks that ran at once: a worker died?\n{status}"
    hosts = set(probes.family()[1:]) - workers
    pss = [probes.rollup(pid)["Pss"] for pid in workers]
    others = [probes.rollup(pid) for pid in hosts]
    result: dict[str, Any] = {
        "ready_s": max(when for _, when in arrivals) - start,
        "pss_mb": statistics.median(pss) / probes.MB,
        "others": len(hosts),
        "others_pss_mb": sum(share["Pss"] for share in others) / probes.MB,
        "others_rss_mb": sum(share["Rss"] for share in others) / probes.MB,
    }
    contender.close()
    return result


def closing(name: str, count: int) -> dict[str, float]:
    make = opener(name)
    assert make is not None
    with tempfile.NamedTemporaryFile() as register:
        contender = make(count)
        there = contender.map(functools.partial(work.check_in, register.name, count), range(count), chunksize=1)
    start = time.perf_counter()
    contender.pool.close()
    contender.pool.join()
    seconds = time.perf_counter() - start
    assert len({pid for pid, _ in there}) == count
    return {"closed_s": seconds}


def killed(name: str) -> dict[str, str]:
    make = opener(name)
    assert make is not None
    contender = make(4)
    try:
        outcome = f"{map_of_200(contender, kill=True):.3f} s"
    except Exception as error:  # each library has its own: the table shows which
        return {"outcome": f"raises {type(error).__name__}"}
    contender.close()
    return {"outcome": outcome}


def map_of_200(contender: Contender, *, kill: bool) -> float:
    """Seconds for 200 tasks of 10 ms each, with a worker killed 0.2 s after the start or not."""
    items = range(200)
    victim = contender.map(work.pid_after_a_moment, range(40), 1)[0]
    timer = threading.Timer(0.2, os.kill, (victim, signal.SIGKILL))
    start = time.perf_counter()
    if kill:
        timer.start()
    squares = contender.map(work.square_slowly, items, 1)
    elapsed = time.perf_counter() - start
    assert squares == [number * number for number in items], "wrong results"
    assert not kill or timer.finished.is_set(), "the map ended before the worker was killed"
    return elapsed


def main(measurement: str, name: str, *rest: str) -> None:
    if measurement == "first-result":
        print(json.dumps(first_result(name)))
    elif measurement == "many-workers":
        print(json.dumps(many_workers(name, int(rest[0]))))
    elif measurement == "closing":
        print(json.dumps(closing(name, int(rest[0]))))
    else:
        print(json.dumps(killed(name)))


if __name__ == "__main__":
    main(*sys.argv[1:])
