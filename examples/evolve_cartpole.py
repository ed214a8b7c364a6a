"""Evolve a policy for CartPole over a Ropewalk pool, with OpenAI-ES.

    python examples/evolve_cartpole.py --kill-workers

Salimans, Ho, Chen, Sidor, Sutskever: Evolution Strategies as a Scalable
Alternative to Reinforcement Learning, 2017 (https://arxiv.org/abs/1703.03864).

`ropewalk.population` has the algorithm; what is here is the policy, its fitness, and
what is printed and drawn. Candidates travel as numbers: worker and launcher find the
same noise in the same table, and one float comes back.

What happens in an episode is decided by the seed of the run and the place of the
candidate alone, and sums are taken in that order. So one seed gives one digest: with 1
worker or 8, and whether or not workers are killed while they work.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import signal
import sys
import threading
import time
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import gymnasium
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from rich.console import Console

import ropewalk as rw
from ropewalk.population import NoiseTable, OpenAIES, Trial, evaluate

SOLVED_RETURN = 475.0  # as registered in Gymnasium: the mean over 100 episodes
FINAL_EPISODES = 100
TEST_EPISODES = 8  # of the unperturbed policy, in each generation

OBSERVATIONS, HIDDEN, ACTIONS = 4, 16, 2
SIZE = HIDDEN * (OBSERVATIONS + 1) + ACTIONS * (HIDDEN + 1)


# --- What the workers run ---------------------------------------------------------------------------------------------


def play(parameters: np.ndarray, trial: Trial) -> float:
    """Return of one episode of CartPole under a tanh network with one hidden layer."""
    w1, b1, w2, b2 = np.split(parameters, np.cumsum([HIDDEN * OBSERVATIONS, HIDDEN, ACTIONS * HIDDEN]))
    w1, w2 = w1.reshape(HIDDEN, OBSERVATIONS), w2.reshape(ACTIONS, HIDDEN)
    environment = gymnasium.make("CartPole-v1")
    observation, _ = environment.reset(seed=trial.seed)
    total, over = 0.0, False
    while not over:
        action = int(np.argmax(w2 @ np.tanh(w1 @ observation + b1) + b2))
        observation, reward, fell, out_of_time, _ = environment.step(action)
        total += float(reward)
        over = fell or out_of_time
    return total


def examine(parameters: np.ndarray, episode: int) -> float:
    """One episode of the final examination, from a start that no candidate has seen."""
    return play(parameters, Trial(rw.task_seed()))


# --- Learning ---------------------------------------------------------------------------------------------------------


def strategy(population: int, seed: int) -> OpenAIES:
    """OpenAI-ES, from small random parameters."""
    start = np.random.default_rng(seed).standard_normal(SIZE) / np.sqrt(HIDDEN)
    return OpenAIES(
        start,
        population=population,
        sigma=0.2,
        learning_rate=0.05,
        weight_decay=0.005,
        noise=NoiseTable(2**20),
        seed=seed,
    )


def evolve(pool: rw.Pool, algorithm: OpenAIES, generations: int, story: Story) -> tuple[np.ndarray, float]:
    """Learn until solved or out of generations; returns the parameters and their mean over the final episodes."""
    while True:
        # 1. A few good episodes earn the policy its examination.
        until = {"test": SOLVED_RETURN}
        run = evaluate(
            algorithm, play, pool, generations=generations, until=until, test=TEST_EPISODES, report=story.generation
        )
        # 2. A hundred others decide; it has seen none of these starts.
        final = float(np.mean(pool.map(partial(examine, run.best), range(FINAL_EPISODES), seed=algorithm.generation)))
        story.num_exams += 1
        if final >= SOLVED_RETURN or algorithm.generation >= generations:
            return run.best, final


# --- Killing, showing, drawing ----------------------------------------------------------------------------------------


@dataclass
class Story:
    """What has happened so far; the killer, the lines and the picture read it."""

    rows: list[dict[str, float]] = field(default_factory=list)
    kills: list[float] = field(default_factory=list)  # when, in generations
    num_exams: int = 0
    started: float = field(default_factory=time.monotonic)

    def generation(self, number: int, **row: float) -> None:
        """Take note of a generation, and say so where nobody watches it live."""
        self.rows.append({"generation": number, **row})
        if not sys.stderr.isatty():
            print(
                f"generation {number:3d}  mean {row['mean']:5.1f}  max {row['max']:3.0f}  test {row['test']:5.1f}"
                f"  {row['evaluations_per_s']:4.0f} episodes/s  {len(self.kills)} workers killed",
                flush=True,
            )


class Killer(threading.Thread):
    """Sends SIGKILL to one worker of the pool every second, while its `with` block runs."""

    def __init__(self, pool: rw.Pool, story: Story) -> None:
        super().__init__(name="killer", daemon=True)
        self._pool, self._story, self._stopped = pool, story, threading.Event()
        self._killed = set[int]()

    def run(self) -> None:
        while not self._stopped.wait(1.0):
            workers = self._pool.status().workers
            # Not one that starts, or it may never be ready; nor one whose death the pool has not heard of yet.
            pids = [each.pid for each in workers if each.state in ("idle", "running") and each.pid not in self._killed]
            with suppress(ProcessLookupError):  # it may have ended by itself
                if pids:
                    self._killed.add(chosen := random.choice(pids))
                    os.kill(chosen, signal.SIGKILL)
                    self._story.kills.append(len(self._story.rows))

    def __enter__(self) -> None:
        self.start()

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self.join()


def draw_learning_curve(story: Story, path: str) -> None:
    """Mean return of each generation with its spread, the unperturbed policy, and the moments of the kills."""
    generations = np.array([row["generation"] for row in story.rows])
    means, spreads = (np.array([row[name] for row in story.rows]) for name in ("mean", "std"))
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    low, high = np.clip(means - spreads, 0, 500), np.clip(means + spreads, 0, 500)
    axes.fill_between(generations, low, high, alpha=0.2, linewidth=0, label="population: one standard deviation")
    axes.plot(generations, means, marker=".", label="population: mean return")
    tests = [row["test"] for row in story.rows]
    axes.plot(generations, tests, linestyle="--", label=f"unperturbed policy: {TEST_EPISODES} episodes")
    axes.axhline(SOLVED_RETURN, color="grey", linewidth=1, linestyle=":", label=f"solved: {SOLVED_RETURN:.0f}")
    if story.kills:
        label = f"a worker was killed ({len(story.kills)} times)"
        axes.plot(story.kills, [8] * len(story.kills), "x", color="crimson", clip_on=False, label=label)
    axes.set(xlabel="generation", ylabel="return of an episode", ylim=(0, 510), title="OpenAI-ES on CartPole-v1")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(loc="best", fontsize="small")
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


# --- The program ------------------------------------------------------------------------------------------------------


def read_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Evolve a policy for CartPole over a Ropewalk pool.")
    parser.add_argument("--workers", type=int, help="size of the pool (default: the usable CPUs)")
    parser.add_argument("--seed", type=int, default=0, help="decides the whole run (default: 0)")
    parser.add_argument("--generations", type=int, default=100, help="give up after this number (default: 100)")
    parser.add_argument("--population", type=int, default=256, help="policies per generation, even (default: 256)")
    parser.add_argument("--kill-workers", action="store_true", help="kill a worker every second while it learns")
    parser.add_argument("--picture", default="learning_curve.png", help="where to draw the learning curve, '' for none")
    parser.add_argument("--json", action="store_true", help="end with the summary as one line of JSON")
    arguments = parser.parse_args(argv)
    if arguments.population < 2 or arguments.population % 2:
        parser.error(f"--population is {arguments.population}; use an even number, as they come in pairs")
    if arguments.generations < 1:
        parser.error(f"--generations is {arguments.generations}; use at least 1")
    if arguments.seed < 0:
        parser.error(f"--seed is {arguments.seed}; use 0 or more")
    return arguments


def main(argv: list[str] | None = None) -> int:
    arguments = read_arguments(argv)
    console = Console(highlight=False)
    story = Story()
    algorithm = strategy(arguments.population, arguments.seed)
    # Where episodes take a second, workers may be killed in the same one again and again, which is not to blame.
    with rw.Pool(arguments.workers, name="evolve", max_deaths=1_000 if arguments.kill_workers else 3) as pool:
        with Killer(pool, story) if arguments.kill_workers else nullcontext():
            parameters, final = evolve(pool, algorithm, arguments.generations, story)
        seconds, status = time.monotonic() - story.started, pool.status()
    if arguments.picture:
        draw_learning_curve(story, arguments.picture)

    solved = final >= SOLVED_RETURN
    episodes = len(story.rows) * (arguments.population + TEST_EPISODES) + story.num_exams * FINAL_EPISODES
    summary = {
        "solved": solved,
        "mean_return": final,
        "episodes_evaluated": FINAL_EPISODES,
        "generations": algorithm.generation,
        "episodes": episodes,
        "seconds": round(seconds, 2),
        "workers": len(status.workers),
        "killed": len(story.kills),
        "died": status.num_deaths,
        "retried": status.retried,
        "seed": arguments.seed,
        "digest": hashlib.sha256(parameters.tobytes()).hexdigest()[:12],
        "picture": arguments.picture or None,
    }
    verdict = "[bold green]solved[/]" if solved else "[bold red]not solved[/]"
    console.print(f"{verdict}: mean return {final:.1f} over {FINAL_EPISODES} episodes (solved at {SOLVED_RETURN:.0f})")
    console.print(
        f"time    {seconds:.1f} s, {algorithm.generation} generations, {episodes} episodes,"
        f" {len(status.workers)} workers"
    )
    console.print(f"killed  {len(story.kills)} workers; {status.retried} tasks were tried again")
    console.print(f"digest  {summary['digest']} (seed {arguments.seed}: the same for any workers, killed or not)")
    if arguments.picture:
        console.print(f"picture {os.path.abspath(arguments.picture)}", soft_wrap=True)
    if arguments.json:
        print(json.dumps(summary))
    return 0 if solved else 1


if __name__ == "__main__":
    sys.exit(main())
