"""One policy answers many actors: calls that come at the same time become one call on stacked arrays.

    python examples/central_inference.py

Espeholt, Marinier, Stanczyk, Wang, Michalski: SEED RL, 2020 (https://arxiv.org/abs/1910.06591).

    actor 0 ── act(observation) ──┐  stacked                        ┌──▶ action 0
    actor 1 ── act(observation) ──┼──────────▶ one matrix product ──┼──▶ action 1
    actor 7 ── act(observation) ──┘                                 └──▶ action 7

The weights stay where the accelerator is; only observations and actions travel.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

import ropewalk as rw

ACTORS, STEPS = 8, 300
CARTS, HIDDEN = 3, 256


class Policy:
    """A network with one hidden layer, the same for the same seed."""

    def __init__(self, seed: int) -> None:
        generator = np.random.default_rng(seed)
        self._w1 = generator.standard_normal((2 * CARTS, HIDDEN))
        self._w2 = generator.standard_normal((HIDDEN, CARTS))
        self._sizes: list[int] = []

    # The caller gives one observation and gets one action; this sees a batch of both, in the same order. The wait is
    # about what a call takes: longer would make larger batches, but let every actor wait for the slowest.
    @rw.batched(max_size=ACTORS, max_wait_s=0.001)
    def act(self, observations: np.ndarray) -> np.ndarray:
        """Accelerations of -1 or 1, (batch, carts), for observations (batch, 2 * carts)."""
        self._sizes.append(len(observations))
        return np.where(np.tanh(observations @ self._w1) @ self._w2 > 0, 1.0, -1.0)

    def sizes(self) -> list[int]:
        """How many observations each batch had."""
        return self._sizes


class Carts:
    """A few carts on rails: the state is their positions and velocities, the action their accelerations."""

    def __init__(self, seed: int) -> None:
        self.state = np.random.default_rng(seed).standard_normal(2 * CARTS)

    def step(self, action: np.ndarray) -> None:
        position, velocity = np.split(self.state, 2)
        velocity = 0.99 * velocity + 0.1 * (action - position)  # a spring draws them back
        self.state = np.concatenate([position + 0.1 * velocity, velocity])


class Actor:
    """Steps an environment of its own, and asks for every action."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._carts = Carts(seed=rw.current_node().replica)

    def play(self, num_steps: int) -> np.ndarray:
        """Returns the last state."""
        for _ in range(num_steps):
            self._carts.step(self._policy.act(self._carts.state))
        return self._carts.state


def play_alone(actor: int, policy: Policy, num_steps: int) -> np.ndarray:
    """The same without nodes, one observation at a time."""
    carts = Carts(seed=actor)
    for _ in range(num_steps):
        carts.step(policy.act(carts.state[None])[0])
    return carts.state


def main(mode: rw.Mode | None = None) -> dict[str, Any]:
    program = rw.Program("central-inference")
    policy = program.add(rw.Service(Policy, seed=0), name="policy")
    program.add(rw.Service(Actor, policy), name="actors", replicas=ACTORS)

    with program.launch(mode=mode) as running:
        started = time.monotonic()
        states: list[np.ndarray] = running.client("actors").all.play(STEPS)
        seconds = time.monotonic() - started
        sizes: list[int] = running.client("policy").sizes()

    alone = [play_alone(actor, Policy(seed=0), STEPS) for actor in range(ACTORS)]
    assert np.allclose(states, alone), "an actor got an answer that was not for it"
    print(f"{sum(sizes)} observations of {ACTORS} actors in {len(sizes)} calls: mean batch {np.mean(sizes):.1f}")
    print(f"{sum(sizes) / seconds:.0f} actions/s; every actor ended where it ends with a policy of its own")
    return {"sizes": sizes, "mean_batch": float(np.mean(sizes)), "states": states}


if __name__ == "__main__":
    main()
