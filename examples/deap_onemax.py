"""Evolve a string of ones with DEAP, whose toolbox takes any map: here that of a pool.

    pip install deap
    python examples/deap_onemax.py

    population ─ select, mate, mutate ─▶ offspring ── toolbox.map ──▶ pool ═══▶ evaluate
         ▲                                                                        │
         └──────────────────────── fitness ◀──────────────────────────────────────┘

The one line that makes DEAP parallel is `toolbox.register("map", pool.map)`, as DEAP's manual has it for
multiprocessing. With `ROPEWALK_ENGINE=slurm` the same program evaluates on a cluster.
"""

from __future__ import annotations

import random
from typing import Any

from deap import algorithms, base, creator, tools

import ropewalk as rw

BITS = 60

classes: Any = creator  # where DEAP keeps the classes that it makes at run time
classes.create("FitnessMax", base.Fitness, weights=(1.0,))
classes.create("Individual", list, fitness=classes.FitnessMax)


def evaluate(individual: list[int]) -> tuple[int]:
    """The number of ones. DEAP wants a tuple: there may be several goals."""
    return (sum(individual),)


def make_toolbox() -> Any:
    toolbox: Any = base.Toolbox()
    toolbox.register("bit", random.randint, 0, 1)
    toolbox.register("individual", tools.initRepeat, classes.Individual, toolbox.bit, BITS)
    toolbox.register("population", tools.initRepeat, list, toolbox.individual)
    toolbox.register("evaluate", evaluate)
    toolbox.register("mate", tools.cxTwoPoint)
    toolbox.register("mutate", tools.mutFlipBit, indpb=1 / BITS)
    toolbox.register("select", tools.selTournament, tournsize=3)
    return toolbox


def evolve(toolbox: Any, *, seed: int, generations: int, size: int = 100) -> list[int]:
    """The best individual. The same seed gives the same one, however it was evaluated: chance is drawn here only."""
    random.seed(seed)
    best = tools.HallOfFame(1)
    population = toolbox.population(n=size)
    algorithms.eaSimple(population, toolbox, cxpb=0.5, mutpb=0.5, ngen=generations, halloffame=best, verbose=False)
    return best[0]


def main(workers: int = 2, generations: int = 40) -> list[int]:
    toolbox = make_toolbox()
    with rw.Pool(workers) as pool:
        toolbox.register("map", pool.map)
        best = evolve(toolbox, seed=1, generations=generations)
    print(f"{sum(best)} of {BITS} bits are ones after {generations} generations")
    print("".join(map(str, best)))
    return best


if __name__ == "__main__":
    main()
