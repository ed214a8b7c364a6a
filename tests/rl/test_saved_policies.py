"""A saved policy acts as the trained one did, and its file is data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from ropewalk import rl
from ropewalk.errors import CheckpointCorrupt

CARTPOLE, PENDULUM = rl.Gymnasium("CartPole-v1"), rl.Gymnasium("Pendulum-v1")
SAC = rl.SAC(learning_starts=64, updates_per_step=0.1)


def trained(agent: rl.Agent, environment: Any = CARTPOLE, network: Any = None, steps: int = 200) -> rl.ExperimentResult:
    return rl.Experiment(agent, environment, network, steps=steps, seed=1).run(log="silent")


def actions(policy: rl.Policy, result: rl.ExperimentResult, *, greedy: bool = False) -> np.ndarray:
    """Of three steps, with what it remembers in between."""
    spec, rng = result.assembly.spec(), np.random.default_rng(0)
    assert isinstance(spec.observation, rl.ArraySpec)
    state, first, chosen = policy.initial_state(5), np.ones(5, np.bool_), []
    for _ in range(3):
        observation = rng.normal(size=(5, *spec.observation.shape)).astype(np.float32)
        choice = policy.act(observation, first, state, rng, greedy=greedy)
        state, first = choice.state, np.zeros(5, np.bool_)
        chosen.append(choice.action)
    return np.array(chosen)


@pytest.mark.parametrize(
    ("agent", "environment", "network"),
    [
        (rl.PPO(unroll=16, envs=2, normalise_observations=True), CARTPOLE, None),
        (rl.IMPALA(unroll=16, envs=2, batch_size=1), CARTPOLE, rl.LSTM(rl.MLP((8,)), 8)),
        (rl.DQN(learning_starts=50), CARTPOLE, rl.MLP((16,))),
        (SAC, PENDULUM, rl.MLP((16,))),
    ],
    ids=["PPO", "IMPALA", "DQN", "SAC"],
)
def test_a_saved_policy_acts_as_the_trained_one(
    agent: rl.Agent, environment: Any, network: Any, tmp_path: Path
) -> None:
    result = trained(agent, environment, network)
    result.save(tmp_path / "policy.safetensors")
    loaded = rl.load_policy(tmp_path / "policy.safetensors")
    assert loaded.spec == result.policy().spec and loaded.spec is not None
    for greedy in (False, True):
        np.testing.assert_array_equal(
            actions(loaded, result, greedy=greedy), actions(result.policy(), result, greedy=greedy)
        )


def make_network(spec: rl.EnvironmentSpec) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh())


def test_a_network_of_ones_own_is_given_again(tmp_path: Path) -> None:
    result = trained(rl.PPO(unroll=16, envs=2), network=make_network)
    path = tmp_path / "policy.safetensors"
    result.save(path)
    with pytest.raises(ValueError, match=r"the network .*make_network.*give it again: rl.load_policy\(.*network=..."):
        rl.load_policy(path)
    loaded = rl.load_policy(path, network=make_network)
    np.testing.assert_array_equal(actions(loaded, result), actions(result.policy(), result))
    with pytest.raises(ValueError, match=r"the weights in .* are not those of PPO.*MLP\(hidden=\(8, 8\)"):
        rl.load_policy(path, network=rl.MLP((8, 8)))


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, 0.1)


def test_an_optimizer_of_ones_own_is_left_out(tmp_path: Path) -> None:
    result = trained(rl.PPO(unroll=16, envs=2, optimizer=sgd))
    result.save(tmp_path / "policy.safetensors")
    loaded = rl.load_policy(tmp_path / "policy.safetensors")
    np.testing.assert_array_equal(actions(loaded, result), actions(result.policy(), result))


class MyPPO(rl.PPO):
    pass


def test_an_agent_of_ones_own_is_given_again(tmp_path: Path) -> None:
    result = trained(MyPPO(unroll=16, envs=2))
    result.save(tmp_path / "policy.safetensors")
    with pytest.raises(ValueError, match="the agent of the policy"):
        rl.load_policy(tmp_path / "policy.safetensors")
    loaded = rl.load_policy(tmp_path / "policy.safetensors", agent=MyPPO())
    np.testing.assert_array_equal(actions(loaded, result), actions(result.policy(), result))


def test_an_offline_result_is_saved_in_the_same_way(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    episode = rl.RecordedEpisode(rng.normal(size=(41, 4)), rng.integers(0, 2, 40), np.ones(40), terminated=True)
    spec = rl.EnvironmentSpec(rl.ArraySpec((4,)), rl.DiscreteAction(2))
    dataset = rl.OfflineDataset.from_episodes(spec, [episode])
    result = rl.train_offline(rl.BC(batch_size=16), dataset, rl.MLP((8,)), updates=5)
    result.save(tmp_path / "policy.safetensors")
    loaded = rl.load_policy(tmp_path / "policy.safetensors")
    seen = rng.normal(size=(6, 4)).astype(np.float32)
    first = np.ones(6, np.bool_)
    mine, its = (policy.act(seen, first, {}, rng, greedy=True) for policy in (result.policy(), loaded))
    np.testing.assert_array_equal(mine.action, its.action)


@pytest.mark.parametrize("damage", ["not a policy", "cut", "no header"])
def test_a_damaged_file_is_refused(damage: str, tmp_path: Path) -> None:
    path = tmp_path / "policy.safetensors"
    trained(rl.PPO(unroll=16, envs=2)).save(path)
    content = path.read_bytes()
    path.write_bytes(
        {"not a policy": b"weights", "cut": content[:-1], "no header": content.replace(b"ropewalk policy", b"x" * 15)}[
            damage
        ]
    )
    with pytest.raises(CheckpointCorrupt, match="holds no policy, or is damaged"):
        rl.load_policy(path)


def test_a_file_of_another_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "policy.safetensors"
    trained(rl.PPO(unroll=16, envs=2)).save(path)
    path.write_bytes(path.read_bytes().replace(b'{\\"format\\": 1', b'{\\"format\\": 9'))
    with pytest.raises(ValueError, match="format 9 of policies, and this version of Ropewalk reads format 1"):
        rl.load_policy(path)
