"""Teach an arm to reach everywhere: MAP-Elites keeps the best way to each place, and draws them all.

    pip install 'ropewalk[population]' matplotlib
    python examples/map_elites.py                             # a grid of 20 x 20 places; seconds
    python examples/map_elites.py --niches 500                # 500 places of any shape

    angles of the joints ─▶ pool ═▶ where the hand is (behaviour), how even the bends are (fitness)
            ▲                                        │
            └── two elites, blended ◀── archive ◀────┘  the better one of each place stays

The arm of Mouret and Clune (2015, section 5), with joints that can bend all the way round. The result is not one
solution but hundreds: a robot that can no longer move one way looks up another that ends in the same place.
"""

from __future__ import annotations

import argparse

import numpy as np
from numpy.typing import NDArray

import ropewalk as rw
from ropewalk.population import CVTArchive, GridArchive, IsoLine, MAPElites, Outcome, RunResult, evaluate

REACH = [(-1.0, 1.0), (-1.0, 1.0)]


def arm(angles: NDArray[np.float64]) -> Outcome:
    """Where the hand of an arm of length 1 is, and how evenly it bends: 0 is best."""
    headings = np.cumsum(angles)
    hand = np.array([np.cos(headings).mean(), np.sin(headings).mean()])
    return Outcome(-float(np.var(angles)), behaviour=hand)


def main(
    workers: int = 2,
    generations: int = 60,
    population: int = 200,
    joints: int = 12,
    niches: int = 0,
    picture: str | None = None,
) -> RunResult:
    archive = CVTArchive(niches, REACH) if niches else GridArchive((20, 20), REACH)
    algorithm = MAPElites(
        joints, archive, population=population, emitter=IsoLine(0.05, 0.3), bounds=(-np.pi, np.pi), seed=1
    )
    with rw.Pool(workers) as pool:
        run = evaluate(algorithm, arm, pool, generations=generations)
    figures = algorithm.figures()
    print(f"{run.evaluations} evaluations found ways to {len(archive)} of {archive.num_niches} places")
    print(f"the median way has a fitness of {np.median(archive.fitnesses):.4f}, the best {figures['best_elite']:.4f}")
    if picture:
        from ropewalk.population.pictures.heat_map import draw_heat_map

        draw_heat_map(archive, picture, labels=("hand to the right", "hand up"))
        print(f"drawn in {picture}")
    return run


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Map elites of a planar arm.")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--generations", type=int, default=60)
    parser.add_argument("--population", type=int, default=200)
    parser.add_argument("--joints", type=int, default=12)
    parser.add_argument("--niches", type=int, default=0, help="number of Voronoi cells, in place of a grid")
    parser.add_argument("--picture", default="arm.png", help="where to draw the heat map, '' for none")
    main(**vars(parser.parse_args()))
