"""Real rollouts on two cores: `evaluate` on two workers against a plain loop and against two independent processes.

All walk with the same candidates: those of one generation of OpenAIES. The two independent processes have half of them
each and tell nobody anything; their rate is the sum of both.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import time
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection

import numpy as np
import population_work as work
import probes
from pool_rows import Line
from population_rows import Bench, Row

import ropewalk as rw
from ropewalk.population import OpenAIES, Outcome, Trial, evaluate

_SIGMA = 0.1


def walked(x: work.Vector, trial: Trial) -> Outcome:
    earned, num_steps = work.walk(x, trial.seed)
    return Outcome(earned, steps=num_steps)


def strategy(population: int) -> OpenAIES:
    """The centre stays where it is, so that all generations walk alike."""
    return OpenAIES(work.NUM_WEIGHTS, population=population, sigma=_SIGMA, learning_rate=1e-9, seed=1)


def loop(algorithm: OpenAIES, generation: int, share: slice) -> tuple[int, float]:
    """Steps walked, and seconds, of some candidates of a generation."""
    evaluator, population = algorithm.evaluator(), algorithm.population
    start, num_steps = time.perf_counter(), 0
    for candidate in range(generation * population, (generation + 1) * population)[share]:
        num_steps += work.walk(np.asarray(evaluator.parameters(candidate)), candidate)[1]
    return num_steps, time.perf_counter() - start


def independent(link: Connection, population: int, share: slice) -> None:
    """One of two processes that know nothing of each other."""
    os.setsid()  # as ours do: the kernel shares busy cores out among sessions first (sched_autogroup_enabled)
    algorithm = strategy(population)
    while (generation := link.recv()) is not None:
        link.send(loop(algorithm, generation, share))


def rollouts(bench: Bench) -> Iterator[Line]:
    population, rounds = bench.count(1024, 16), bench.count(3, 2)
    context = multiprocessing.get_context("fork")
    pipes = [context.Pipe() for _ in range(2)]
    halves = [
        context.Process(target=independent, args=(there, population, slice(half, None, 2)), daemon=True)
        for half, (_, there) in enumerate(pipes)
    ]
    for process in halves:
        process.start()
    links = [here for here, _ in pipes]
    algorithm = strategy(population)
    single: list[float] = []
    double: list[float] = []
    ours: list[float] = []
    cpu: dict[str, list[float]] = {"two": [], "ours": []}
    with rw.Pool(2) as pool:
        for turn in range(rounds + 1):
            for name in ("one", "two", "ours")[:: -1 if turn % 2 else 1]:
                pids = [process.pid for process in halves if process.pid] if name == "two" else probes.family()
                pids = pids if name == "two" else [pid for pid in pids if pid not in [half.pid for half in halves]]
                before = probes.cpu_s(pids)
                if name == "one":
                    num_steps, took_s = loop(algorithm, algorithm.generation, slice(0, population, 2))
                    single.append(num_steps / took_s)
                elif name == "two":
                    found = both(links, algorithm.generation)
                    double.append(sum(num_steps / took_s for num_steps, took_s in found))
                    cpu["two"].append((probes.cpu_s(pids) - before) / sum(num_steps for num_steps, _ in found))
                else:
                    start = time.perf_counter()
                    run = evaluate(algorithm, walked, pool, generations=algorithm.generation + 1, progress=False)
                    ours.append(run.steps / (time.perf_counter() - start))
                    cpu["ours"].append((probes.cpu_s(pids) - before) / run.steps)
    for link in links:
        link.send(None)
    # The first round loads Gymnasium.
    ratio = statistics.median(mine / two for mine, two in zip(ours[1:], double[1:], strict=True))
    over_one = statistics.median(mine / one for mine, one in zip(ours[1:], single[1:], strict=True))
    costs = {name: statistics.median(each[1:]) * 1e6 for name, each in cpu.items()}
    shown = {
        "ropewalk": f"{statistics.median(ours[1:]):,.0f} steps/s, CPU {costs['ours']:.0f} µs a step",
        "two processes": f"{statistics.median(double[1:]):,.0f} steps/s, CPU {costs['two']:.0f} µs a step",
        "one process": f"{statistics.median(single[1:]):,.0f} steps/s",
    }
    what = f"BipedalWalker, population {population}, 2 workers on 2 cores: steps per second"
    yield Line(what, ">= 0.95 x two independent processes", f"{ratio:.3f} x", ratio >= 0.95, shown)
    yield Line(f"{what}, against a plain loop", "", f"{over_one:.2f} x", None, {})


def both(links: Sequence[Connection], generation: int) -> list[tuple[int, float]]:
    for link in links:
        link.send(generation)
    return [link.recv() for link in links]


ROWS: dict[str, Row] = {"rollouts": rollouts}
