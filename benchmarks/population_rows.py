"""Rows of the table of populations: the launcher, the wire, many workers, the paper's protocol, a crowd of workers.

Contenders take turns in blocks of iterations, A B C, C B A, ..., so that other load falls on all of them.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import probes
from pool_rows import Line, seconds
from population_contenders import (
    OTHERS,
    OURS,
    PRELOAD,
    WORKER_MB,
    Contender,
    Job,
    Ours,
    Reading,
    Sleeping,
    Took,
    count_sent_bytes,
    link_bytes,
    opened,
)
from population_crowd import crowd

import ropewalk as rw
from ropewalk.population import Algorithm, Outcome

#: 1 MB of float32.
_LARGE = 250_000


@dataclass(frozen=True, slots=True)
class Bench:
    """How thoroughly to measure."""

    quick: bool = False
    sleep_s: float = 0.1
    """Of an evaluation of the paper's protocol; the paper's own took about 0.46 s."""
    memory_gb: float = 6.0
    """What the workers of one contender may hold."""
    against: tuple[str, ...] = OTHERS
    """The pools of others that take part."""

    def count(self, usual: int, quick: int) -> int:
        return quick if self.quick else usual

    def others(self, *names: str) -> list[str]:
        """Those of these that take part; some take too long to start for a quick look."""
        slow = ("loky", "ray", "ipyparallel") if self.quick else ()
        return [name for name in names if name in self.against and name not in slow]

    def fitting(self, name: str, workers: int) -> int:
        """How many workers of a contender fit into memory."""
        return min(workers, int(self.memory_gb * 1e3 / WORKER_MB[name]))


Row = Callable[[Bench], Iterator[Line]]


def in_turn(contenders: Mapping[str, Contender], blocks: int, iterations: int) -> dict[str, list[Took]]:
    """What blocks of `iterations` took each contender."""
    seen: dict[str, list[Took]] = {name: [] for name in contenders}
    for block in range(blocks):
        for name in list(contenders)[:: -1 if block % 2 else 1]:
            seen[name].append(contenders[name].run(iterations))
    return seen


def total(tooks: Sequence[Took]) -> Took:
    return Took(
        sum(took.wall_s for took in tooks),
        sum(took.launcher_s for took in tooks),
        sum(took.num_evaluations for took in tooks),
        sum(took.num_bytes for took in tooks),
    )


# ---------------------------------------------------------------- the launcher and the wire


def launcher(bench: Bench) -> Iterator[Line]:
    population, iterations = bench.count(2048, 256), bench.count(10, 2)
    for what, duration_s in (("20 ms", 0.020), ("no time", 0.0)):
        found, update_s = _of_launcher(bench, population, iterations, bench.count(_LARGE, 25_000), duration_s)
        update_ms, wall_ms = 1e3 * update_s / found.num_evaluations, 1e3 * found.wall_s / found.num_evaluations
        yield Line(
            f"launcher's CPU time per evaluation, with the update: OpenAIES, 1 MB, population {population:,}, "
            f"32 workers, evaluations that take {what}",
            "<= 0.05 ms",
            f"{found.launcher_ms:.4f} ms",
            found.launcher_ms <= 0.05,
            {OURS: f"update {update_ms:.4f} ms of it; wall {wall_ms:.3f} ms each"},
        )


def wire(bench: Bench) -> Iterator[Line]:
    count_sent_bytes()
    population, iterations = bench.count(2048, 256), bench.count(10, 2)
    found, _ = _of_launcher(bench, population, iterations, 2804, 0.020)
    yield Line(
        f"bytes per evaluation on the links of 32 workers, both ways: OpenAIES, population {population:,}, 20 ms each",
        "<= 64",
        f"{found.bytes_each:.1f}",
        found.bytes_each <= 64,
        {OURS: f"launcher {found.launcher_ms:.4f} ms each"},
    )


def _of_launcher(bench: Bench, population: int, iterations: int, dim: int, duration_s: float) -> tuple[Took, float]:
    """What iterations take, without the bytes that the update sends; and the update's CPU time."""
    job = Sleeping(population, duration_s, dim)
    with rw.Pool(bench.count(32, 8), preload=PRELOAD) as pool:
        pool.wait_until_ready(60)
        ours = Ours(job, pool)
        updates = _Updates(ours.algorithm, pool)
        ours.run(2)  # makes the noise table, and learns how long evaluations take
        updates.cpu_s = updates.num_bytes = 0
        took = ours.run(iterations)
    return Took(took.wall_s, took.launcher_s, took.num_evaluations, took.num_bytes - updates.num_bytes), updates.cpu_s


class _Updates:
    """Looks at what an algorithm is told, and at what that costs."""

    def __init__(self, algorithm: Algorithm[Any], pool: rw.Pool) -> None:
        self.cpu_s = 0.0
        self.num_bytes = 0
        self._tell = algorithm.tell
        self._pool = pool
        algorithm.tell = self.tell  # pyright: ignore[reportAttributeAccessIssue]

    def tell(self, candidates: Sequence[int], outcomes: Sequence[Outcome]) -> None:
        num_bytes, cpu_s = link_bytes(self._pool), time.process_time()
        self._tell(candidates, outcomes)
        self.cpu_s += time.process_time() - cpu_s
        self.num_bytes += link_bytes(self._pool) - num_bytes


# ---------------------------------------------------------------- many workers that read all of their parameters


def many(bench: Bench) -> Iterator[Line]:
    workers, iterations = bench.count(512, 16), bench.count(50, 2)
    sizes = {name: bench.fitting(name, workers) for name in (OURS, *bench.others("multiprocessing", "loky"))}

    def job() -> Job:
        return Reading(workers, 0.020, _LARGE)

    walls: dict[str, float] = {}
    shown: dict[str, str] = {"ideal": seconds(iterations * 0.020)}
    # What takes turns must be open together: loky's workers, which share nothing, do not fit in beside the others.
    for group in ((OURS, "multiprocessing"), ("loky",)):
        with opened(job, {name: sizes[name] for name in group if name in sizes}) as contenders:
            blocks = 1 if group == ("loky",) or bench.quick else 5
            for name, tooks in in_turn(contenders, blocks, iterations // blocks).items():
                took = total(tooks)
                walls[name] = took.wall_s
                fewer = f", {sizes[name]} workers: more do not fit into memory" if sizes[name] < workers else ""
                shown[name] = f"{took.wall_s:.2f} s (launcher {took.launcher_ms:.3f} ms each{fewer})"
    for name, reach in (("multiprocessing", 10), ("loky", 20)):
        if name in walls:
            ratio = walls[name] / walls[OURS]
            yield Line(
                f"{workers} workers and candidates, 20 ms evaluations that read all of 1 MB, {iterations} iterations",
                f">= {reach} x faster than {name}",
                f"{ratio:.1f} x",
                ratio >= reach,
                shown,
            )


# ---------------------------------------------------------------- the paper's protocol


def protocol(workers: int) -> Row:
    """So many iterations of a strategy whose evaluations sleep, on real workers."""

    def row(bench: Bench) -> Iterator[Line]:
        num, population = bench.count(workers, workers // 16), bench.count(2048, 64)
        sleep_s = 0.005 if bench.quick else bench.sleep_s
        names = [OURS, *bench.others("multiprocessing", "ipyparallel", "ray")]
        absent = {
            name: f"left out: {num} workers need {num * WORKER_MB[name] / 1e3:.0f} GB"
            for name in names
            if bench.fitting(name, num) < num
        }
        sizes = {name: num for name in names if name not in absent}
        blocks = bench.count(5, 1)
        with opened(lambda: Sleeping(population, sleep_s), sizes) as contenders:
            tooks = in_turn(contenders, blocks, bench.count(10, 2))
        missing = dict.fromkeys(set(names) - tooks.keys() - absent.keys(), "not installed")
        yield _of_protocol(f"{num} workers", num, population, sleep_s, tooks, absent | missing)

    return row


def simulated(workers: int) -> Row:
    """The same on workers that are all in one process."""

    def row(bench: Bench) -> Iterator[Line]:
        num, population = bench.count(workers, workers // 16), bench.count(2048, 128)
        sleep_s = 0.05 if bench.quick else bench.sleep_s
        with crowd(num) as session, rw.Pool(num, session=session) as pool:
            pool.wait_until_ready(300)
            ours = Ours(Sleeping(population, sleep_s), pool)
            ours.run(1)
            host = session.agent_pids()
            before = probes.cpu_s(host)
            tooks = in_turn({OURS: ours}, bench.count(5, 1), bench.count(10, 2))
            each_ms = 1e3 * (probes.cpu_s(host) - before) / total(tooks[OURS]).num_evaluations
            words = {"simulation": f"{each_ms:.3f} ms of CPU for each evaluation, which real workers would share"}
            yield _of_protocol(f"{num:,} workers simulated in one process", num, population, sleep_s, tooks, words)

    return row


def _of_protocol(
    what: str,
    workers: int,
    population: int,
    sleep_s: float,
    tooks: Mapping[str, Sequence[Took]],
    absent: Mapping[str, str],
) -> Line:
    each_s = sleep_s * math.ceil(population / workers)
    shown = {name: _in_words(each, each_s * each[0].num_evaluations / population) for name, each in tooks.items()}
    ours = total(tooks[OURS])
    num_iterations = ours.num_evaluations // population
    return Line(
        f"{what}: population {population:,}, {num_iterations} iterations, sleeps of {1e3 * sleep_s:.0f} ms",
        "",
        f"{_efficiency(ours, each_s * num_iterations):.0%} of ideal",
        None,
        {**shown, **absent, "ideal": seconds(each_s * num_iterations)},
    )


def _in_words(blocks: Sequence[Took], block_ideal_s: float) -> str:
    took = total(blocks)
    efficiencies = [_efficiency(block, block_ideal_s) for block in blocks]
    wire = f", {took.bytes_each:.0f} bytes to it" if took.num_bytes else ""
    return (
        f"{took.wall_s:.2f} s, {statistics.median(efficiencies):.0%} in the median block; each evaluation: launcher "
        f"{took.launcher_ms:.3f} ms{wire}"
    )


def _efficiency(took: Took, ideal_s: float) -> float:
    return ideal_s / took.wall_s


ROWS: dict[str, Row] = {
    "launcher": launcher,
    "wire": wire,
    "many": many,
    "protocol-32": protocol(32),
    "protocol-128": protocol(128),
    "protocol-512": protocol(512),
    "simulated-2048": simulated(2048),
    "simulated-8192": simulated(8192),
}
