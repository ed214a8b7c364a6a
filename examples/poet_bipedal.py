"""A walker and its obstacle courses invent each other: a small POET on Gymnasium's BipedalWalker.

    python examples/poet_bipedal.py                                a lineage of four courses, in a minute on two cores
    python examples/poet_bipedal.py --paper --iterations 30000 --workers 256 --checkpoint poet

Wang, Lehman, Clune, Stanley: Paired Open-Ended Trailblazer (POET), 2019 (https://arxiv.org/abs/1901.01753), section 4.

    flat ground, 1 agent ─▶ courses with roughness, pits, stumps and stairs, an agent for each ─▶ lineage.png

The first environment is flat. A course whose agent is good enough has children that are a little different; those that
are neither too hard nor too easy stay, and agents move to courses where they are better than the agent there. What
travels is small: a course is seven numbers and ranges, an evaluation one number, and the agents go to each machine once
a round. The number of evaluations grows with the number of courses, and the pool follows it.

Without `--paper` everything is small: a linear policy, short episodes in which a walker that gets somewhere scores 10
or 20, few of them for a step, and courses that have children as soon as their agents do not just fall over.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

import ropewalk as rw
from ropewalk.population import POET, Outcome, RunResult, Trial, WorkerAutoscaler, evaluate
from ropewalk.population.open_ended.niche import ESConfig
from ropewalk.population.open_ended.reproduction import Reproduction
from ropewalk.population.pictures.lineage import draw_lineage
from ropewalk.testing.walker_terrain import Terrain, TerrainWalker, WalkerTerrains

INPUTS, TORQUES = 24, 4
LINEAR, PAPER = (INPUTS, TORQUES), (INPUTS, 40, 40, TORQUES)  # sizes of the layers


def num_parameters(sizes: Sequence[int]) -> int:
    """100 for the linear policy, 2,804 for that of the paper."""
    return sum((before + 1) * after for before, after in pairwise(sizes))


@dataclass(frozen=True)
class Walk:
    """The fitness: the return of one episode."""

    sizes: Sequence[int]
    """Of the layers of the policy."""
    most_steps: int

    def __call__(self, parameters: NDArray[np.floating], terrain: Terrain, trial: Trial) -> Outcome:
        layers = self._layers(parameters)
        walker = TerrainWalker(terrain)
        values, _ = walker.reset(seed=trial.seed)
        total, step, is_over = 0.0, 0, False
        while step < self.most_steps and not is_over:
            for weights, bias in layers:
                values = np.tanh(values @ weights + bias)
            values, reward, is_over, _, _ = walker.step(values)
            total += float(reward)
            step += 1
        return Outcome(total, steps=step)

    def _layers(self, parameters: NDArray[np.floating]) -> list[tuple[NDArray[np.floating], NDArray[np.floating]]]:
        layers: list[tuple[NDArray[np.floating], NDArray[np.floating]]] = []
        for before, after in pairwise(self.sizes):
            layer, parameters = np.split(parameters, [(before + 1) * after])
            layers.append((layer[:-after].reshape(before, after), layer[-after:]))
        return layers


def small(pairs: int, seed: int) -> POET:
    """Learns in minutes that falling is bad and that there is a way forward, on courses that hardly stop it."""
    learning = ESConfig(pairs=pairs, sigma=0.3, least_sigma=0.1, learning_rate=0.1, least_learning_rate=0.03)
    reproduction = Reproduction(every=6, at_score=-20.0, least_score=-40.0, most_score=60.0, children=6, capacity=6)
    return POET(
        num_parameters(LINEAR),
        WalkerTerrains(),
        learning=learning,
        reproduction=reproduction,
        transfer_every=4,
        seed=seed,
    )


def as_in_the_paper(seed: int) -> POET:
    """The defaults are the values of the paper."""
    start = np.random.default_rng(seed).standard_normal(num_parameters(PAPER)) * 0.1
    return POET(start, WalkerTerrains(), episodes=5, seed=seed)


def show(generation: int, **row: Any) -> None:
    print(
        f"iteration {generation:>4}: {row['niches']:.0f} courses, scores {row.get('score_worst', 0):6.1f} to "
        f"{row.get('score_best', 0):6.1f}, {row['transfers']:.0f} agents moved, {row['workers']} workers, "
        f"{row['evaluations_per_s']:.0f} episodes/s",
        flush=True,
    )


def main(arguments: Sequence[str] | None = None) -> RunResult:
    parser = argparse.ArgumentParser(description="POET on BipedalWalker's terrain.")
    parser.add_argument("--iterations", type=int, default=25)
    parser.add_argument("--pairs", type=int, default=16, help="mirrored pairs of episodes for each step")
    parser.add_argument("--steps", type=int, default=250, help="of an episode")
    parser.add_argument("--workers", type=int, default=2, help="at most; there are fewer while there are few courses")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--paper", action="store_true", help="512 episodes for a step, 2,000 steps, its thresholds")
    parser.add_argument("--checkpoint", help="a folder to save the run in, and to go on from")
    parser.add_argument("--picture", default="lineage.png")
    chosen = parser.parse_args(arguments)
    poet = as_in_the_paper(chosen.seed) if chosen.paper else small(chosen.pairs, chosen.seed)
    walk = Walk(PAPER, 2000) if chosen.paper else Walk(LINEAR, chosen.steps)

    with rw.Pool(1, name="walkers", preload=["numpy"]) as pool:
        run = evaluate(
            poet,
            walk,
            pool,
            generations=chosen.iterations,
            workers=WorkerAutoscaler(1, chosen.workers, evaluations_per_worker=2 * poet.learning.pairs),
            checkpoint=chosen.checkpoint,
            report=show,
            progress=False,
        )

    space, lineage = WalkerTerrains(), run.algorithm.lineage
    for pair in run.algorithm.pairs:
        score = "new" if pair.score is None else f"{pair.score:.1f}"
        course = f"{space.describe(pair.environment)}, {lineage.depth(pair.number)} ancestors"
        print(f"course {pair.number} ({course}): {score}")
    print(run)
    if chosen.picture:
        draw_lineage(lineage, chosen.picture, describe=space.describe, until=run.algorithm.generation)
        print(f"lineage of the courses, {len(lineage.branches)} so far: {chosen.picture}")
    return run


if __name__ == "__main__":
    main()
