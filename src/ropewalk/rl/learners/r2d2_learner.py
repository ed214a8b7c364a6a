"""`R2D2Learner`: one update of R2D2, on sequences with the recurrent state that the actor had at their first step.

rows of a sequence     0 . . . . burn_in . . . . . . . . . . . . last
online network         [no gradient][        with gradient         ]
target network         [           no gradient                     ]
loss                                [   steps that count      ]  last row: only bootstrapped from
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ropewalk.rl.environments.spec import Array
from ropewalk.rl.learners.gradient_step import GradientStep
from ropewalk.rl.learners.targets import TargetRule
from ropewalk.rl.learners.value_learner import ItemLosses, ValueLearner, of_actions
from ropewalk.rl.losses.value_rescaling import rescale, unscale
from ropewalk.rl.networks.action_values import ActionValueNetwork
from ropewalk.rl.networks.torso import State
from ropewalk.rl.schedules import LinearSchedule

_STATE = "state."


class R2D2Learner(ValueLearner):
    """Learns from sequences, as `SequenceAdder` makes them.

    The target of step t is h(sum of gamma^k r_{t+k}, k < n, + gamma^n h^-1(Q'(x_{t+n}, a*))), where Q' is the target
    network and a* the action that the online network values most. It ends at a termination, without bootstrap; at a
    truncation, and at the last row of the sequence, it bootstraps from there. Steps whose mask is False are in no loss,
    in no priority and in no return.

    A sequence costs half the sum of its squared TD errors, and has the priority eta max|error| + (1 - eta) mean|error|.

    Args:
        network: with memory or without.
        step: see `ValueLearner`, as the next three.
        target: the same.
        beta: the same.
        seed: the same.
        double: whether the online network chooses the next action; otherwise the target network.
        burn_in: rows that only bring the recurrent state up to date.
        n_step: n, steps before the bootstrap.
        discount: gamma, per step.
        rescaling: epsilon of h; None: values are returns themselves, and h is the identity.
        eta: share of the largest error in priorities.
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
        burn_in: int,
        n_step: int,
        discount: float,
        rescaling: float | None,
        eta: float,
    ) -> None:
        super().__init__(network, step, target=target, beta=beta, seed=seed)
        self._double, self._burn_in, self._n_step = double, burn_in, n_step
        self._discount, self._rescaling, self._eta = discount, rescaling, eta

    def item_losses(self, columns: Mapping[str, Array]) -> ItemLosses:
        """Return the loss of each sequence."""
        values, targets_values = self._values(columns)
        steps = {name: self._time_major(columns[name]) for name in ("action", "reward", "terminated", "mask")}
        trace = {name: tensor[self._burn_in :] for name, tensor in steps.items()}
        with torch.no_grad():
            choosing = values if self._double else targets_values
            bootstrap = self._unscaled(of_actions(targets_values, choosing.argmax(-1)))
            targets = self._scaled(
                n_step_targets(
                    trace["reward"],
                    self._discount * (~trace["terminated"]).float(),
                    trace["mask"],
                    bootstrap,
                    self._n_step,
                )
            )
        chosen = of_actions(values, trace["action"])
        counts = trace["mask"][:-1]
        errors = torch.where(counts, (targets - chosen)[:-1], 0.0)
        sizes = errors.detach().abs()
        mean = sizes.sum(0) / counts.sum(0).clamp(min=1)
        priorities = self._eta * sizes.amax(0) + (1 - self._eta) * mean
        value = (chosen.detach()[:-1] * counts).sum() / counts.sum().clamp(min=1)
        return ItemLosses(0.5 * errors.square().sum(0), priorities, {"value": value, "td_error": mean.mean()})

    def _values(self, columns: Mapping[str, Array]) -> tuple[Tensor, Tensor]:
        """Values [S, B, A] of the online and of the target network after the burn-in; S rows are left."""
        observation = self.observation(columns)
        first = self._time_major(columns["first"])
        start = {name.removeprefix(_STATE): self.tensor(columns[name]) for name in columns if name.startswith(_STATE)}
        burnt = slice(0, self._burn_in), slice(self._burn_in, None)
        early, late = (_rows(observation, rows) for rows in burnt)
        states: list[State] = [start, start]
        if self._burn_in:
            with torch.no_grad():
                states = [
                    network.unroll(early, first[: self._burn_in], start)[1]
                    for network in (self.network, self.target_network)
                ]
        values, _ = self.network.unroll(late, first[self._burn_in :], states[0])
        with torch.no_grad():
            target_values, _ = self.target_network.unroll(late, first[self._burn_in :], states[1])
        return values, target_values

    def _time_major(self, array: Array) -> Tensor:
        return self.tensor(array).transpose(0, 1)

    def _scaled(self, returns: Tensor) -> Tensor:
        return returns if self._rescaling is None else rescale(returns, self._rescaling)

    def _unscaled(self, values: Tensor) -> Tensor:
        return values if self._rescaling is None else unscale(values, self._rescaling)


def n_step_targets(reward: Tensor, discount: Tensor, mask: Tensor, bootstrap: Tensor, n_step: int) -> Tensor:
    """Return the n-step return of each step, bootstrapped where n steps, the episode or the sequence end.

    Args:
        reward: shape [S, B], of the step at each row.
        discount: the same; gamma, or 0 where the episode was terminated.
        mask: the same; False where the row has no step: it shows the last observation of a truncated episode.
        bootstrap: the same; value of the observation of each row.
        n_step: at least 1.

    Returns:
        Shape [S, B]; in the last row, and where the mask is False, it is the bootstrap itself.
    """
    # returns_k[t] is the return over at most k steps from row t; returns_0 = bootstrap.
    returns = bootstrap
    for _ in range(n_step):
        longer = reward[:-1] + discount[:-1] * returns[1:]
        returns = torch.cat([torch.where(mask[:-1], longer, bootstrap[:-1]), bootstrap[-1:]])
    return returns


def _rows(observation: Tensor | dict[str, Tensor], rows: slice) -> Tensor | dict[str, Tensor]:
    """Those rows of sequences [B, L, ...], time-major."""
    if isinstance(observation, dict):
        return {name: entry[:, rows].transpose(0, 1) for name, entry in observation.items()}
    return observation[:, rows].transpose(0, 1)


__all__ = ["R2D2Learner", "n_step_targets"]
