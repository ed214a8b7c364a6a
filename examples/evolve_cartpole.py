"""Evolve a policy for CartPole over a Ropewalk pool, with OpenAI-ES.

    python examples/evolve_cartpole.py --kill-workers

Salimans, Ho, Chen, Sidor, Sutskever: Evolution Strategies as a Scalable
Alternative to Reinforcement Learning, 2017 (https://arxiv.org/abs/1703.03864).

  Algorithm 1    the gradient is a weighted sum of the noise: `estimate_gradient`
  Algorithm 2    seeds travel, not vectors: worker and launcher draw the same
                 noise from the same task; two returns come back: `evaluate_pair`
  section 2.1    mirrored sampling, ranks in place of returns, weight decay, and
                 evaluation episodes of the unperturbed policy mixed in

It departs from the paper in one place: tied returns share their mean rank, as
nearly every good policy ends at CartPole's limit of 500.

What happens in an episode is decided by (seed, generation, index) alone, and
sums are taken in the order of the index. So one seed gives one digest: with 1
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
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial

import gymnasium
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

import ropewalk as rw

SOLVED_RETURN = 475.0  # as registered in Gymnasium: the mean over 100 episodes
FINAL_EPISODES = 100
PROBE_EPISODES = 8  # of the unperturbed policy, in each generation
SIGMA = 0.2
LEARNING_RATE = 0.05
WEIGHT_DECAY = 0.005

OBSERVATIONS, HIDDEN, ACTIONS = 4, 16, 2
SIZE = HIDDEN * (OBSERVATIONS + 1) + ACTIONS * (HIDDEN + 1)

# A task names a random stream: (seed of the run, purpose, generation, index).
Task = tuple[int, int, int, int]
FIRST_PARAMETERS, PERTURBATION, PROBE, FINAL = range(4)


# --- What the workers run ---------------------------------------------------------------------------------------------


def draw(task: Task) -> tuple[np.ndarray, int]:
    """The noise vector and the episode seed that belong to a task, the same wherever they are drawn."""
    generator = np.random.default_rng(task)
    return generator.standard_normal(SIZE), int(generator.integers(2**31))


def play(parameters: np.ndarray, episode_seed: int) -> float:
    """Return of one episode of CartPole under a tanh network with one hidden layer."""
    w1, b1, w2, b2 = np.split(parameters, np.cumsum([HIDDEN * OBSERVATIONS, HIDDEN, ACTIONS * HIDDEN]))
    w1, w2 = w1.reshape(HIDDEN, OBSERVATIONS), w2.reshape(ACTIONS, HIDDEN)
    environment = gymnasium.make("CartPole-v1")
    observation, _ = environment.reset(seed=episode_seed)
    total, over = 0.0, False
    while not over:
        action = int(np.argmax(w2 @ np.tanh(w1 @ observation + b1) + b2))
        observation, reward, fell, out_of_time, _ = environment.step(action)
        total += float(reward)
        over = fell or out_of_time
    return total


def evaluate_pair(parameters: np.ndarray, task: Task) -> tuple[int, float, float]:
    """Play one perturbation and its mirror image, both from the same start."""
    noise, episode_seed = draw(task)
    plus = play(parameters + SIGMA * noise, episode_seed)
    minus = play(parameters - SIGMA * noise, episode_seed)
    return task[-1], plus, minus


def evaluate_unperturbed(parameters: np.ndarray, task: Task) -> float:
    """Play the policy itself, from a start that no perturbation has seen."""
    return play(parameters, draw(task)[1])


# --- The algorithm ----------------------------------------------------------------------------------------------------


def centred_ranks(returns: np.ndarray) -> np.ndarray:
    """Ranks scaled to [-0.5, 0.5], in the shape of `returns`; equal returns share their mean rank."""
    _, place, counts = np.unique(returns, return_inverse=True, return_counts=True)
    mean_ranks = np.cumsum(counts) - (counts + 1) / 2
    return mean_ranks[place].reshape(returns.shape) / (returns.size - 1) - 0.5


def estimate_gradient(returns: np.ndarray, tasks: list[Task]) -> np.ndarray:
    """Estimate of the ascent direction; `returns` is (pairs, 2): the perturbation's and its mirror image's."""
    ranks = centred_ranks(returns)
    gradient = np.zeros(SIZE)
    for task, (plus, minus) in zip(tasks, ranks, strict=True):  # in order: float sums depend on it
        gradient += (plus - minus) * draw(task)[0]
    return gradient / (returns.size * SIGMA)


@dataclass
class Adam:
    """Adam (Kingma and Ba, 2014), upwards."""

    mean: np.ndarray = field(default_factory=lambda: np.zeros(SIZE))
    square: np.ndarray = field(default_factory=lambda: np.zeros(SIZE))
    steps: int = 0

    def step(self, gradient: np.ndarray) -> np.ndarray:
        self.steps += 1
        self.mean = 0.9 * self.mean + 0.1 * gradient
        self.square = 0.999 * self.square + 0.001 * gradient**2
        mean, square = self.mean / (1 - 0.9**self.steps), self.square / (1 - 0.999**self.steps)
        return LEARNING_RATE * mean / (np.sqrt(square) + 1e-8)


@dataclass
class Progress:
    """What the run has done so far; the display, the killer and the picture read it."""

    generations: int  # at most
    pairs: int
    started: float = field(default_factory=time.monotonic)
    generation: int = 0
    pairs_done: int = 0
    episodes: int = 0
    means: list[float] = field(default_factory=list)
    spreads: list[float] = field(default_factory=list)
    maxima: list[float] = field(default_factory=list)
    probes: list[float] = field(default_factory=list)
    kills: list[float] = field(default_factory=list)  # when, in generations

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    @property
    def now(self) -> float:
        """The current time on the learning curve's axis."""
        return max(0, self.generation - 1) + self.pairs_done / self.pairs

    @property
    def remaining_s(self) -> float:
        """Seconds until the last generation that is allowed, at the pace so far; when solved, it ends sooner."""
        return self.seconds / max(self.now, 0.1) * (self.generations - self.now)

    def record(self, returns: np.ndarray, probe: float) -> None:
        self.means.append(float(returns.mean()))
        self.spreads.append(float(returns.std()))
        self.maxima.append(float(returns.max()))
        self.probes.append(probe)


def evolve(pool: rw.Pool, seed: int, progress: Progress, show: Callable[[], None] | None) -> tuple[np.ndarray, float]:
    """Learn until solved or out of generations; returns the parameters and their mean over the final episodes."""
    parameters = draw((seed, FIRST_PARAMETERS, 0, 0))[0] / np.sqrt(HIDDEN)
    optimizer = Adam()
    final = 0.0
    for generation in range(1, progress.generations + 1):
        progress.generation, progress.pairs_done = generation, 0

        # 1. One map for the population, and one beside it for the policy itself.
        tasks: list[Task] = [(seed, PERTURBATION, generation, index) for index in range(progress.pairs)]
        probe_tasks = [(seed, PROBE, generation, index) for index in range(PROBE_EPISODES)]
        probe = pool.map_async(partial(evaluate_unperturbed, parameters), probe_tasks)
        returns = np.zeros((progress.pairs, 2))
        for index, plus, minus in pool.imap_unordered(partial(evaluate_pair, parameters), tasks):
            returns[index] = plus, minus
            progress.pairs_done += 1
            progress.episodes += 2
        progress.record(returns, float(np.mean(probe.get())))
        progress.episodes += PROBE_EPISODES
        if show:
            show()

        # 2. A few good episodes earn the policy its examination; it has seen none of these starts.
        last = generation == progress.generations
        if progress.probes[-1] >= SOLVED_RETURN or last:
            final_tasks = [(seed, FINAL, generation, index) for index in range(FINAL_EPISODES)]
            final = float(np.mean(pool.map(partial(evaluate_unperturbed, parameters), final_tasks)))
            progress.episodes += FINAL_EPISODES
            if final >= SOLVED_RETURN or last:
                break

        # 3. One step upwards.
        parameters = parameters + optimizer.step(estimate_gradient(returns, tasks) - WEIGHT_DECAY * parameters)
    return parameters, final


# --- Killing, showing, drawing ----------------------------------------------------------------------------------------


class Killer(threading.Thread):
    """Sends SIGKILL to one worker of the pool every second, while its `with` block runs."""

    def __init__(self, pool: rw.Pool, progress: Progress) -> None:
        super().__init__(name="killer", daemon=True)
        self._pool, self._progress, self._stopped = pool, progress, threading.Event()

    def run(self) -> None:
        while not self._stopped.wait(1.0):
            pids = [worker.pid for worker in self._pool.status().workers if worker.pid]
            with suppress(ProcessLookupError):  # it may have ended by itself, as after an earlier kill
                if pids:
                    os.kill(random.choice(pids), signal.SIGKILL)
                    self._progress.kills.append(self._progress.now)

    def __enter__(self) -> None:
        self.start()

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self.join()


def line(progress: Progress, pool: rw.Pool) -> str:
    """One generation in one line, for a log; nobody is busy at this moment, so that is not told."""
    status = pool.status()
    return (
        f"generation {progress.generation:3d}  mean {progress.means[-1]:5.1f}  max {progress.maxima[-1]:3.0f}"
        f"  eval {progress.probes[-1]:5.1f}  {progress.episodes / progress.seconds:4.0f} episodes/s"
        f"  workers {len(status.workers)} up, {status.num_deaths} died"
        f"  at most {progress.remaining_s:.0f} s more"
    )


def panel(progress: Progress, pool: rw.Pool) -> Group:
    """The same as a live panel, for a terminal."""
    status = pool.status()
    busy = sum(worker.state == "running" for worker in status.workers)
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim", justify="right")
    facts.add_column(min_width=46)
    facts.add_row("generation", f"{progress.generation} of at most {progress.generations}   {bar(progress)}")
    if progress.means:
        facts.add_row(
            "return",
            f"mean [bold]{progress.means[-1]:.0f}[/]   max {progress.maxima[-1]:.0f}   "
            f"eval [bold green]{progress.probes[-1]:.0f}[/]   (solved at {SOLVED_RETURN:.0f})",
        )
        curve = "".join("▁▂▃▄▅▆▇█"[min(int(mean / 500 * 8), 7)] for mean in progress.means[-60:])
        facts.add_row("", Text(curve, style="green"))
    deaths = f"[red]{status.num_deaths} died[/]" if status.num_deaths else "none died"
    facts.add_row("workers", f"{len(status.workers)} up   {busy} busy   {deaths}   {status.retried} tasks tried again")
    facts.add_row(
        "time",
        f"{progress.seconds:.0f} s   {progress.episodes / progress.seconds:.0f} episodes/s"
        f"   at most {progress.remaining_s:.0f} s more at this pace",
    )
    return Group(Text("OpenAI-ES on CartPole-v1", style="bold"), facts)


def bar(progress: Progress, width: int = 24) -> str:
    done = round(width * progress.pairs_done / progress.pairs)
    return f"[green]{'━' * done}[/][dim]{'━' * (width - done)}[/]"


def draw_learning_curve(progress: Progress, path: str) -> None:
    """Mean return of each generation with its spread, the unperturbed policy, and the moments of the kills."""
    generations = np.arange(1, len(progress.means) + 1)
    means, spreads = np.array(progress.means), np.array(progress.spreads)
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    low, high = np.clip(means - spreads, 0, 500), np.clip(means + spreads, 0, 500)
    axes.fill_between(generations, low, high, alpha=0.2, linewidth=0, label="population: one standard deviation")
    axes.plot(generations, means, marker=".", label="population: mean return")
    axes.plot(generations, progress.probes, linestyle="--", label=f"unperturbed policy: {PROBE_EPISODES} episodes")
    axes.axhline(SOLVED_RETURN, color="grey", linewidth=1, linestyle=":", label=f"solved: {SOLVED_RETURN:.0f}")
    if progress.kills:
        label = f"a worker was killed ({len(progress.kills)} times)"
        axes.plot(progress.kills, [8] * len(progress.kills), "x", color="crimson", clip_on=False, label=label)
    axes.set(xlabel="generation", ylabel="return of an episode", ylim=(0, 510), title="OpenAI-ES on CartPole-v1")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(loc="best", fontsize="small")
    figure.savefig(path, dpi=120)


# --- The program ------------------------------------------------------------------------------------------------------


def read_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Evolve a policy for CartPole over a Ropewalk pool.")
    parser.add_argument("--workers", type=int, help="size of the pool (default: the usable CPUs)")
    parser.add_argument("--seed", type=int, default=0, help="decides the whole run (default: 0)")
    parser.add_argument("--generations", type=int, default=100, help="give up after so many (default: 100)")
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
    progress = Progress(generations=arguments.generations, pairs=arguments.population // 2)
    with rw.Pool(arguments.workers, name="evolve") as pool:
        live = Live(get_renderable=lambda: panel(progress, pool), console=console, refresh_per_second=8)
        with Killer(pool, progress) if arguments.kill_workers else nullcontext():
            with live if console.is_terminal else nullcontext():
                show = None if console.is_terminal else lambda: print(line(progress, pool), flush=True)
                parameters, final = evolve(pool, arguments.seed, progress, show)
        seconds, status = progress.seconds, pool.status()
    if arguments.picture:
        draw_learning_curve(progress, arguments.picture)

    solved = final >= SOLVED_RETURN
    summary = {
        "solved": solved,
        "mean_return": final,
        "episodes_evaluated": FINAL_EPISODES,
        "generations": progress.generation,
        "episodes": progress.episodes,
        "seconds": round(seconds, 2),
        "workers": len(status.workers),
        "killed": len(progress.kills),
        "died": status.num_deaths,
        "retried": status.retried,
        "seed": arguments.seed,
        "digest": hashlib.sha256(parameters.tobytes()).hexdigest()[:12],
        "picture": arguments.picture or None,
    }
    verdict = "[bold green]solved[/]" if solved else "[bold red]not solved[/]"
    console.print(f"{verdict}: mean return {final:.1f} over {FINAL_EPISODES} episodes (solved at {SOLVED_RETURN:.0f})")
    console.print(
        f"time    {seconds:.1f} s, {progress.generation} generations, {progress.episodes} episodes,"
        f" {len(status.workers)} workers"
    )
    console.print(f"killed  {len(progress.kills)} workers; {status.retried} tasks were tried again")
    console.print(f"digest  {summary['digest']} (seed {arguments.seed}: the same for any workers, killed or not)")
    if arguments.picture:
        console.print(f"picture {os.path.abspath(arguments.picture)}", soft_wrap=True)
    if arguments.json:
        print(json.dumps(summary))
    return 0 if solved else 1


if __name__ == "__main__":
    sys.exit(main())
