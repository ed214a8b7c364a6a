"""`R2D2Learner`: one update of R2D2, on sequences with the recurrent state that the actor had at their first step.

Recorded data has no such state: its sequences begin with that of an episode's first step, the zero start state of the
paper's section 3, and the burn-in brings it up to date.

rows of a sequence     0 . . . . burn_in . . . . . . . . . . . . last
online network         [no gradient][        with gradient         ]
target network         [           no gradient                     ]
loss                                [   steps that count      ]  last row: only bootstrapped from
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ropewalk.pipeline.tracing.trees import map_tensors
from ropewalk.rl.environments.spec import Array
from ropewalk.rl.learners.gradient_step import GradientStep
from ropewalk.rl.learners.value_learner import BatchLoss, ValueLearner, ValueSettings
from ropewalk.rl.losses.priorities import sequence_priorities
from ropewalk.rl.losses.td import action_values, sequence_td_loss
from ropewalk.rl.networks.action_values import ActionValueNetwork
from ropewalk.rl.networks.torso import ObservationTensor, State

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
        step: steps of the network's parameters.
        settings: settings of the agent that `ValueLearner` needs.
        seed: seed of the noise of noisy layers.
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
        settings: ValueSettings,
        seed: int,
        *,
        burn_in: int,
        n_step: int,
        discount: float,
        rescaling: float | None,
        eta: float,
    ) -> None:
        super().__init__(network, step, settings, seed)
        self._burn_in, self._n_step = burn_in, n_step
        self._discount, self._rescaling, self._eta = discount, rescaling, eta

    def evaluate(self, columns: Mapping[str, Array], weights: Tensor | None) -> BatchLoss:
        """See `ValueLearner`."""
        values, target_values = self._values(columns)
        names = ("action", "reward", "terminated", "mask")
        steps = {name: self._time_major(columns[name])[self._burn_in :] for name in names}
        result = sequence_td_loss(
            q=values,
            target_q=target_values,
            **steps,
            discount=self._discount,
            n=self._n_step,
            weights=weights,
            eps=self._rescaling,
        )
        mask = steps["mask"][:-1]
        taken = action_values(values.detach(), steps["action"])[:-1]
        value = torch.where(mask, taken, 0.0).sum() / mask.sum().clamp(min=1)
        return BatchLoss(result.loss, sequence_priorities(result.td_errors, mask, self._eta), {"value": value})

    def _values(self, columns: Mapping[str, Array]) -> tuple[Tensor, Tensor]:
        """Values [S, B, A] of the online and of the target network after the burn-in; S rows are left."""
        observation = self.observation(columns)
        first = self._time_major(columns["first"])
        stored = {name.removeprefix(_STATE): self.tensor(columns[name]) for name in columns if name.startswith(_STATE)}
        start = stored or self.network.initial_state(first.shape[1])
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


def _rows(observation: ObservationTensor, rows: slice) -> ObservationTensor:
    """Those rows of sequences [B, L, ...], time-major."""
    return map_tensors(lambda tensor: tensor[:, rows].transpose(0, 1), observation)


__all__ = ["R2D2Learner"]
