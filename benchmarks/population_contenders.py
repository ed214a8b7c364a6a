"""What runs a population: `ropewalk.population.evaluate`, or a strategy written by hand over another pool's `map`.

A job says what one iteration is, in both forms; a contender runs iterations of it and says what they took.
"""

from __future__ import annotations

import functools
import importlib
import time
import weakref
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import population_work as work
from contenders import opener
from population_work import Vector

import ropewalk as rw
from ropewalk.population import Algorithm, Evaluator, OpenAIES, Outcome, Trial, evaluate
from ropewalk.population.algorithm import Fitness
from ropewalk.population.outcome import outcome_of
from ropewalk.transport.streams.plain import PlainStream
from ropewalk.transport.streams.stream import Stream

OURS = "ropewalk"
#: In the order in which they are opened: forking first, while this process has no threads.
OTHERS = ("multiprocessing", "loky", "ray", "ipyparallel")
#: What a worker holds for itself, roughly, in MB: on 2 cores, Python 3.11, with numpy loaded.
WORKER_MB = {"multiprocessing": 4, "loky": 20, "ray": 60, "ipyparallel": 80, OURS: 5}

#: What workers of ours share from the start, as forked ones do: hundreds of them would each load numpy.
PRELOAD = ("numpy", "population_contenders")

Map = Callable[[Callable[[Any], Any], Sequence[Any]], list[Any]]


@dataclass(frozen=True, slots=True)
class Took:
    """What iterations took."""

    wall_s: float
    launcher_s: float
    """Processor time of the launcher's process, all threads, with the update."""
    num_evaluations: int
    num_bytes: int = 0
    """Of all frames on the links of the pool's workers: to the launcher, after `count_sent_bytes` also from it."""

    @property
    def launcher_ms(self) -> float:
        """Of each evaluation."""
        return 1e3 * self.launcher_s / self.num_evaluations

    @property
    def bytes_each(self) -> float:
        return self.num_bytes / self.num_evaluations


class Job(Protocol):
    """What is run, in two forms."""

    population: int

    def ours(self) -> tuple[Algorithm[Any], Callable[..., Any]]:
        """The algorithm and the fitness function."""
        ...

    def iterate(self, map: Map) -> None:
        """One iteration by hand."""
        ...


class Sleeping:
    """The paper's protocol: a strategy whose evaluations sleep, with as many parameters as a walker's policy has."""

    def __init__(self, population: int, duration_s: float, dim: int = 2804) -> None:
        self.population = population
        self._duration_s = duration_s
        self._centre = np.ones(dim, np.float32)
        self._generation = 0

    def ours(self) -> tuple[Algorithm[Any], Callable[..., Any]]:
        return OpenAIES(self._centre, population=self.population), functools.partial(work.sphere, self._duration_s)

    def iterate(self, map: Map) -> None:
        evaluation = functools.partial(work.perturbed_sphere, self._centre, self._generation, self._duration_s)
        fitness = map(evaluation, range(self.population))
        assert len(fitness) == self.population and max(fitness) < 0, "wrong results"
        self._centre = work.updated(self._centre, self._generation, fitness)
        self._generation += 1


class Reading:
    """Evaluations that read all of their parameters, which are new in each iteration."""

    def __init__(self, population: int, duration_s: float, dim: int) -> None:
        self.population = population
        self._duration_s = duration_s
        self._dim = dim
        self._parameters = np.ones(dim, np.float32)

    def ours(self) -> tuple[Algorithm[Any], Callable[..., Any]]:
        return Counting(self.population, self._dim), functools.partial(work.read_all, self._duration_s)

    def iterate(self, map: Map) -> None:
        evaluation = functools.partial(work.read_all_numbered, self._parameters, self._duration_s)
        check_sums(map(evaluation, range(self.population)), self._parameters)
        self._parameters = self._parameters + np.float32(1)


def check_sums(sums: Sequence[float], parameters: Vector) -> None:
    assert set(sums) == {float(parameters.sum())}, "wrong results"


class Counting(Algorithm[int]):
    """The smallest algorithm that has large parameters: they grow by one in each generation."""

    def __init__(self, population: int, dim: int) -> None:
        super().__init__(population, 0)
        self._parameters = np.ones(dim, np.float32)
        self._evaluator = Handing(self._parameters)
        self._told: list[float] = []

    def ask(self, n: int) -> Sequence[int]:
        return range(self.population)

    def tell(self, candidates: Sequence[int], outcomes: Sequence[Outcome]) -> None:
        self._told += [outcome.fitness for outcome in outcomes]
        if len(self._told) == self.population:
            check_sums(self._told, self._parameters)
            self._told = []
            self._parameters = self._parameters + np.float32(1)
            self._evaluator = Handing(self._parameters)
            self.generation += 1

    def evaluator(self) -> Evaluator[int]:
        return self._evaluator

    def state_dict(self) -> dict[str, Any]:
        return {"parameters": self._parameters}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._parameters = state["parameters"]


class Handing(Evaluator[int]):
    """Every candidate stands for all parameters."""

    def __init__(self, parameters: Vector) -> None:
        self._parameters = parameters

    def __call__(self, fitness: Fitness, candidate: int, trial: Trial) -> Outcome:
        return outcome_of(fitness(self._parameters, trial))


class Ours:
    """The job under `evaluate`, on a pool of Ropewalk that is the caller's."""

    def __init__(self, job: Job, pool: rw.Pool) -> None:
        self.algorithm, self._fitness = job.ours()
        self._pool = pool

    def run(self, iterations: int) -> Took:
        before, cpu_s, start = link_bytes(self._pool), time.process_time(), time.perf_counter()
        generations = self.algorithm.generation + iterations
        done = evaluate(self.algorithm, self._fitness, self._pool, generations=generations, progress=False)
        wall_s, cpu_s = time.perf_counter() - start, time.process_time() - cpu_s
        return Took(wall_s, cpu_s, done.evaluations, link_bytes(self._pool) - before)


def link_bytes(pool: rw.Pool) -> int:
    """All bytes that have gone over the links of the workers that a pool has now: to us, and from us if counted."""
    links = [worker.link for worker in pool._dispatcher.present()]
    return sum(link.received_bytes + _sent.get(link.stream, 0) for link in links if link)


_sent: weakref.WeakKeyDictionary[Stream, int] = weakref.WeakKeyDictionary()


def count_sent_bytes() -> None:
    """Have the streams of this process count from now on what they take; links count what they receive anyway.

    It takes time of the launcher, so only rows that are about bytes do it.
    """

    def counting(send: Callable[..., int]) -> Callable[..., int]:
        def send_counted(stream: Stream, *arguments: Any) -> int:
            taken = send(stream, *arguments)
            _sent[stream] = _sent.get(stream, 0) + taken
            return taken

        return send_counted

    for name in ("send", "send_bytes"):
        setattr(PlainStream, name, counting(getattr(PlainStream, name)))


class ByHand:
    """The job over another pool's map."""

    def __init__(self, job: Job, map: Map) -> None:
        self._job = job
        self._map = map

    def run(self, iterations: int) -> Took:
        cpu_s, start = time.process_time(), time.perf_counter()
        for _ in range(iterations):
            self._job.iterate(self._map)
        wall_s, cpu_s = time.perf_counter() - start, time.process_time() - cpu_s
        return Took(wall_s, cpu_s, iterations * self._job.population)


Contender = Ours | ByHand


@contextmanager
def opened(job: Callable[[], Job], workers: Mapping[str, int]) -> Generator[dict[str, Contender]]:
    """Those contenders that are installed, with a number of workers each, started and warm."""
    work.table()  # workers that are forked shall have it
    with ExitStack() as stack:
        running: dict[str, Contender] = {}
        for name in OTHERS:
            if name in workers and (map := _open_other(name, workers[name], stack)):
                running[name] = ByHand(job(), map)
        if OURS in workers:
            pool = stack.enter_context(rw.Pool(workers[OURS], preload=PRELOAD))
            pool.wait_until_ready(120)
            running[OURS] = Ours(job(), pool)
        for contender in running.values():
            contender.run(1)
        yield dict(sorted(running.items(), key=lambda each: each[0] != OURS))


def _open_other(name: str, workers: int, stack: ExitStack) -> Map | None:
    if name == "ipyparallel":
        return _open_ipyparallel(workers, stack)
    make = opener(name)
    if make is None:
        return None
    contender = make(workers)
    stack.callback(contender.close)
    return lambda function, items: contender.map(function, items)


def _open_ipyparallel(workers: int, stack: ExitStack) -> Map | None:
    try:
        ipyparallel = importlib.import_module("ipyparallel")
    except ModuleNotFoundError:
        return None
    cluster = ipyparallel.Cluster(n=workers, log_level=40)
    stack.callback(cluster.stop_cluster_sync)
    view = cluster.start_and_connect_sync(activate=False).load_balanced_view()
    # Chunks as the others make them; its own default is one item at a time.
    return lambda function, items: view.map_sync(function, items, chunksize=-(-len(items) // (4 * workers)))
