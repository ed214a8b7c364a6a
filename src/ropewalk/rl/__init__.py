"""Reinforcement learning: agents that run in one process or on a cluster, replay, and central inference.

    from ropewalk import rl

    experiment = rl.Experiment(rl.IMPALA(unroll=20, envs=8), rl.Gymnasium("CartPole-v1"), steps=250_000)
    result = experiment.run()           # one process
    result = experiment.run(actors=4)   # a program, on any engine

Requires torch and gymnasium: `pip install 'ropewalk[rl]'`.
"""

from __future__ import annotations

from ropewalk.lazy_names import LazyNames

_lazy = LazyNames(globals(), {"numpy": "rl", "torch": "rl", "gymnasium": "rl", "safetensors": "rl"})

with _lazy:
    from ropewalk.rl.actors.collector import Collector as Collector
    from ropewalk.rl.actors.evaluator import evaluate_policy as evaluate_policy
    from ropewalk.rl.agents.agent import Agent as Agent
    from ropewalk.rl.blocks import Block as Block
    from ropewalk.rl.environments.environment import Steps as Steps
    from ropewalk.rl.environments.environment import VectorEnvironment as VectorEnvironment
    from ropewalk.rl.environments.gymnasium_env import Gymnasium as Gymnasium
    from ropewalk.rl.environments.isolated import Isolated as Isolated
    from ropewalk.rl.environments.spec import EnvironmentSpec as EnvironmentSpec
    from ropewalk.rl.environments.wrappers.fire_reset import FireReset as FireReset
    from ropewalk.rl.environments.wrappers.observation_action_reward import (
        ObservationActionReward as ObservationActionReward,
    )
    from ropewalk.rl.learners.learner import Learner as Learner
    from ropewalk.rl.policies.policy import Policy as Policy
    from ropewalk.rl.replay.batch import Batch as Batch
    from ropewalk.rl.replay.insertion import Insertion as Insertion
    from ropewalk.rl.replay.table import ReplayTable as ReplayTable
    from ropewalk.rl.variables import Variables as Variables
