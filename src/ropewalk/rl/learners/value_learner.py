"""`ValueLearner`: what learners of action values share: weights of items, the step, the target network, the state.

An agent says what a batch costs (`evaluate`); one update is then

    weights of items ─▶ noise ─▶ evaluate ─▶ gradient step ─▶ target network ─▶ new priorities

The noise of noisy layers follows from the seed and the number of the update, so that there is no generator to save.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ropewalk.rl.environments.spec import Array
from ropewalk.rl.learners.gradient_step import GradientStep
from ropewalk.rl.learners.learner import Learner, Update
from ropewalk.rl.learners.targets import TargetRule, target_of
from ropewalk.rl.learners.transitions import as_tensor, observation_tensor
from ropewalk.rl.losses.priorities import importance_weights, staleness_weights
from ropewalk.rl.networks.action_values import ActionValueNetwork
from ropewalk.rl.networks.module_arrays import ModuleArrays
from ropewalk.rl.networks.noisy import NoisyLinear, draw_noise
from ropewalk.rl.networks.torso import ObservationTensor
from ropewalk.rl.replay.batch import Batch, SampleInfo
from ropewalk.rl.schedules import LinearSchedule
from ropewalk.rl.seeds import derived_seed
from ropewalk.rl.variables import version_lags

LEAST_PRIORITY = 1e-6
"""Is added to priorities, so that no item becomes impossible to draw (Schaul 2016, section 3.3)."""


@dataclass(frozen=True, slots=True)
class BatchLoss:
    """What a batch costs.

    Attributes:
        loss: scalar, with gradient.
        priorities: priorities of the items, shape (B,), at least 0, without gradient.
        metrics: scalars for the log, without gradient.
    """

    loss: Tensor
    priorities: Tensor
    metrics: Mapping[str, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueSettings:
    """Settings of `ValueLearner`; see the agents for what they mean.

    Attributes:
        target: how the target network follows.
        beta: the exponent of importance weights; None: all items weigh 1.
        anneal: whether the learning rate falls linearly, to 0 at the end of the experiment.
        staleness_exponent: see `staleness_weights`; 0: items of any age weigh the same.
    """

    target: TargetRule
    beta: LinearSchedule | None
    anneal: bool
    staleness_exponent: float


class ValueLearner(Learner):
    """Trains a network of action values against a target network.

    Args:
        network: is trained in place.
        step: steps of its parameters.
        settings: settings of the agent.
        seed: seed of the noise of noisy layers.

    Attributes:
        num_updates: updates that were done, those that were skipped included.
    """

    def __init__(
        self,
        network: ActionValueNetwork,
        step: GradientStep,
        settings: ValueSettings,
        seed: int,
    ) -> None:
        self.network: ActionValueNetwork = network
        self._published = ModuleArrays(self.network)
        self.target_network: ActionValueNetwork = target_of(network)
        self.num_updates: int = 0
        self._step, self._settings, self._seed = step, settings, seed
        self._noisy = any(isinstance(layer, NoisyLinear) for layer in network.modules())
        self._device = next(network.parameters()).device

    @abstractmethod
    def evaluate(self, columns: Mapping[str, Array], weights: Tensor | None) -> BatchLoss:
        """Return what a batch costs.

        Args:
            columns: columns of the batch.
            weights: weights of the items, shape (B,); None: all are 1.
        """

    def update(self, batch: Batch, progress: float) -> Update:
        """Learn from one batch; see `Learner.update`.

        Under the policy "skip", a batch without a finite loss and gradient leaves weights and priorities as they are.
        """
        if self._noisy:
            noise = torch.Generator().manual_seed(derived_seed(self._seed, "noise", self.num_updates))
            draw_noise(self.network, noise)
            draw_noise(self.target_network, noise)
        metrics: dict[str, float] = {}
        if self._settings.beta is not None:
            metrics["beta"] = self._settings.beta.at(progress)
        evaluated = self.evaluate(batch.columns, self._weights(batch.info, metrics.get("beta")))
        if self._settings.anneal:
            self._step.scale_learning_rate(1 - progress)
        skipped = self._step.num_skipped
        metrics["gradient_norm"] = self._step.take(evaluated.loss, batch.info)
        self.num_updates += 1
        self._settings.target.follow(self.target_network, self.network, self.num_updates)
        metrics["loss"] = evaluated.loss.item()
        metrics.update({name: scalar.item() for name, scalar in evaluated.metrics.items()})
        if self._step.num_skipped > skipped:
            return Update(metrics)
        return Update(metrics, evaluated.priorities.cpu().numpy().astype(np.float64) + LEAST_PRIORITY)

    def _weights(self, info: SampleInfo, beta: float | None) -> Tensor | None:
        """Return what the items of a batch count in its loss, shape (B,); None: all count 1."""
        weights: NDArray[np.float32] | None = None
        if beta is not None:
            weights = importance_weights(info.probability, info.table_size, beta)
        if self._settings.staleness_exponent:
            stale = staleness_weights(version_lags(self.version, info.version), self._settings.staleness_exponent)
            weights = stale if weights is None else weights * stale
        return None if weights is None else self.tensor(weights)

    def gradient_steps(self) -> Sequence[GradientStep]:
        """See `Learner`."""
        return [self._step]

    def variables(self) -> dict[str, Array]:
        """Return copies of the network's weights by name."""
        return self._published.copied()

    def state_dict(self) -> dict[str, Any]:
        """Return copies of both networks, the optimizer's state, and the counts."""
        return copy.deepcopy(
            {
                "network": self.network.state_dict(),
                "target": self.target_network.state_dict(),
                "step": self._step.state_dict(),
                "num_updates": self.num_updates,
                "version": self.version,
            }
        )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state, which is not changed by it."""
        self.network.load_state_dict(state["network"])
        self.target_network.load_state_dict(state["target"])
        self._step.load_state_dict(copy.deepcopy(state["step"]))
        self.num_updates = state["num_updates"]
        self.version: int = state["version"]

    def tensor(self, array: Array) -> Tensor:
        """Return an array on the learner's device; on the processor it may be the same memory."""
        return as_tensor(array, self._device)

    def observation(self, columns: Mapping[str, Array], prefix: str = "observation") -> ObservationTensor:
        """Return the observation in a batch's columns on the learner's device."""
        return observation_tensor(columns, prefix, self._device)


__all__ = ["LEAST_PRIORITY", "BatchLoss", "ValueLearner"]
