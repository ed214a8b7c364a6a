"""`preset`: experiments whose settings are known to solve their environment.

`tests/rl/test_presets.py` trains each entry with three seeds, and says what the worst of them has to reach. Settings
that were only read somewhere are not listed.
"""

from __future__ import annotations

from dataclasses import replace

from ropewalk.rl.agents.a2c import A2C
from ropewalk.rl.agents.agent import Agent
from ropewalk.rl.agents.dqn import DQN
from ropewalk.rl.agents.impala import IMPALA
from ropewalk.rl.agents.ppo import PPO
from ropewalk.rl.agents.sac import SAC
from ropewalk.rl.agents.td3 import TD3
from ropewalk.rl.environments.gymnasium_env import Gymnasium
from ropewalk.rl.experiment import Experiment
from ropewalk.rl.learners.optimizers import TorchAdam
from ropewalk.rl.networks.mlp import MLP

_CARTPOLE, _ACROBOT = Gymnasium("CartPole-v1"), Gymnasium("Acrobot-v1")
_LANDER, _PENDULUM = Gymnasium("LunarLander-v3"), Gymnasium("Pendulum-v1")

_FEW_STEPS = PPO(  # the settings of rl-baselines3-zoo for CartPole
    unroll=32,
    epochs=20,
    minibatches=1,
    optimizer=TorchAdam(1e-3, eps=1e-5),
    discount=0.98,
    lambda_=0.8,
    entropy_cost=0.0,
)
_ACROBOT_PPO = PPO(
    unroll=256,
    envs=16,
    minibatches=32,
    optimizer=TorchAdam(1e-3, eps=1e-5),
    lambda_=0.94,
    entropy_cost=0.0,
    normalise_observations=True,
    normalise_rewards=True,
)
_LANDER_PPO = PPO(
    unroll=256,
    envs=4,
    minibatches=64,
    optimizer=TorchAdam(3e-4, eps=1e-5),
    discount=0.99,  # with 0.999 a landing now is worth hardly more than one later, and some policies hover
    lambda_=0.98,
    normalise_rewards=True,  # otherwise the loss of values outweighs that of the policy
)
# Learning rates fall where the score would go up and down to the end.
_CARTPOLE_A2C = A2C(optimizer=TorchAdam(2e-3), anneal_learning_rate=True, reward_scale=0.1)
_CARTPOLE_IMPALA = IMPALA(optimizer=TorchAdam(2e-3), anneal_learning_rate=True, reward_scale=0.1)
_PENDULUM_SAC = SAC(optimizer=TorchAdam(1e-3), learning_starts=200)
_PENDULUM_TD3 = TD3(optimizer=TorchAdam(1e-3), learning_starts=1_000)

_TANH, _RELU = MLP((64, 64)), MLP((64, 64), "relu")

PRESETS: tuple[Experiment, ...] = (
    Experiment(_FEW_STEPS, _CARTPOLE, _TANH, steps=80_000, groups=1),
    Experiment(_CARTPOLE_A2C, _CARTPOLE, _TANH, steps=150_000, groups=1),
    Experiment(_CARTPOLE_IMPALA, _CARTPOLE, _TANH, steps=250_000, groups=4),
    Experiment(DQN(), _CARTPOLE, steps=60_000, groups=1),
    Experiment(_ACROBOT_PPO, _ACROBOT, _TANH, steps=150_000, groups=1),
    Experiment(_LANDER_PPO, _LANDER, _TANH, steps=500_000, groups=4),
    Experiment(_PENDULUM_SAC, _PENDULUM, _RELU, steps=10_000, groups=1),
    Experiment(_PENDULUM_TD3, _PENDULUM, _RELU, steps=10_000, groups=1),
)
"""One for each pair of agent and environment."""


def preset(agent: type[Agent], environment: str, *, seed: int = 0) -> Experiment:
    """Return an experiment that is known to solve an environment; change it with `dataclasses.replace`.

    Example:
        >>> from ropewalk import rl
        >>> experiment = rl.preset(rl.PPO, "CartPole-v1", seed=1)
        >>> experiment.agent.unroll, experiment.steps
        (32, 80000)

    Args:
        agent: the method, such as `rl.PPO`.
        environment: id of an environment of Gymnasium, such as "CartPole-v1".
        seed: seed of the experiment.

    Raises:
        ValueError: there are no settings for this pair; the message lists those that there are.
    """
    known: list[str] = []
    for experiment in PRESETS:
        kind, name = type(experiment.agent), _id_of(experiment)
        if kind is agent and name == environment:
            return replace(experiment, seed=seed)
        known.append(f"rl.preset(rl.{kind.__name__}, {name!r})")
    raise ValueError(
        f"there are no tuned settings of {getattr(agent, '__name__', repr(agent))} for {environment!r}; there are "
        f"{', '.join(known)}. For a similar environment, begin with one of these and change it with dataclasses.replace"
    )


def _id_of(experiment: Experiment) -> str:
    assert isinstance(experiment.environment, Gymnasium)
    return experiment.environment.id


__all__ = ["PRESETS", "preset"]
