"""How soon an actor that was killed is back, and how soon a program with torch begins."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Iterator
from typing import Any

from exchange_bench import Bench, Row
from pool_rows import Line

import ropewalk as rw
from ropewalk import rl
from ropewalk.rl.assembly import Assembly
from ropewalk.rl.distributed import ProcessCounts, build_program

FOREVER = 1_000_000_000


def program_of(actors: int) -> rw.Program:
    """IMPALA with nothing asked for but the number of actors."""
    config = rl.Experiment(rl.IMPALA(unroll=20, envs=8), rl.Gymnasium("CartPole-v1"), rl.MLP((64, 64)), steps=FOREVER)
    return build_program(Assembly(config, actors), ProcessCounts(actors, "async"), hold=True)


def restart(bench: Bench) -> Iterator[Line]:
    """The longest time without a block is that from the last one of the actor to the first one of its successor."""
    with program_of(1).launch() as running:
        learner = running.client("learner")
        wait_for_steps(learner, 5_000)
        gaps = [
            longest_gap_s(running, learner) for _ in range(2 if bench.quick else 4)
        ]  # no more restarts than are allowed
    yield Line(
        "an actor killed, until the first block of the new one arrives at the learner, median",
        "< 0.5 s",
        f"{statistics.median(gaps):.2f} s (worst of {len(gaps)}: {max(gaps):.2f} s)",
        statistics.median(gaps) < 0.5,
    )


def longest_gap_s(running: rw.RunningProgram, learner: Any) -> float:
    before = learner.status().counters.steps
    wait_for_steps(learner, before + 2_000)
    running.kill("actors", 0)
    start = steps = learner.status().counters.steps
    last, longest = time.perf_counter(), 0.0
    # More than the old actor had under way, so that the gap lies before it.
    while steps < start + 2_000:
        seen, now = learner.status().counters.steps, time.perf_counter()
        if seen != steps:
            longest, last, steps = max(longest, now - last), now, seen
        threading.Event().wait(0.002)
    return longest


def wait_for_steps(learner: Any, steps: int) -> None:
    while learner.status().counters.steps < steps:
        threading.Event().wait(0.01)


def start(bench: Bench) -> Iterator[Line]:
    """A learner and four actors; torch and gymnasium are imported in this process already."""
    ready: list[float] = []
    learning: list[float] = []
    for _ in range(2 if bench.quick else 5):
        program = program_of(4)
        began = time.perf_counter()
        with program.launch() as running:
            running.wait_ready()
            ready.append(time.perf_counter() - began)
            learner = running.client("learner")
            while not learner.status().counters.updates:
                threading.Event().wait(0.01)
            learning.append(time.perf_counter() - began)
    yield Line(
        "5 nodes with torch, launch to ready, first of the process",
        "< 2 s",
        f"{ready[0]:.2f} s",
        ready[0] < 2,
        {"ropewalk": f"first update done after {learning[0]:.2f} s"},
    )
    middle = statistics.median(ready[1:])
    yield Line(
        "5 nodes with torch, launch to ready, next ones",
        "< 2 s",
        f"{middle:.2f} s",
        middle < 2,
        {"ropewalk": f"first update done after {statistics.median(learning[1:]):.2f} s"},
    )


ROWS: dict[str, Row] = {"restart": restart, "start": start}
