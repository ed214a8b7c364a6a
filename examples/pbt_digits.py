"""Train a population of digit classifiers, and plot the schedule of hyperparameters that it discovers.

    python examples/pbt_digits.py --population 16 --epochs 40

Jaderberg et al.: Population Based Training of Neural Networks, 2017 (https://arxiv.org/abs/1711.09846). Each member is
a small network with one hidden layer, trained by SGD with momentum on scikit-learn's 1797 digits. After each interval,
the worst members copy the best ones and change learning rate, momentum, weight decay and the noise on their inputs.

    train 1078 digits ─▶ weights       valid 359 ─▶ score, decides who copies whom       test 360 ─▶ told at the end

Weights stay with the workers, or in files of `--folder`: then a run that was killed goes on where its last checkpoint
was, if it is started again with the same arguments. Beside it, the same members train without copying (random search
with about the same work), and `--again` trains the discovered schedule again, with the same and with other shuffles.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

import ropewalk as rw
from ropewalk.population import (
    PBT,
    FailurePolicy,
    LogUniform,
    Outcome,
    PBTMember,
    PBTReplay,
    PBTSchedule,
    Trial,
    Uniform,
    evaluate,
)

HIDDEN = 48
BATCH = 32
SPACE = {
    "rate": LogUniform(1e-4, 1.0),
    "momentum": Uniform(0.0, 0.99),
    "decay": LogUniform(1e-6, 1e-1),
    "noise": Uniform(0.0, 1.0),
}


# --- What the workers run ---------------------------------------------------------------------------------------------


@cache  # once in each worker
def digits() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Images from 0 to 1 with their classes, in three parts that are the same everywhere."""
    bunch: Any = load_digits()
    images, classes = np.asarray(bunch.data), np.asarray(bunch.target)
    order = np.random.default_rng(0).permutation(len(images))
    parts = np.split(order, [1078, 1437])
    return {
        name: (images[part] / 16, classes[part]) for name, part in zip(("train", "valid", "test"), parts, strict=True)
    }


@dataclass
class Network:
    """The state of a member: weights, and their velocities."""

    weights: list[np.ndarray]
    velocities: list[np.ndarray]

    @staticmethod
    def new(rng: np.random.Generator) -> Network:
        w1 = rng.normal(0, 1 / 8, (64, HIDDEN))
        w2 = rng.normal(0, 1 / np.sqrt(HIDDEN), (HIDDEN, 10))
        weights = [w1, np.zeros(HIDDEN), w2, np.zeros(10)]
        return Network(weights, [np.zeros_like(each) for each in weights])

    def forward(self, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Hidden activations, and the probability of each class."""
        w1, b1, w2, b2 = self.weights
        hidden = np.maximum(images @ w1 + b1, 0)
        logits = hidden @ w2 + b2
        exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
        return hidden, exponentials / exponentials.sum(axis=1, keepdims=True)

    def step(self, images: np.ndarray, classes: np.ndarray, rate: float, momentum: float, decay: float) -> None:
        """One step of SGD with momentum on the cross-entropy of a batch."""
        hidden, errors = self.forward(images)
        errors[np.arange(len(classes)), classes] -= 1
        errors /= len(classes)
        back = (errors @ self.weights[2].T) * (hidden > 0)
        gradients = [images.T @ back, back.sum(axis=0), hidden.T @ errors, errors.sum(axis=0)]
        for weight, velocity, gradient in zip(self.weights, self.velocities, gradients, strict=True):
            velocity *= momentum
            velocity -= rate * (gradient + decay * weight)
            weight += velocity

    def measure(self, part: str) -> tuple[float, float]:
        """(cross-entropy, accuracy) on a part of the digits."""
        images, classes = digits()[part]
        _, probabilities = self.forward(images)
        right = probabilities[np.arange(len(classes)), classes]
        return float(-np.log(right + 1e-12).mean()), float((probabilities.argmax(axis=1) == classes).mean())


def train(member: PBTMember, trial: Trial) -> Outcome:
    """Train a member for an interval of epochs; the score is minus its cross-entropy on digits it never trains on."""
    network: Network = member.state or Network.new(trial.rng)
    images, classes = digits()["train"]
    chosen = member.hyperparameters
    for _ in range(member.interval):
        for batch in np.array_split(trial.rng.permutation(len(images)), len(images) // BATCH):
            noisy = images[batch] + chosen["noise"] * trial.rng.standard_normal((len(batch), 64))
            with np.errstate(all="ignore"):  # a rate that is too large ends as NaN, and so as the worst of all
                network.step(noisy, classes[batch], chosen["rate"], chosen["momentum"], chosen["decay"])
    member.state = network
    with np.errstate(all="ignore"):
        loss, accuracy = network.measure("valid")
    return Outcome(-loss, values={"accuracy": accuracy})


# --- The program ------------------------------------------------------------------------------------------------------


def describe(schedule: PBTSchedule) -> None:
    """The schedule, a line for each change."""
    for first, end, chosen in schedule:
        print(f"  epochs {first:3d} to {end:3d}  " + "  ".join(f"{name} {value:.3g}" for name, value in chosen.items()))


def read_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Discover a schedule of hyperparameters for a classifier of digits.")
    parser.add_argument("--workers", type=int, help="size of the pool (default: the usable CPUs)")
    parser.add_argument("--population", type=int, default=16, help="members (default: 16)")
    parser.add_argument("--epochs", type=int, default=30, help="of training for each member (default: 30)")
    parser.add_argument("--interval", type=int, default=2, help="epochs between two decisions (default: 2)")
    parser.add_argument("--synchronous", action="store_true", help="compare in rounds: the same on any workers")
    parser.add_argument("--seed", type=int, default=0, help="decides what is random (default: 0)")
    parser.add_argument("--folder", help="for weights and checkpoints; a run that was killed goes on from there")
    parser.add_argument("--again", action="store_true", help="train the discovered schedule again")
    parser.add_argument("--picture", default="pbt_schedule.png", help="where to draw the schedule, '' for none")
    parser.add_argument("--json", action="store_true", help="end with the summary as one line of JSON")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    arguments = read_arguments(argv)
    options = {
        "population": arguments.population,
        "interval": arguments.interval,
        "steps": arguments.epochs,
        "seed": arguments.seed,
    }
    mode, nan = "generation" if arguments.synchronous else "steady", FailurePolicy(nan="worst")
    folder = arguments.folder and os.path.join(arguments.folder, "members")
    checkpoint = arguments.folder and os.path.join(arguments.folder, "checkpoints")
    with rw.Pool(arguments.workers, name="pbt") as pool:
        algorithm = PBT(SPACE, synchronous=arguments.synchronous, folder=folder, **options)
        run = evaluate(algorithm, train, pool, mode=mode, failures=nan, checkpoint=checkpoint)
        _, accuracy = run.best.state.measure("test")  # the only weights that come to the launcher
        alone = evaluate(PBT(SPACE, burn_in=sys.maxsize, **options), train, pool, mode=mode, failures=nan)
        _, accuracy_alone = alone.best.state.measure("test")
        schedule = algorithm.schedule()
        losses = [schedule.stretches[-1].score, alone.algorithm.schedule().stretches[-1].score]
        print(f"population based training  accuracy {accuracy:.3f}, cross-entropy {-losses[0]:.4f} (valid)")
        print(f"the same without copying   accuracy {accuracy_alone:.3f}, cross-entropy {-losses[1]:.4f} (valid)")
        print(f"the schedule of the best member; {len(algorithm.mutations)} times a member copied another:")
        describe(schedule)
        same = None
        if arguments.again:
            again, other = (evaluate(PBTReplay(schedule, seed=seed), train, pool).best.state for seed in (None, 1))
            same = all(map(np.array_equal, again.weights, run.best.state.weights))
            print(f"trained again              accuracy {again.measure('test')[1]:.3f}, the same weights: {same}")
            print(f"with other shuffles        accuracy {other.measure('test')[1]:.3f}")
    if arguments.picture:
        from ropewalk.population.pictures.schedule import draw_schedule  # workers need no matplotlib

        draw_schedule(algorithm.history, schedule, arguments.picture)
        print(f"picture {os.path.abspath(arguments.picture)}")
    if arguments.json:
        summary = {"accuracy": accuracy, "accuracy_alone": accuracy_alone, "copies": len(algorithm.mutations)}
        print(json.dumps(summary | {"evaluations": run.evaluations, "seconds": round(run.seconds, 2), "same": same}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
