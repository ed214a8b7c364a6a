"""`Rainbow`: DQN with all of its improvements (Hessel et al. 2018, https://arxiv.org/abs/1710.02298)."""

from __future__ import annotations

from dataclasses import dataclass

from ropewalk.rl.agents.dqn import DQN, Distributional
from ropewalk.rl.learners.optimizers import OptimizerFactory, TorchAdam
from ropewalk.rl.learners.targets import TargetCopy, TargetRule
from ropewalk.rl.schedules import LinearSchedule


@dataclass(frozen=True, slots=True, kw_only=True)
class Rainbow(DQN):
    """`DQN` with the switches and numbers of Rainbow's table 1; the arguments are those of `DQN`.

    Hessel et al., Rainbow: Combining Improvements in Deep Reinforcement Learning, 2018
    (https://arxiv.org/abs/1710.02298).

    The paper counts frames, of which an agent's step has four: it learns after 80,000 frames, every 4 steps, from 32
    transitions, and copies the target network every 32,000 frames, which are 2,000 updates. Give it a network for
    images, such as `rl.NatureCNN()`.
    """

    unroll: int = 16
    batch_size: int | None = 32
    optimizer: OptimizerFactory = TorchAdam(6.25e-5, eps=1.5e-4)
    anneal_learning_rate: bool = False
    n_step: int = 3
    dueling: bool = True
    noisy: bool = True
    hidden: int = 512
    distributional: Distributional = "c51"
    prioritized: bool = True
    priority_exponent: float = 0.5
    target: TargetRule = TargetCopy(2_000)
    learning_starts: int = 20_000
    samples_per_insert: float = 8.0
    replay_size: int = 1_000_000
    epsilon: LinearSchedule = LinearSchedule(0.0, 0.0)


__all__ = ["Rainbow"]
