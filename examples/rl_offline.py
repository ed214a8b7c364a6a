"""Learn to land from recorded flights alone: behaviour cloning from a Minari data set that is made here.

    pip install 'ropewalk[minari]' 'gymnasium[box2d]' matplotlib
    python examples/rl_offline.py                # half a minute

    an engineer's controller ─ flights ─▶ Minari data set ─▶ rl.load_minari ─▶ rl.train_offline(rl.BC()) ─▶ policy

The controller is the one that comes with LunarLander in Gymnasium. The clone never sees a reward; from a few flights it
becomes nearly as good as what it copies, and from one it does not.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import warnings
from pathlib import Path
from typing import Any

import gymnasium
import minari
import numpy as np
from gymnasium.envs.box2d.lunar_lander import heuristic
from matplotlib.figure import Figure
from minari.data_collector import EpisodeBuffer

from ropewalk import rl

LANDER = rl.Gymnasium("LunarLander-v3")


def fly(env: gymnasium.Env, number: int, seed: int) -> EpisodeBuffer:
    """One flight of the controller."""
    observation, _ = env.reset(seed=seed)
    flight: Any = EpisodeBuffer(id=number, seed=seed, observations=[observation], actions=[], infos={})
    over = False
    while not over:
        action = heuristic(env.unwrapped, observation)
        observation, reward, landed, out_of_time, _ = env.step(action)
        flight.observations.append(observation)
        flight.actions.append(action)
        flight.rewards.append(reward)
        flight.terminations.append(landed)
        flight.truncations.append(out_of_time)
        over = landed or out_of_time
    return flight


def record(name: str, flights: int, seed: int) -> None:
    """Let the controller fly, and save a data set; `minari.DataCollector` does the same, and needs jax."""
    env = gymnasium.make(LANDER.id)
    buffers = [fly(env, number, seed + number) for number in range(flights)]
    env.close()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Minari warns of an author and a description that are not given
        minari.create_dataset_from_buffers(name, buffers, env=LANDER.id)


def draw(path: str, result: rl.OfflineResult, scores: dict[str, np.ndarray]) -> None:
    figure = Figure(figsize=(8, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.plot([row["updates"] for row in result.timeline], [row["loss"] for row in result.timeline])
    left.set(xlabel="updates", ylabel="loss: -log probability of the recorded action", title="Cloning")
    left.set_ylim(bottom=0)
    right.boxplot(list(scores.values()))
    right.set_xticks(range(1, len(scores) + 1), list(scores))
    right.axhline(200, color="grey", linewidth=1, linestyle=":", label="solved: 200")
    right.set(ylabel="score of a flight", title=LANDER.id)
    right.legend(fontsize="small")
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def main(flights: int = 50, updates: int = 4_000, seed: int = 0, picture: str = "offline.png") -> dict[str, np.ndarray]:
    """Returns the scores of the recorded flights, of the clone, and of a policy that has learned nothing."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("MINARI_DATASETS_PATH", folder)
        name = f"lander/heuristic-{flights}x{seed}-v0"
        if name not in minari.list_local_datasets():
            record(name, flights, seed)
        dataset = rl.load_minari(name)
    result = rl.train_offline(rl.BC(), dataset, rl.MLP((128, 128), "relu"), updates=updates, seed=seed)
    untrained = rl.train_offline(rl.BC(), dataset, rl.MLP((128, 128), "relu"), updates=1, seed=seed)
    scores = {"recorded": dataset.scores()}
    for label, each in [("cloned", result), ("untrained", untrained)]:
        scores[label] = rl.evaluate_policy(each.policy(), LANDER, episodes=20, seed=seed + 1)
    print(f"{dataset.num_episodes} flights, {dataset.num_steps:,} steps, {updates:,} updates")
    for label, values in scores.items():
        print(f"{label:<10} {np.mean(values):6.0f} on average, the worst {np.min(values):.0f}")
    if picture:
        draw(picture, result, scores)
        print(f"drawn in {picture}")
    return scores


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Behaviour cloning from a Minari data set.")
    parser.add_argument("--flights", type=int, default=50, help="episodes to record")
    parser.add_argument("--updates", type=int, default=4_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--picture", default="offline.png", help="where to draw loss and scores, '' for none")
    main(**vars(parser.parse_args()))
