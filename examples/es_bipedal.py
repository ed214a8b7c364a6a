"""Teach a two-legged robot to walk by evolution strategies, over a Ropewalk pool.

    python examples/es_bipedal.py
    python examples/es_bipedal.py --generations 160 --checkpoint runs/walker
    python examples/es_bipedal.py --hardcore --hidden 40 --generations 2000 --population 2048 --max-steps 2000

Salimans, Ho, Chen, Sidor, Sutskever: Evolution Strategies as a Scalable
Alternative to Reinforcement Learning, 2017 (https://arxiv.org/abs/1703.03864),
with the policy and the reward of Mania, Guy, Recht: Simple Random Search
Provides a Competitive Approach to Reinforcement Learning, 2018
(https://arxiv.org/abs/1803.07055).

    launcher ── numbers of candidates ──▶ worker: parameters ± noise, one episode
             ◀─ return, steps ──────────  (parameters come once a generation and host)

What makes it fast: the policy is linear, on normalised observations; all
candidates of a generation walk over the same ground; and while it learns, a fall
ends an episode but costs nothing, because a robot that fears to fall stands
still. Tests are whole episodes with the reward as it is, a fall at -100.

The first command takes a minute on two idle cores and ends with the first steps,
a return of 105 in tests; the second takes two or three, and it walks, for 211.

One seed gives one policy, for any number of workers. With `--checkpoint` a run
that was killed goes on from its last generation.
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
from ropewalk.population import CheckpointConfig, EvalConfig, OpenAIES, Outcome, RunResult, Trial, evaluate

OBSERVATIONS, ACTIONS = 24, 4
FALL = -100  # the reward of the step in which it falls
SOLVED_RETURN = 300  # as registered in Gymnasium: the mean over 100 episodes
TEST = EvalConfig(episodes=4, every=5)
TEST_STEPS = 1600


def num_parameters(hidden: int) -> int:
    """Weights and biases of a linear policy, or of a network with one hidden layer."""
    return (OBSERVATIONS + 1) * hidden + (hidden + 1) * ACTIONS if hidden else (OBSERVATIONS + 1) * ACTIONS


@cache
def walker(hardcore: bool) -> Any:
    """The environment of this process; making it takes longer than a short episode."""
    return gymnasium.make("BipedalWalker-v3", hardcore=hardcore).unwrapped


def choose(parameters: np.ndarray, observation: np.ndarray, hidden: int) -> np.ndarray:
    """The torques of the four joints, from -1 to 1."""
    values, used = observation, 0
    for width in (hidden, ACTIONS) if hidden else (ACTIONS,):
        weights = parameters[used : used + width * values.size].reshape(width, values.size)
        used += weights.size + width
        values = np.tanh(weights @ values + parameters[used - width : used])
    return values


def walk(parameters: np.ndarray, trial: Trial, *, hardcore: bool = False, hidden: int = 0, max_steps: int) -> Outcome:
    """One episode."""
    environment = walker(hardcore)
    environment._destroy()
    environment.world = type(environment.world)()  # the old one's contacts would leak into this episode
    observation, _ = environment.reset(seed=trial.common_seed)
    total, steps = 0.0, 0
    for _ in range(max(max_steps, TEST_STEPS) if trial.is_test else max_steps):
        action = choose(parameters, trial.normalise(observation), hidden)
        observation, reward, over, _, _ = environment.step(action)
        total += float(reward) if trial.is_test or reward != FALL else 0.0
        steps += 1
        if over:
            break
    return Outcome(total, steps=steps)


def draw_learning_curve(run: RunResult, path: str, title: str) -> None:
    """Mean, spread and best return of each generation, and the policy's own."""
    column = {name: np.array([row[name] for row in run.table]) for name in ("generation", "mean", "std", "max")}
    tests = [(row["generation"], row["test"]) for row in run.table if "test" in row]
    generations, means = column["generation"], column["mean"]
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    spread = (means - column["std"], means + column["std"])
    axes.fill_between(generations, *spread, alpha=0.2, linewidth=0, label="population: one standard deviation")
    axes.plot(generations, means, marker=".", label="population: mean return")
    axes.plot(generations, column["max"], linewidth=0.8, color="grey", label="population: best return")
    axes.plot(*zip(*tests, strict=True), linestyle="--", label=f"unperturbed policy: {TEST.episodes} episodes")
    axes.axhline(SOLVED_RETURN, color="grey", linewidth=1, linestyle=":", label=f"solved: {SOLVED_RETURN}")
    axes.set(xlabel=f"generation, {run.steps:,} steps in all", ylabel="return of an episode", title=title)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(loc="best", fontsize="small")
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def read_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Evolve a walking policy over a Ropewalk pool.")
    parser.add_argument("--hardcore", action="store_true", help="with stumps, pits and stairs")
    parser.add_argument("--generations", type=int, default=120, help="at most (default: 120)")
    parser.add_argument("--population", type=int, default=32, help="candidates of each, even (default: 32)")
    parser.add_argument("--hidden", type=int, default=0, help="width of a hidden layer (default: 0, a linear policy)")
    parser.add_argument("--max-steps", type=int, default=800, help="of an episode, tests apart (default: 800)")
    parser.add_argument("--workers", type=int, help="size of the pool (default: the usable CPUs)")
    parser.add_argument("--seed", type=int, default=2, help="decides the whole run (default: 2)")
    parser.add_argument("--checkpoint", help="a folder to save the run in, and to go on from")
    parser.add_argument("--picture", default="walker.png", help="where to draw the learning curve, '' for none")
    parser.add_argument("--json", action="store_true", help="end with the summary as one line of JSON")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    arguments = read_arguments(argv)
    hidden = arguments.hidden
    spread = 0.05 if hidden else 0.0  # hidden units that begin equal would stay so
    algorithm = OpenAIES(
        np.random.default_rng(arguments.seed).standard_normal(num_parameters(hidden)) * spread,
        population=arguments.population,
        sigma=0.1,
        learning_rate=0.05,
        observation_shape=(OBSERVATIONS,),
        observation_share=0.1,
        seed=arguments.seed,
    )
    name = "BipedalWalkerHardcore-v3" if arguments.hardcore else "BipedalWalker-v3"
    with rw.Pool(arguments.workers, name="walk") as pool:
        run = evaluate(
            algorithm,
            partial(walk, hardcore=arguments.hardcore, hidden=hidden, max_steps=arguments.max_steps),
            pool,
            generations=arguments.generations,
            until={"test": SOLVED_RETURN},
            test=TEST,
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
