"""`ActorCritic`: parameters of actions and values, from one torso or from two."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from ropewalk.rl.environments.spec import EnvironmentSpec
from ropewalk.rl.networks.distributions import ActionDistribution
from ropewalk.rl.networks.heads import ValueHead, policy_head
from ropewalk.rl.networks.torso import ObservationTensor, State, Torso, TorsoFactory, torso_of


class ActorCritic(nn.Module):
    """The network of PPO, A2C, IMPALA and APPO.

    Args:
        spec: observations and actions of the environment, by shape and type.
        network: makes the torso.
        distribution: distribution of the actions.
        separate: whether values have a torso of their own, made by a second call of `network`; its recurrent state has
            "value." before its names, as policies need only their own torso. None: unless the torso has memory, which
            the values would lack, since only the policy's state is stored with the experience.

    Attributes:
        torso: what the policy acts with, together with `policy`.
        policy: the head with the parameters of actions.
        value: the head with the values.
        value_torso: the torso of the values; None if they share one.
    """

    def __init__(
        self,
        spec: EnvironmentSpec,
        network: TorsoFactory,
        distribution: ActionDistribution,
        *,
        separate: bool | None = False,
    ) -> None:
        super().__init__()
        self.torso: Torso = torso_of(network, spec)
        self.policy: nn.Module = policy_head(self.torso.features, distribution)
        if separate is None:
            separate = not self.torso.initial_state(1)
        self.value_torso: Torso | None = torso_of(network, spec) if separate else None
        self.value: ValueHead = ValueHead(self.torso.features)

    def initial_state(self, batch: int) -> State:
        """Return the recurrent state at the first step of an episode, shape (batch, ...) each."""
        state = self.torso.initial_state(batch)
        if self.value_torso is not None:
            state |= {f"value.{name}": array for name, array in self.value_torso.initial_state(batch).items()}
        return state

    def unroll(
        self, observation: ObservationTensor, first: Tensor, state: Mapping[str, Tensor]
    ) -> tuple[Tensor, Tensor, State]:
        """Return parameters (T, B, P), values (T, B), and the state after the last step; see `Torso.unroll`.

        A state without the names of the values' own torso is completed with that torso's initial state.
        """
        own = {name: array for name, array in state.items() if not name.startswith("value.")}
        features, after = self.torso.unroll(observation, first, own)
        params = self.policy(features)
        if self.value_torso is not None:
            initial = self.value_torso.initial_state(first.shape[1])
            apart = {name: state.get(f"value.{name}", array) for name, array in initial.items()}
            features, apart = self.value_torso.unroll(observation, first, apart)
            after |= {f"value.{name}": array for name, array in apart.items()}
        return params, self.value(features), after


__all__ = ["ActorCritic"]
