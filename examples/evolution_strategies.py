"""Evolution strategies in which only seeds and fitnesses travel.

    python examples/evolution_strategies.py

Salimans, Ho, Chen, Sidor, Sutskever: Evolution Strategies as a Scalable
Alternative to Reinforcement Learning, 2017, algorithm 2 and section 2.1.

    evolver ──── seeds of its share ───▶ evaluators    each draws the noise of a seed and tries + and -
            ◀─── fitnesses ─────────────
            ──── all seeds, fitnesses ─▶               each takes the same step with them

Every evaluator holds the parameters. All take the same steps in the same order,
so they stay equal bit by bit, and the result is the same for any number of them.
`evolve_cartpole.py` does this for a real task, over a pool.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

import ropewalk as rw

EVALUATORS, GENERATIONS, PAIRS, SEED = 3, 150, 32, 7
SIGMA, RATE, MOMENTUM = 0.1, 0.05, 0.9
HIDDEN = 12
SIZE = 3 * HIDDEN + 1

# The problem: a network with one hidden layer shall become the sine.
X = np.linspace(-np.pi, np.pi, 64)
Y = np.sin(X)

Fitnesses = list[tuple[float, float]]  # of +noise and -noise


def fitness(parameters: np.ndarray) -> float:
    """The negative mean squared error; 0 would be perfect, a flat line has -0.49."""
    w1, b1, w2 = parameters[:-1].reshape(3, HIDDEN)
    return -float(np.mean((np.tanh(np.outer(X, w1) + b1) @ w2 + parameters[-1] - Y) ** 2))


def noise(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(SIZE)


def centred_ranks(fitnesses: Fitnesses) -> np.ndarray:
    """Ranks from -0.5 to 0.5 in place of fitnesses, so that one lucky value does not decide a step."""
    values = np.array(fitnesses)
    return values.ravel().argsort().argsort().reshape(values.shape) / (values.size - 1) - 0.5


class Evaluator:
    """Has the parameters, and knows the noise that belongs to a seed."""

    def __init__(self, seed: int) -> None:
        self._parameters = noise(seed) * 0.5
        self._velocity = np.zeros(SIZE)

    @rw.method  # so that a type checker knows `.future` too; calling it needs no mark
    def evaluate(self, seeds: list[int]) -> Fitnesses:
        pairs = [(self._parameters + SIGMA * noise(seed), self._parameters - SIGMA * noise(seed)) for seed in seeds]
        return [(fitness(plus), fitness(minus)) for plus, minus in pairs]

    def step(self, seeds: list[int], fitnesses: Fitnesses) -> None:
        gradient = np.zeros(SIZE)
        for seed, (plus, minus) in zip(seeds, centred_ranks(fitnesses), strict=True):  # float sums depend on the order
            gradient += (plus - minus) * noise(seed)
        self._velocity = MOMENTUM * self._velocity + gradient / (2 * len(seeds) * SIGMA)
        self._parameters = self._parameters + RATE * self._velocity

    def outcome(self) -> tuple[float, str]:
        """The fitness of the parameters, and a digest of every bit of them."""
        return fitness(self._parameters), hashlib.sha256(self._parameters.tobytes()).hexdigest()[:12]


class Evolver:
    """Hands out seeds and gathers fitnesses; it has no parameters of its own."""

    def __init__(self, evaluators: rw.Client) -> None:
        self._evaluators = evaluators  # of all replicas; `evaluators[i]` is the client of one

    def evolve(self, generations: int, pairs: int) -> None:
        count = len(self._evaluators)
        for generation in range(generations):
            seeds = [SEED + 1 + generation * pairs + index for index in range(pairs)]
            shares = [self._evaluators[i].evaluate.future(seeds[i::count]) for i in range(count)]
            fitnesses: Fitnesses = [(0.0, 0.0)] * pairs
            for i, share in enumerate(shares):
                fitnesses[i::count] = share.result()
            self._evaluators.all.step(seeds, fitnesses)


def main(
    mode: rw.Mode | None = None, num_evaluators: int = EVALUATORS, generations: int = GENERATIONS
) -> dict[str, Any]:
    program = rw.Program("evolution-strategies")
    evaluators = program.add(rw.Service(Evaluator, SEED), name="evaluators", replicas=num_evaluators)
    program.add(rw.Service(Evolver, evaluators), name="evolver")

    with program.launch(mode=mode) as running:
        before, _ = running.client("evaluators")[0].outcome()
        running.client("evolver").evolve(generations, PAIRS)
        outcomes: set[tuple[float, str]] = set(running.client("evaluators").all.outcome())

    assert len(outcomes) == 1, f"the evaluators differ: {outcomes}"
    [(after, digest)] = outcomes
    print(f"{num_evaluators} evaluators, {generations} generations: fitness {before:.4f} -> {after:.4f}")
    print(f"digest of the parameters {digest}: the same at every evaluator, and for any number of them")
    return {"before": before, "after": after, "digest": digest}


if __name__ == "__main__":
    main()
