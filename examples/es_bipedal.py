"""Teach a two-legged robot to walk by evolution strategies, over a Ropewalk pool.

    python examples/es_bipedal.py
    python examples/es_bipedal.py --long --generations 500 --population 256 --checkpoint runs/walker
    python examples/es_bipedal.py --long --generations 2000 --population 2048 --hardcore --checkpoint runs/hardcore

Salimans, Ho, Chen, Sidor, Sutskever: Evolution Strategies as a Scalable
Alternative to Reinforcement Learning, 2017 (https://arxiv.org/abs/1703.03864).
The task with stumps, pits and stairs (`--hardcore`) and the population of 2,048
are those by which Fiber was measured (https://arxiv.org/abs/2003.11164).

    launcher ── numbers of candidates ──▶ worker: parameters ± noise, one episode
             ◀─ return, steps ──────────  (parameters come once a generation and host)

One seed gives one policy, for any number of workers. With `--checkpoint` a run
that was killed goes on from its last generation. The first command takes about
half a minute on two cores; the robot learns not to fall. To walk it needs whole
episodes, smaller steps and many more of them (`--long`): hours, days if hardcore.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from functools import cache, partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

import ropewalk as rw
from ropewalk.population import CheckpointConfig, OpenAIES, Outcome, RunResult, Trial, evaluate

OBSERVATIONS, HIDDEN, ACTIONS = 24, 40, 4
SHAPES = [(HIDDEN, OBSERVATIONS), (HIDDEN,), (ACTIONS, HIDDEN), (ACTIONS,)]
SIZES = [int(np.prod(shape)) for shape in SHAPES]
SOLVED_RETURN = 300  # as registered in Gymnasium: the mean over 100 episodes
TEST_EPISODES = 4


@cache
def walker(hardcore: bool) -> Any:
    """The environment of this process; making it takes longer than a short episode."""
    return gymnasium.make("BipedalWalker-v3", hardcore=hardcore).unwrapped


def walk(parameters: np.ndarray, trial: Trial, *, hardcore: bool, max_steps: int) -> Outcome:
    """One episode under a network with one hidden layer."""
    w1, b1, w2, b2 = (
        part.reshape(shape) for part, shape in zip(np.split(parameters, np.cumsum(SIZES)[:-1]), SHAPES, strict=True)
    )
    environment = walker(hardcore)
    environment._destroy()
    environment.world = type(environment.world)()  # the old one's contacts would leak into this episode
    observation, _ = environment.reset(seed=trial.seed)
    total, steps = 0.0, 0
    for _ in range(max_steps):
        action = np.tanh(w2 @ np.tanh(w1 @ trial.normalise(observation) + b1) + b2)
        observation, reward, over, _, _ = environment.step(action)
        total, steps = total + float(reward), steps + 1
        if over:
            break
    return Outcome(total, steps=steps)


def draw_learning_curve(run: RunResult, path: str, title: str) -> None:
    """Mean, spread and best return of each generation, and the policy's own."""
    column = {name: np.array([row[name] for row in run.table]) for name in ("generation", "mean", "std", "max", "test")}
    generations, means = column["generation"], column["mean"]
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    spread = (means - column["std"], means + column["std"])
    axes.fill_between(generations, *spread, alpha=0.2, linewidth=0, label="population: one standard deviation")
    axes.plot(generations, means, marker=".", label="population: mean return")
    axes.plot(generations, column["max"], linewidth=0.8, color="grey", label="population: best return")
    axes.plot(generations, column["test"], linestyle="--", label=f"unperturbed policy: {TEST_EPISODES} episodes")
    axes.axhline(SOLVED_RETURN, color="grey", linewidth=1, linestyle=":", label=f"solved: {SOLVED_RETURN}")
    axes.set(xlabel=f"generation, {run.steps:,} steps in all", ylabel="return of an episode", title=title)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(loc="best", fontsize="small")
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def read_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Evolve a walking policy over a Ropewalk pool.")
    parser.add_argument("--hardcore", action="store_true", help="with stumps, pits and stairs")
    parser.add_argument("--generations", type=int, default=20, help="at most (default: 20)")
    parser.add_argument("--population", type=int, default=32, help="candidates of each, even (default: 32)")
    parser.add_argument("--long", action="store_true", help="whole episodes, and the settings of POET's code")
    parser.add_argument("--max-steps", type=int, help="of an episode (default: 400; with --long 2000)")
    parser.add_argument("--workers", type=int, help="size of the pool (default: the usable CPUs)")
    parser.add_argument("--seed", type=int, default=0, help="decides the whole run (default: 0)")
    parser.add_argument("--checkpoint", help="a folder to save the run in, and to go on from")
    parser.add_argument("--picture", default="walker.png", help="where to draw the learning curve, '' for none")
    parser.add_argument("--json", action="store_true", help="end with the summary as one line of JSON")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    arguments = read_arguments(argv)
    algorithm = OpenAIES(
        np.random.default_rng(arguments.seed).standard_normal(sum(SIZES)) * 0.05,
        population=arguments.population,
        sigma=0.1 if arguments.long else 0.05,
        learning_rate=0.01 if arguments.long else 0.03,
        weight_decay=0.005,
        observation_shape=(OBSERVATIONS,),
        observation_share=0.1,
        seed=arguments.seed,
    )
    max_steps = arguments.max_steps or (2000 if arguments.long else 400)
    name = "BipedalWalkerHardcore-v3" if arguments.hardcore else "BipedalWalker-v3"
    with rw.Pool(arguments.workers, name="walk") as pool:
        run = evaluate(
            algorithm,
            partial(walk, hardcore=arguments.hardcore, max_steps=max_steps),
            pool,
            generations=arguments.generations,
            until={"test": SOLVED_RETURN},
            test=TEST_EPISODES,
            checkpoint=CheckpointConfig(arguments.checkpoint) if arguments.checkpoint else None,
        )
    print(f"{name}: {run}")
    if arguments.picture:
        draw_learning_curve(run, arguments.picture, f"OpenAI-ES on {name}")
        print(f"learning curve: {arguments.picture}")
    if arguments.json:
        summary = {
            "test": run.best_test,
            "means": [round(row["mean"], 2) for row in run.table],
            "evaluations": run.evaluations,
            "steps": run.steps,
            "launcher_ms": round(run.launcher_ms, 4),
            "digest": hashlib.sha256(np.asarray(run.algorithm.incumbent()).tobytes()).hexdigest()[:16],
        }
        print(json.dumps(summary))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
