"""Agents of Stable-Baselines3 with the settings of ours, as far as both have them."""

from __future__ import annotations

from typing import Any

import torch
from rl_bench import Rate, Training, measured_here
from stable_baselines3 import A2C, DQN, PPO, SAC
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor


class SharedMLP(BaseFeaturesExtractor):  # type: ignore[misc]
    """64 x 64 with tanh, for policy and values together; the built-in networks are apart, which costs twice as much."""

    def __init__(self, observation_space: Any) -> None:
        super().__init__(observation_space, 64)
        size = observation_space.shape[0]
        self.body = torch.nn.Sequential(
            torch.nn.Linear(size, 64), torch.nn.Tanh(), torch.nn.Linear(64, 64), torch.nn.Tanh()
        )

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        return self.body(observations)


SHARED: dict[str, Any] = {"features_extractor_class": SharedMLP, "net_arch": []}


def trained(make: Any, warm_up: int, steps: int) -> Training:
    """The first `warm_up` of all steps are not measured."""

    def run() -> Rate:
        torch.set_num_threads(1)
        model = make()
        model.learn(warm_up)
        before = model.num_timesteps

        def learn() -> float:
            model.learn(steps - warm_up, reset_num_timesteps=False)
            return model.num_timesteps - before

        rate = measured_here(learn)
        model.get_env().close()
        return rate

    return run


def a2c(num_steps: int) -> Any:
    envs = make_vec_env("CartPole-v1", 16)
    return A2C("MlpPolicy", envs, n_steps=num_steps, ent_coef=0.01, policy_kwargs=SHARED, device="cpu")


def ppo() -> Any:
    envs = make_vec_env("CartPole-v1", 8)
    return PPO(
        "MlpPolicy",
        envs,
        n_steps=128,
        batch_size=256,
        n_epochs=4,
        learning_rate=2.5e-4,
        ent_coef=0.01,
        policy_kwargs=SHARED,
        device="cpu",
    )


def dqn() -> Any:
    envs = make_vec_env("CartPole-v1", 4)
    return DQN(
        "MlpPolicy",
        envs,
        learning_rate=1e-3,
        buffer_size=100_000,
        learning_starts=1_000,
        batch_size=64,
        train_freq=16,
        gradient_steps=16,
        target_update_interval=400,
        policy_kwargs={"net_arch": [64, 64]},
        device="cpu",
    )


def sac() -> Any:
    envs = make_vec_env("Pendulum-v1", 1)
    return SAC(
        "MlpPolicy",
        envs,
        learning_starts=1_000,
        train_freq=4,
        gradient_steps=4,
        policy_kwargs={"net_arch": [256, 256]},
        device="cpu",
    )
