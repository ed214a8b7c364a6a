"""`OnPolicyLearner`: what the learners of IMPALA, A2C, PPO and APPO have in common.

A batch of blocks passes through it in this order; an agent's own part is one method, `learn`:

    blocks ─ drop those that are too old ─ scale rewards ─ to tensors ─▶ learn ─▶ metrics ─ observations' statistics

The statistics of observations take in a batch after it was learned from. So the learner evaluates the network on the
normalised observations that the actors evaluated it on, and the first ratio of probabilities is 1.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from ropewalk.pipeline.tracing.trees import map_tensors
from ropewalk.rl.environments.spec import Array
from ropewalk.rl.learners.gradient_step import GradientStep, NotFiniteRule
from ropewalk.rl.learners.learner import Learner, Update
from ropewalk.rl.learners.optimizers import OptimizerFactory
from ropewalk.rl.learners.reward_scaling import RewardScaling
from ropewalk.rl.learners.unrolls import Unrolls, unrolls_of
from ropewalk.rl.losses.actor_critic import ActorCriticLoss
from ropewalk.rl.losses.ppo import explained_variance
from ropewalk.rl.networks.actor_critic import ActorCritic
from ropewalk.rl.networks.distributions import ActionDistribution
from ropewalk.rl.networks.module_arrays import ModuleArrays
from ropewalk.rl.networks.normalisation import NormalisedTorso, observe
from ropewalk.rl.replay.batch import Batch, SampleInfo
from ropewalk.rl.variables import lag_metrics, version_lags


@dataclass(frozen=True, slots=True, kw_only=True)
class OnPolicySettings:
    """Settings of `OnPolicyLearner`; see the agents for what they mean."""

    optimizer: OptimizerFactory
    anneal: bool
    max_grad_norm: float | None
    not_finite: NotFiniteRule
    discount: float
    reward_scale: float
    reward_clip: float | None
    normalise_rewards: bool
    max_policy_lag: int | None


class OnPolicyLearner(Learner):
    """Learns from blocks, each once.

    Args:
        model: what is trained, on the device on which it is to be trained.
        distribution: what the parameters that the model gives mean.
        settings: settings of the agent.

    Attributes:
        num_updates: batches that were learned from.
        num_dropped: blocks that were dropped because they were older than `max_policy_lag`.
        progress: share of the experiment's steps that were done at the last update, 0 to 1, for schedules.
    """

    def __init__(self, model: ActorCritic, distribution: ActionDistribution, settings: OnPolicySettings) -> None:
        self.model: ActorCritic = model
        self._published = ModuleArrays(self.model)
        self.distribution: ActionDistribution = distribution
        self._settings = settings
        self._device = next(model.parameters()).device
        self._rewards = RewardScaling(settings.discount) if settings.normalise_rewards else None
        self.gradient_step: GradientStep = GradientStep(
            model.parameters(), settings.optimizer, max_norm=settings.max_grad_norm, not_finite=settings.not_finite
        )
        self.num_updates: int = 0
        self.num_dropped: int = 0
        self.progress: float = 0.0

    @abstractmethod
    def learn(self, unrolls: Unrolls, info: SampleInfo) -> dict[str, float]:
        """Improve the model by one batch, and return metrics.

        Args:
            unrolls: the blocks.
            info: facts of the blocks, for messages.
        """

    def actor_critic_step(
        self, loss: ActorCriticLoss, values: Tensor, targets: Tensor, mask: Tensor, info: SampleInfo
    ) -> dict[str, float]:
        """Take one gradient step of A2C or IMPALA, and return its metrics.

        Args:
            loss: loss of the batch.
            values: V of the steps' observations, shape (T, B).
            targets: targets of the values, shape (T, B).
            mask: which steps count, shape (T, B).
            info: facts of the blocks, for messages.
        """
        norm = self.gradient_step.take(loss.loss, info)
        return {
            "loss": float(loss.loss.detach()),
            "policy_loss": float(loss.policy.detach()),
            "value_loss": float(loss.value.detach()),
            "entropy": float(loss.entropy.detach()),
            "gradient_norm": norm,
            "explained_variance": float(explained_variance(values.detach(), targets, mask)),
        }

    def update(self, batch: Batch, progress: float) -> Update:
        """See `Learner`."""
        metrics = lag_metrics(self.version, batch.info.version)
        batch = self.usable(batch)
        metrics["num_dropped"] = float(self.num_dropped)
        if len(batch) == 0:
            return Update(metrics)
        unrolls = unrolls_of({**batch.columns, "reward": self._scaled(batch)}, self._device)
        self.progress = progress
        self.gradient_step.scale_learning_rate(1.0 - progress if self._settings.anneal else 1.0)
        metrics |= self.learn(unrolls, batch.info)
        metrics["num_skipped"] = float(self.gradient_step.num_skipped)
        # The last row begins the next block, and is taken in there.
        observe(self.model, map_tensors(lambda tensor: tensor[:-1], unrolls.observation), unrolls.mask)
        self.num_updates += 1
        return Update(metrics)

    def usable(self, batch: Batch) -> Batch:
        """Return the batch without the blocks that are too old; no block if none of them has a step that counts."""
        fresh = self._fresh(batch, version_lags(self.version, batch.info.version))
        # A block of one step in one environment may have only begun an episode, and there is no mean of no step.
        return fresh if fresh.columns["mask"].any() else fresh.take(slice(0))

    def gradient_steps(self) -> Sequence[GradientStep]:
        """See `Learner`."""
        normalises = [name for name, does in (("rewards", self._rewards), ("observations", self._moments())) if does]
        if normalises:
            raise ValueError(
                f"{type(self).__name__} normalises {' and '.join(normalises)} by statistics of what it has seen, which "
                "several learners would not have in common; scale them in the environment, or use learners=1"
            )
        return [self.gradient_step]

    def _moments(self) -> list[nn.Module]:
        return [module for module in self.model.modules() if isinstance(module, NormalisedTorso)]

    def _fresh(self, batch: Batch, lags: NDArray[np.int64]) -> Batch:
        """Return the batch without the blocks that are too old."""
        if self._settings.max_policy_lag is None or (lags <= self._settings.max_policy_lag).all():
            return batch
        kept = np.flatnonzero(lags <= self._settings.max_policy_lag)
        self.num_dropped += len(lags) - len(kept)
        return batch.take(kept)

    def _scaled(self, batch: Batch) -> Array:
        columns, settings = batch.columns, self._settings
        reward = columns["reward"].astype(np.float32)
        if self._rewards:
            done = np.logical_or(columns["terminated"], columns["truncated"])
            reward = self._rewards(reward, done, columns["mask"].astype(np.bool_), batch.info.run_ids)
        reward = np.multiply(reward, settings.reward_scale, dtype=np.float32)
        return reward if settings.reward_clip is None else np.clip(reward, -settings.reward_clip, settings.reward_clip)

    def variables(self) -> dict[str, Array]:
        """See `Learner`."""
        return self._published.copied()

    def state_dict(self) -> dict[str, Any]:
        """See `Learner`."""
        state: dict[str, Any] = {
            "model": self.model.state_dict(),
            "gradient_step": self.gradient_step.state_dict(),
            "num_updates": self.num_updates,
            "num_dropped": self.num_dropped,
            "version": self.version,
        }
        if self._rewards:
            state["rewards"] = self._rewards.state_dict()
        return copy.deepcopy(state)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See `Learner`."""
        state = copy.deepcopy(dict(state))
        self.model.load_state_dict(state["model"])
        self.gradient_step.load_state_dict(state["gradient_step"])
        self.num_updates, self.num_dropped = state["num_updates"], state["num_dropped"]
        self.version: int = state["version"]
        if self._rewards:
            self._rewards.load_state_dict(state["rewards"])


__all__ = ["OnPolicyLearner", "OnPolicySettings"]
