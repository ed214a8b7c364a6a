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
    from ropewalk.rl.adders.adder import Adder as Adder
    from ropewalk.rl.adders.episode import EpisodeAdder as EpisodeAdder
    from ropewalk.rl.adders.n_step import NStepAdder as NStepAdder
    from ropewalk.rl.adders.sequence import SequenceAdder as SequenceAdder
    from ropewalk.rl.adders.step_adder import StepAdder as StepAdder
    from ropewalk.rl.adders.unroll import UnrollAdder as UnrollAdder
    from ropewalk.rl.agents.a2c import A2C as A2C
    from ropewalk.rl.agents.agent import Agent as Agent
    from ropewalk.rl.agents.appo import APPO as APPO
    from ropewalk.rl.agents.bc import BC as BC
    from ropewalk.rl.agents.dqn import DQN as DQN
    from ropewalk.rl.agents.impala import IMPALA as IMPALA
    from ropewalk.rl.agents.ppo import PPO as PPO
    from ropewalk.rl.agents.r2d2 import R2D2 as R2D2
    from ropewalk.rl.agents.rainbow import Rainbow as Rainbow
    from ropewalk.rl.agents.sac import SAC as SAC
    from ropewalk.rl.agents.td3 import TD3 as TD3
    from ropewalk.rl.blocks import Block as Block
    from ropewalk.rl.environments.environment import Steps as Steps
    from ropewalk.rl.environments.environment import VectorEnvironment as VectorEnvironment
    from ropewalk.rl.environments.gymnasium_env import Gymnasium as Gymnasium
    from ropewalk.rl.environments.isolated import Isolated as Isolated
    from ropewalk.rl.environments.spec import ArraySpec as ArraySpec
    from ropewalk.rl.environments.spec import ContinuousAction as ContinuousAction
    from ropewalk.rl.environments.spec import DiscreteAction as DiscreteAction
    from ropewalk.rl.environments.spec import EnvironmentSpec as EnvironmentSpec
    from ropewalk.rl.environments.spec import MultiDiscreteAction as MultiDiscreteAction
    from ropewalk.rl.environments.vector import make_vector as make_vector
    from ropewalk.rl.environments.wrappers.fire_reset import FireReset as FireReset
    from ropewalk.rl.environments.wrappers.observation_action_reward import (
        ObservationActionReward as ObservationActionReward,
    )
    from ropewalk.rl.experiment import Evaluation as Evaluation
    from ropewalk.rl.experiment import Experiment as Experiment
    from ropewalk.rl.inference.remote_policy import RemotePolicy as RemotePolicy
    from ropewalk.rl.inference.server import InferenceServer as InferenceServer
    from ropewalk.rl.learners.learner import Learner as Learner
    from ropewalk.rl.learners.optimizers import TorchAdam as TorchAdam
    from ropewalk.rl.learners.optimizers import TorchRMSProp as TorchRMSProp
    from ropewalk.rl.learners.targets import Polyak as Polyak
    from ropewalk.rl.learners.targets import TargetCopy as TargetCopy
    from ropewalk.rl.logs.csv_file import CSVLogger as CSVLogger
    from ropewalk.rl.logs.memory import MemoryLogger as MemoryLogger
    from ropewalk.rl.logs.tensorboard import TensorBoardLogger as TensorBoardLogger
    from ropewalk.rl.logs.terminal import TerminalLogger as TerminalLogger
    from ropewalk.rl.networks.concatenate import Concatenate as Concatenate
    from ropewalk.rl.networks.impala_cnn import ImpalaCNN as ImpalaCNN
    from ropewalk.rl.networks.lstm import LSTM as LSTM
    from ropewalk.rl.networks.mlp import MLP as MLP
    from ropewalk.rl.networks.nature_cnn import NatureCNN as NatureCNN
    from ropewalk.rl.networks.normalisation import Normalised as Normalised
    from ropewalk.rl.networks.torso import Torso as Torso
    from ropewalk.rl.offline.dataset import OfflineDataset as OfflineDataset
    from ropewalk.rl.offline.dataset import RecordedEpisode as RecordedEpisode
    from ropewalk.rl.offline.minari_dataset import load_minari as load_minari
    from ropewalk.rl.offline.training import OfflineResult as OfflineResult
    from ropewalk.rl.offline.training import train_offline as train_offline
    from ropewalk.rl.policies.policy import Policy as Policy
    from ropewalk.rl.population_member import ExperimentMember as ExperimentMember
    from ropewalk.rl.presets import preset as preset
    from ropewalk.rl.replay.batch import Batch as Batch
    from ropewalk.rl.replay.inserter import Inserter as Inserter
    from ropewalk.rl.replay.insertion import Insertion as Insertion
    from ropewalk.rl.replay.limiters import MinSize as MinSize
    from ropewalk.rl.replay.limiters import QueueLimiter as QueueLimiter
    from ropewalk.rl.replay.limiters import SampleToInsertRatio as SampleToInsertRatio
    from ropewalk.rl.replay.limiters import StackLimiter as StackLimiter
    from ropewalk.rl.replay.sampler import Sampler as Sampler
    from ropewalk.rl.replay.selectors import Fifo as Fifo
    from ropewalk.rl.replay.selectors import Lifo as Lifo
    from ropewalk.rl.replay.selectors import MaxHeap as MaxHeap
    from ropewalk.rl.replay.selectors import MinHeap as MinHeap
    from ropewalk.rl.replay.selectors import Prioritized as Prioritized
    from ropewalk.rl.replay.selectors import Uniform as Uniform
    from ropewalk.rl.replay.service import Replay as Replay
    from ropewalk.rl.replay.service import ReplayServer as ReplayServer
    from ropewalk.rl.replay.shards import ShardedReplay as ShardedReplay
    from ropewalk.rl.replay.table import ReplayTable as ReplayTable
    from ropewalk.rl.replay.tables import ReplayTables as ReplayTables
    from ropewalk.rl.replay.writer import TrajectoryWriter as TrajectoryWriter
    from ropewalk.rl.result import EvaluationScores as EvaluationScores
    from ropewalk.rl.result import ExperimentResult as ExperimentResult
    from ropewalk.rl.saved_policies import load_policy as load_policy
    from ropewalk.rl.schedules import LinearSchedule as LinearSchedule
    from ropewalk.rl.variables import Variables as Variables
