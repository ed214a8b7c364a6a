"""`DQNLearner`: one update of DQN, for the mean of returns or their distribution, with or without double learning."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ropewalk.rl.environments.spec import Array
from ropewalk.rl.learners.gradient_step import GradientStep
from ropewalk.rl.learners.value_learner import BatchLoss, ValueLearner, ValueSettings
from ropewalk.rl.losses.distributional import categorical_losses, categorical_projection, quantile_losses
from ropewalk.rl.losses.td import action_values, q_targets, td_loss, weighted_mean
from ropewalk.rl.networks.action_values import ActionValueNetwork
from ropewalk.rl.networks.value_distributions import CategoricalReturn, ScalarReturn


class DQNLearner(ValueLearner):
    """Learns from transitions, as `NStepAdder` makes them.

    The target of a transition is r + d Z(x', a*), where d is the transition's complete discount, Z what the target
    network says about the return, and a* the action that the online network (double) or the target network values most.

        kind of return      loss of an item                                  priority
        mean                Huber or half the square of the TD error         |TD error|
        categorical         cross entropy with the projected target          its divergence from the target
        quantiles           quantile Huber loss                              that loss

    An item with importance weight w counts w times. The priority of a categorical item is the cross-entropy less the
    target's entropy, which is the KL divergence of Rainbow.

    Args:
        network: without memory.
        step: steps of the network's parameters.
        settings: settings of the agent that `ValueLearner` needs.
        seed: seed of the noise of noisy layers.
        double: whether the online network chooses the next action.
        huber: errors up to this size count squared; None: all.
    """

    def __init__(
        self,
        network: ActionValueNetwork,
        step: GradientStep,
        settings: ValueSettings,
        seed: int,
        *,
        double: bool,
        huber: float | None,
    ) -> None:
        super().__init__(network, step, settings, seed)
        self._double, self._huber = double, huber

    def evaluate(self, columns: Mapping[str, Array], weights: Tensor | None) -> BatchLoss:
        """See `ValueLearner`."""
        returns, action = self.network.returns, self.tensor(columns["action"])
        reward, discount = self.tensor(columns["reward"]), self.tensor(columns["discount"])
        outputs = self.network(self.observation(columns))
        with torch.no_grad():
            following = self.observation(columns, "next_observation")
            target = self.target_network(following)
            online = self.network(following) if self._double else None
        if isinstance(returns, ScalarReturn):
            values = action_values(outputs, action)
            of_means = td_loss(values, q_targets(reward, discount, target, online), weights, delta=self._huber)
            return BatchLoss(of_means.loss, of_means.td_errors.abs(), {"value": values.detach().mean()})
        best = returns.mean(target if online is None else online).argmax(-1)
        rows = torch.arange(len(action), device=action.device)
        chosen, bootstrap = outputs[rows, action], target[rows, best]
        if isinstance(returns, CategoricalReturn):
            losses, priorities = _categorical(returns, chosen, bootstrap, reward, discount)
        else:
            targets = reward.unsqueeze(-1) + discount.unsqueeze(-1) * bootstrap
            losses = quantile_losses(chosen, targets, self._huber or 0.0)
            priorities = losses.detach()
        value = returns.mean(chosen.detach()).mean()
        return BatchLoss(weighted_mean(losses, weights), priorities, {"value": value})


def _categorical(
    returns: CategoricalReturn, logits: Tensor, next_logits: Tensor, reward: Tensor, discount: Tensor
) -> tuple[Tensor, Tensor]:
    """Cross-entropies of transitions, and their divergences, which are less by the entropies of the targets."""
    targets = categorical_projection(torch.softmax(next_logits, -1), reward, discount, returns.support(logits.device))
    losses = categorical_losses(logits, targets)
    entropies = -torch.xlogy(targets, targets).sum(-1)
    return losses, (losses.detach() - entropies).clamp(min=0)


__all__ = ["DQNLearner"]
