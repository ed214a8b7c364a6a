"""`DQNLearner`: one update of DQN, for the mean of returns or their distribution, with or without double learning."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ropewalk.rl.environments.spec import Array
from ropewalk.rl.learners.gradient_step import GradientStep
from ropewalk.rl.learners.targets import TargetRule
from ropewalk.rl.learners.value_learner import ItemLosses, ValueLearner, of_actions
from ropewalk.rl.losses.distributional import categorical_cross_entropy, project_categorical, quantile_huber
from ropewalk.rl.losses.td import huber
from ropewalk.rl.networks.action_values import ActionValueNetwork
from ropewalk.rl.networks.value_distributions import CategoricalReturn, QuantileReturn, ScalarReturn
from ropewalk.rl.schedules import LinearSchedule


class DQNLearner(ValueLearner):
    """Learns from transitions, as `NStepAdder` makes them.

    The target of a transition is r + d Z(x', a*), where d is the transition's complete discount, Z what the target
    network says about the return, and a* the action that the online network (double) or the target network values most.

        kind of return      loss of an item                                  priority
        mean                Huber or half the square of the TD error         |TD error|
        categorical         cross entropy with the projected target          its divergence from the target
        quantiles           quantile Huber loss                              that loss

    Args:
        network: without memory.
        step: see `ValueLearner`, as the next three.
        target: the same.
        beta: the same.
        seed: the same.
        double: whether the online network chooses the next action.
        huber: errors up to this size count squared; None: all.
    """

    def __init__(
        self,
        network: ActionValueNetwork,
        step: GradientStep,
        *,
        target: TargetRule,
        beta: LinearSchedule | None,
        seed: int,
        double: bool,
        huber: float | None,
    ) -> None:
        super().__init__(network, step, target=target, beta=beta, seed=seed)
        self._double, self._huber = double, huber

    def item_losses(self, columns: Mapping[str, Array]) -> ItemLosses:
        """Return the loss of each transition."""
        outputs = of_actions(self.network(self.observation(columns)), self.tensor(columns["action"]))
        bootstrap = self._bootstrap(self.observation(columns, "next_observation"))
        reward, discount = self.tensor(columns["reward"]), self.tensor(columns["discount"])
        match self.network.returns:
            case ScalarReturn():
                return self._of_means(outputs, reward + discount * bootstrap)
            case CategoricalReturn() as returns:
                return self._of_categories(outputs, bootstrap, reward, discount, returns)
            case QuantileReturn():
                return self._of_quantiles(outputs, reward[:, None] + discount[:, None] * bootstrap)

    @torch.no_grad()
    def _bootstrap(self, observation: Tensor | dict[str, Tensor]) -> Tensor:
        """The target network's outputs for the best next actions, shape (B,) or (B, Z)."""
        outputs = self.target_network(observation)
        choosing = self.network(observation) if self._double else outputs
        return of_actions(outputs, self.network.returns.mean(choosing).argmax(-1))

    def _of_means(self, values: Tensor, targets: Tensor) -> ItemLosses:
        errors = targets - values
        return ItemLosses(huber(errors, self._huber), errors.detach().abs(), {"value": values.detach().mean()})

    def _of_categories(
        self, logits: Tensor, bootstrap: Tensor, reward: Tensor, discount: Tensor, returns: CategoricalReturn
    ) -> ItemLosses:
        support = returns.support(logits.device)
        atoms = reward[:, None] + discount[:, None] * support
        targets = project_categorical(atoms, torch.softmax(bootstrap, -1), support)
        losses = categorical_cross_entropy(logits, targets)
        entropy = torch.special.entr(targets).sum(-1)
        metrics = {"value": returns.mean(logits.detach()).mean()}
        return ItemLosses(losses, (losses.detach() - entropy).clamp(min=0), metrics)

    def _of_quantiles(self, quantiles: Tensor, targets: Tensor) -> ItemLosses:
        losses = quantile_huber(quantiles, targets, self._huber or 0.0)
        return ItemLosses(losses, losses.detach(), {"value": quantiles.detach().mean()})


__all__ = ["DQNLearner"]
