"""`ActorCriticsLearner`: what learners with an actor and several critics share (SAC, TD3)."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from ropewalk.rl.environments.spec import Array
from ropewalk.rl.learners.gradient_step import GradientStep
from ropewalk.rl.learners.learner import Learner, Update
from ropewalk.rl.learners.targets import target_of
from ropewalk.rl.learners.transitions import Transitions, transitions_of
from ropewalk.rl.losses.priorities import staleness_weights
from ropewalk.rl.networks.critics import Critics
from ropewalk.rl.networks.module_arrays import ModuleArrays
from ropewalk.rl.policies.action_scaling import ActionScaling
from ropewalk.rl.policies.canonical_policy import NUM_UPDATES
from ropewalk.rl.replay.batch import Batch, SampleInfo
from ropewalk.rl.variables import version_lags

ModuleType = TypeVar("ModuleType", bound=nn.Module)


class ActorCriticsLearner(Learner):
    """Owns an actor, critics, and target critics; a subclass says how an update trains them.

    Args:
        actor: the network that policies act with.
        critics: estimates of Q(x, a).
        scaling: scaling of the environment's actions.
        noise_seed: seeds the noise that updates draw.
        device: where the weights are.
        staleness_exponent: see `staleness_weights`; 0: items of any age weigh the same.

    Attributes:
        actor: the network that policies act with.
        critics: estimates of Q(x, a).
        fixed_critics: the same weights as `critics`, at all times, with no gradient to them: what the actor is trained
            by, so that its gradient costs no gradient of the critics' weights.
        target_critics: a slow copy of the critics.
        generator: generator of the noise.
        num_updates: updates that were done.
    """

    def __init__(
        self,
        actor: nn.Module,
        critics: Critics,
        scaling: ActionScaling,
        noise_seed: int,
        device: str,
        *,
        staleness_exponent: float,
    ) -> None:
        self.device: torch.device = torch.device(device)
        self.actor: nn.Module = actor.to(self.device)
        self._published = ModuleArrays(self.actor)
        self.critics: Critics = critics.to(self.device)
        self.fixed_critics: Critics = _view_of(self.critics)
        self.target_critics: Critics = target_of(self.critics)
        self.generator: torch.Generator = torch.Generator(self.device)
        self.generator.manual_seed(noise_seed)
        self.num_updates: int = 0
        self._scaling, self._staleness_exponent = scaling, staleness_exponent

    @abstractmethod
    def train(self, transitions: Transitions, info: SampleInfo) -> dict[str, float]:
        """Do an update, and return the metrics; `num_updates` is counted before.

        Raises:
            NotFinite: as in `Learner.update`.
        """

    @abstractmethod
    def modules(self) -> dict[str, nn.Module]:
        """Return all that has weights, by name."""

    @abstractmethod
    def steps(self) -> dict[str, GradientStep]:
        """Return all optimizers, by name."""

    def update(self, batch: Batch, progress: float) -> Update:
        """Learn from one batch; see `Learner.update`."""
        del progress
        self.num_updates += 1
        weights: NDArray[np.float32] | None = None
        if self._staleness_exponent:
            weights = staleness_weights(version_lags(self.version, batch.info.version), self._staleness_exponent)
        metrics = self.train(transitions_of(batch.columns, self._scaling, self.device, weights), batch.info)
        skipped = sum(step.num_skipped for step in self.steps().values())
        return Update(metrics | {"skipped": float(skipped)} if skipped else metrics)

    def gradient_steps(self) -> Sequence[GradientStep]:
        """See `Learner`."""
        return list(self.steps().values())

    def variables(self) -> dict[str, Array]:
        """Return copies of the weights of the actor, and the number of updates: policies explore until the first."""
        return {**self._published.copied(), NUM_UPDATES: np.array(self.num_updates)}

    def state_dict(self) -> dict[str, Any]:
        """Return weights, optimizers, the generator of noise, and the number of updates; copies."""
        state = {
            "modules": {name: module.state_dict() for name, module in self.modules().items()},
            "steps": {name: step.state_dict() for name, step in self.steps().items()},
            "generator": self.generator.get_state(),
            "num_updates": self.num_updates,
        }
        return copy.deepcopy(state)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state, which is not changed by later updates."""
        state = copy.deepcopy(dict(state))  # optimizers keep the tensors that they are given
        for name, module in self.modules().items():
            module.load_state_dict(state["modules"][name])
        for name, step in self.steps().items():
            step.load_state_dict(state["steps"][name])
        self.generator.set_state(state["generator"])
        self.num_updates = state["num_updates"]


def _view_of(module: ModuleType) -> ModuleType:
    """Return a module that shares the memory of all weights, and has no gradient to them."""
    view = target_of(module)
    for mine, theirs in zip(view.parameters(), module.parameters(), strict=True):
        mine.data = theirs.data
    assert not list(module.buffers()), "they would have to be shared too"
    return view


__all__ = ["ActorCriticsLearner"]
