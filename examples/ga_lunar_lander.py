"""Land on the moon by a genetic algorithm, over a Ropewalk pool.

    python examples/ga_lunar_lander.py
    python examples/ga_lunar_lander.py --generations 100 --population 500 --checkpoint runs/lander

Such, Madhavan, Conti, Lehman, Stanley, Clune: Deep Neuroevolution, 2017 (https://arxiv.org/abs/1712.06567).

    launcher ── numbers of candidates ──▶ worker: parent + sigma · noise, 3 episodes
             ◀─ return, steps ──────────  (parents come once a generation and host, as chains of seeds)

The best of a generation play further episodes beside the next: a lucky landing is no good landing. All candidates of a
generation play the same moons (common random numbers): after 40 generations the best mean of the test episodes is 169,
and -65 with moons of their own. One seed gives one policy, for any number of workers. With `--checkpoint` a run that
was killed goes on from its last generation. The first command takes about 40 s on two cores, and lands: after 46
generations the mean return of 15 test episodes is 214. The second takes many times as long, for a steadier hand.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

import ropewalk as rw
from ropewalk.population import CheckpointConfig, Genetic, Outcome, RunResult, Trial, evaluate

OBSERVATIONS, HIDDEN, ACTIONS = 8, 16, 4
SIZE = HIDDEN * (OBSERVATIONS + 1) + ACTIONS * (HIDDEN + 1)
SOLVED_RETURN = 200  # as registered in Gymnasium: the mean over 100 episodes
EPISODES = 3  # of an evaluation: with 1, selection is mostly of luck
TEST_EVALUATIONS = 5
LANDINGS_DRAWN = 12
MAX_STEPS = 500  # landing takes about 250; who hovers is not waited for


@cache
def lander() -> Any:
    """The environment of this process; making it takes longer than a short episode."""
    return gymnasium.make("LunarLander-v3").unwrapped


def fly(parameters: np.ndarray, seed: int) -> tuple[float, list[tuple[float, float]]]:
    """Return and path of one episode under a network with one hidden layer."""
    w1 = parameters[: HIDDEN * (OBSERVATIONS + 1)].reshape(HIDDEN, OBSERVATIONS + 1)
    w2 = parameters[w1.size :].reshape(ACTIONS, HIDDEN + 1)
    environment = lander()
    observation, _ = environment.reset(seed=seed)
    total, path, over = 0.0, [], False
    while not over and len(path) < MAX_STEPS:
        hidden = np.tanh(w1[:, :-1] @ observation + w1[:, -1])
        observation, reward, over, _, _ = environment.step(int(np.argmax(w2[:, :-1] @ hidden + w2[:, -1])))
        total += float(reward)
        path.append((float(observation[0]), float(observation[1])))
    return total, path


def land(parameters: np.ndarray, trial: Trial) -> Outcome:
    """The fitness: the mean return over some moons, the same for all candidates of a generation."""
    flights = [fly(parameters, seed) for seed in trial.seeds(EPISODES, common=True)]
    return Outcome(float(np.mean([total for total, _ in flights])), steps=sum(len(path) for _, path in flights))


def draw(run: RunResult, path: str) -> None:
    """How the returns rose, and landings of the elite on moons that it has not seen."""
    columns = {name: np.array([row.get(name, np.nan) for row in run.table], float)
               for name in ("generation", "mean", "max", "elite", "test")}  # fmt: skip
    figure = Figure(figsize=(10, 4.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    generations = columns["generation"]
    left.plot(generations, columns["mean"], label="population: mean return")
    left.plot(generations, columns["max"], linewidth=0.8, color="grey", label="population: best return")
    left.plot(generations, columns["elite"], marker=".", label="elite: mean of its further episodes")
    left.plot(generations, columns["test"], linestyle="--", label=f"elite: {TEST_EVALUATIONS * EPISODES} test episodes")
    left.axhline(SOLVED_RETURN, color="grey", linewidth=1, linestyle=":", label=f"solved: {SOLVED_RETURN}")
    left.set(xlabel=f"generation, {run.steps:,} steps in all", ylabel="return of an episode", title="Deep GA")
    left.xaxis.set_major_locator(MaxNLocator(integer=True))
    left.legend(loc="lower right", fontsize="small")
    num_solved = 0
    for seed in range(LANDINGS_DRAWN):
        total, places = fly(run.best, 10_000 + seed)
        num_solved += total >= SOLVED_RETURN
        right.plot(*zip(*places, strict=True), linewidth=1, color="tab:green" if total >= SOLVED_RETURN else "tab:red")
    right.plot([-0.2, 0.2], [0, 0], color="black", linewidth=4, solid_capstyle="butt")  # the pad
    right.set(xlim=(-1, 1), ylim=(-0.1, 1.6), xlabel="to the right of the pad", ylabel="above the pad",
              title=f"{num_solved} of {LANDINGS_DRAWN} landings with a return of {SOLVED_RETURN} or more")  # fmt: skip
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def read_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Evolve a lander by a genetic algorithm over a Ropewalk pool.")
    parser.add_argument("--generations", type=int, default=60, help="at most (default: 60)")
    parser.add_argument("--population", type=int, default=60, help="children of each (default: 60)")
    parser.add_argument("--workers", type=int, help="size of the pool (default: the usable CPUs)")
    parser.add_argument("--seed", type=int, default=0, help="decides the whole run (default: 0)")
    parser.add_argument("--checkpoint", help="a folder to save the run in, and to go on from")
    parser.add_argument("--picture", default="lander.png", help="where to draw it, '' for none")
    parser.add_argument("--json", action="store_true", help="end with the summary as one line of JSON")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    arguments = read_arguments(argv)
    algorithm = Genetic(
        SIZE,
        population=arguments.population,
        parents=max(2, arguments.population // 10),
        sigma=0.2,
        initial_sigma=0.5,
        validated=2,
        episodes=2,
        seed=arguments.seed,
    )
    with rw.Pool(arguments.workers, name="land") as pool:
        run = evaluate(
            algorithm,
            land,
            pool,
            generations=arguments.generations,
            until={"test": SOLVED_RETURN},
            test=TEST_EVALUATIONS,
            checkpoint=CheckpointConfig(arguments.checkpoint) if arguments.checkpoint else None,
        )
    print(f"LunarLander-v3: {run}")
    genome = run.algorithm.genome
    if genome:
        print(f"genome of the elite: {len(genome.indices)} seeds for {SIZE} parameters")
    if arguments.picture:
        draw(run, arguments.picture)
        print(f"returns and landings: {arguments.picture}")
    if arguments.json:
        summary = {
            "test": run.best_test,
            "means": [round(row["mean"], 2) for row in run.table],
            "evaluations": run.evaluations,
            "steps": run.steps,
            "launcher_ms": round(run.launcher_ms, 4),
            "digest": hashlib.sha256(np.asarray(run.best).tobytes()).hexdigest()[:16],
        }
        print(json.dumps(summary))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
