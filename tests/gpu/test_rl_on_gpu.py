"""Learners of reinforcement learning on a GPU; environments and policies stay on the CPU."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ropewalk import rl

CARTPOLE, PENDULUM = rl.Gymnasium("CartPole-v1"), rl.Gymnasium("Pendulum-v1")
AGENTS = {
    "impala": (rl.IMPALA(unroll=8, envs=2, batch_size=2), CARTPOLE, rl.MLP((16,))),
    "impala-lstm": (rl.IMPALA(unroll=8, envs=2, batch_size=2), CARTPOLE, rl.LSTM(rl.MLP((8,)), 8)),
    "a2c": (rl.A2C(unroll=8, envs=2), CARTPOLE, rl.MLP((16,))),
    "ppo": (rl.PPO(unroll=32, envs=2), CARTPOLE, rl.MLP((16,))),
    "appo": (rl.APPO(unroll=8, envs=2, batch_size=2), CARTPOLE, rl.MLP((16,))),
    "dqn": (rl.DQN(learning_starts=64, batch_size=16), CARTPOLE, rl.MLP((16,))),
    "rainbow": (
        dataclasses.replace(rl.Rainbow(), learning_starts=64, batch_size=16, replay_size=1_000),
        CARTPOLE,
        rl.MLP((16,)),
    ),
    "r2d2": (
        rl.R2D2(unroll=8, envs=2, batch_size=4, burn_in=8, trace=8, period=8, learning_starts=16),
        CARTPOLE,
        rl.LSTM(rl.MLP((8,)), 8),
    ),
    "sac": (rl.SAC(learning_starts=64, batch_size=16), PENDULUM, rl.MLP((16,))),
    "td3": (rl.TD3(learning_starts=64, batch_size=16), PENDULUM, rl.MLP((16,))),
}


def experiment_of(name: str, steps: int = 400) -> rl.Experiment:
    agent, environment, network = AGENTS[name]
    return rl.Experiment(agent, environment, network, steps=steps, seed=1, device="cuda", digest_every=2)


@pytest.mark.parametrize("name", AGENTS)
def test_a_learner_on_a_gpu_repeats_itself_and_stays_close_to_the_cpu(name: str) -> None:
    experiment = experiment_of(name)
    first = experiment.run(log="silent")
    assert first.counters.updates > 2 and len(first.digests) > 1
    assert experiment.run(log="silent").digests == first.digests
    on_cpu = dataclasses.replace(experiment, device="cpu").run(log="silent")
    assert on_cpu.counters.updates == first.counters.updates or name != "ppo"
    for array in first.variables.arrays.values():
        assert isinstance(array, np.ndarray) and np.isfinite(array).all()
    assert all(np.isfinite(score) for score in first.evaluate(2))


@pytest.mark.parametrize("name", ["ppo", "sac", "r2d2"])
def test_a_run_on_a_gpu_goes_on_from_its_checkpoint_with_the_same_bits(name: str, tmp_path: Path) -> None:
    experiment = experiment_of(name)
    expected = experiment.run(log="silent")

    class Interrupted(BaseException):
        pass

    def log(label: str, row: Mapping[str, Any]) -> None:
        if row["updates"] >= expected.counters.updates // 2:
            raise Interrupted

    saved = dataclasses.replace(experiment, checkpoint=tmp_path / name, checkpoint_s=1e-9)
    with pytest.raises(Interrupted):
        saved.run(log=log)
    assert saved.run(log="silent").digests == expected.digests


@pytest.mark.parametrize("name", ["impala", "ppo"])
def test_lock_step_with_the_learner_on_a_gpu_has_the_bits_of_one_process(name: str) -> None:
    experiment = dataclasses.replace(experiment_of(name, steps=1_000), groups=2)
    assert experiment.run(2, mode="lockstep", log="silent").digests == experiment.run(log="silent").digests
