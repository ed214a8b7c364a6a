"""Value-based agents learn: Rainbow, which has the parts of the others, by default; all of them in `soak`."""

from __future__ import annotations

import dataclasses
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from numpy.typing import NDArray

from ropewalk import rl
from ropewalk.rl.environments.vector import environment_spec
from ropewalk.rl.networks.module_arrays import ModuleArrays
from ropewalk.testing.recall import RecallTask


class Chain(gymnasium.Env[NDArray[np.float32], Any]):
    """Five states in a row: action 1 goes right, action 0 back to the start and ends up nowhere.

    Going right out of the last state ends the episode with reward 1. After 15 steps the episode is truncated.
    """

    observation_space = spaces.Box(0, 1, (5,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, seed: int) -> None:
        del seed
        self._state = 0
        self._time = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self._state = self._time = 0
        return self._shown(), {}

    def step(self, action: Any) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        self._time += 1
        self._state = self._state + 1 if action == 1 else 0
        is_over = self._state == 5
        return self._shown(), float(is_over), is_over, self._time >= 15 and not is_over, {}

    def _shown(self) -> NDArray[np.float32]:
        return np.eye(6, 5, dtype=np.float32)[self._state]


SMALL = rl.MLP((32,), "relu")
QUICK: dict[str, Any] = {
    "unroll": 8,
    "envs": 8,
    "batch_size": 32,
    "learning_starts": 200,
    "samples_per_insert": 4.0,
    "optimizer": rl.TorchAdam(3e-3),
    "target": rl.TargetCopy(25),
    "discount": 0.9,
}
C51: dict[str, Any] = {"distributional": "c51", "return_bounds": (0.0, 1.0), "atoms": 21}
EXPLORES = rl.LinearSchedule(1.0, 0.1, until=0.5)
AGENTS: dict[str, rl.DQN] = {
    "dqn": rl.DQN(**QUICK, n_step=1, epsilon=EXPLORES),
    "quantile": rl.DQN(
        **QUICK,
        n_step=1,
        distributional="quantile",
        quantiles=16,
        prioritized=True,
        epsilon=EXPLORES,
    ),
    # Returns of three steps are not corrected for exploration, which is why those with epsilon have one step.
    "rainbow with epsilon": rl.Rainbow(**QUICK, **C51, hidden=32, noisy=False, n_step=1, epsilon=EXPLORES),
    "rainbow": rl.Rainbow(**QUICK, **C51, hidden=32),
}


@pytest.mark.parametrize(
    "name", [name if name == "rainbow" else pytest.param(name, marks=pytest.mark.soak) for name in AGENTS]
)
def test_values_of_a_chain_are_learned(name: str) -> None:
    """Going right in state s is worth 0.9^(4-s), and going back 0.9^5."""
    agent = AGENTS[name]
    result = rl.Experiment(agent, Chain, SMALL, steps=4_000).run(log="silent")
    assert result.evaluate(10) == (1.0,) * 10
    network = agent.make_network(environment_spec(Chain), SMALL, seed=0).eval()
    ModuleArrays(network).load(result.variables.arrays)
    with torch.no_grad():
        values = network.returns.mean(network(torch.eye(5))).numpy()
    np.testing.assert_allclose(values[:, 1], 0.9 ** np.arange(4, -1, -1), atol=0.1)
    np.testing.assert_allclose(values[:, 0], 0.9**5, atol=0.15)


RECALL = rl.R2D2(
    unroll=11,
    envs=16,
    batch_size=32,
    optimizer=rl.TorchAdam(2e-3),
    discount=0.97,
    burn_in=11,
    trace=22,
    period=11,
    target=rl.TargetCopy(50),
    learning_starts=200,
    samples_per_insert=8.0,
    replay_size=5_000,
)


@pytest.mark.soak
def test_memory_recalls_what_a_network_without_memory_cannot() -> None:
    """5 CPU-s for R2D2, 2 for DQN; four seeds of R2D2 gave 1.0."""
    memory = rl.Experiment(RECALL, RecallTask(), rl.LSTM(SMALL, 32), steps=15_000).run(log="silent")
    assert np.mean(memory.evaluate(200)) >= 0.95
    feed_forward = rl.DQN(
        unroll=11,
        envs=16,
        samples_per_insert=4.0,
        discount=0.97,
        target=rl.TargetCopy(100),
        optimizer=rl.TorchAdam(1e-3),
    )
    without = rl.Experiment(feed_forward, RecallTask(), SMALL, steps=10_000).run(log="silent")
    assert np.mean(without.evaluate(200)) <= 0.62  # chance is 0.5, and the deviation of 200 episodes 0.035


def test_equal_seeds_give_equal_bits() -> None:
    """For each agent with its own network: with noise, with memory, with priorities."""
    recurrent = dataclasses.replace(RECALL, learning_starts=40)
    for agent, network, steps in ((AGENTS["rainbow"], SMALL, 400), (recurrent, rl.LSTM(SMALL, 8), 1_500)):
        runs = [
            rl.Experiment(agent, RecallTask(), network, steps=steps, seed=seed, digest_every=5).run(log="silent")
            for seed in (3, 3, 4)
        ]
        assert len(runs[0].digests) >= 3
        assert runs[0].digests == runs[1].digests
        assert runs[0].digests[0] != runs[2].digests[0]
