"""`Torso`: the part of a network that turns observations into features, with or without memory.

    observation [T, B, ...], first [T, B], state {name: [B, ...]}  ─▶  features [T, B, F], state {name: [B, ...]}

T is the number of steps, B the number of environments or sequences. Acting is an unroll with T = 1.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from ropewalk.rl.environments.spec import ArraySpec, EnvironmentSpec
from ropewalk.rl.networks.initialisation import seeded

ObservationTensor: TypeAlias = "Tensor | Mapping[str, Tensor]"
"""One tensor, or several by name, as `ropewalk.rl.environments.spec.Observation` is of arrays."""

State: TypeAlias = dict[str, Tensor]
"""Recurrent state by name, shape (B, ...) each; {} without memory."""

TorsoFactory: TypeAlias = Callable[[EnvironmentSpec], nn.Module]
"""Makes a torso, or a module that maps observations (B, ...) to features (B, F), from the environment's spec."""


class Torso(nn.Module):
    """Turns observations into features.

    Attributes:
        features: F, the number of features.
    """

    features: int

    def initial_state(self, batch: int) -> State:
        """Return the recurrent state at the first step of an episode; {} without memory."""
        del batch
        return {}

    @abstractmethod
    def unroll(
        self, observation: ObservationTensor, first: Tensor, state: Mapping[str, Tensor]
    ) -> tuple[Tensor, State]:
        """Return the features of T consecutive steps, and the recurrent state after them.

        Args:
            observation: shape (T, B, ...), with the dtype that the environment gave it.
            first: bool, shape (T, B); where True, the state is reset before that step.
            state: recurrent state before the first step; not changed.

        Returns:
            Features, float32, shape (T, B, F), and the state after step T - 1.
        """


class FeedForwardTorso(Torso):
    """A torso without memory: its `forward` maps observations (B, ...) to features (B, F)."""

    def unroll(
        self, observation: ObservationTensor, first: Tensor, state: Mapping[str, Tensor]
    ) -> tuple[Tensor, State]:
        """See `Torso`."""
        del state
        steps, batch = first.shape
        features = self(_map(observation, lambda array: array.flatten(0, 1)))
        return features.reshape(steps, batch, self.features), {}


class WrappedTorso(FeedForwardTorso):
    """A torso made of a plain module; see `as_torso`."""

    def __init__(self, module: nn.Module, features: int) -> None:
        super().__init__()
        self.module = module
        self.features = features

    def forward(self, observation: ObservationTensor) -> Tensor:
        """Return features, shape (B, F), of observations, shape (B, ...)."""
        return self.module(observation)

    def layers(self) -> list[nn.Module]:
        """The layers, one after the other."""
        return [self.module]


def torso_of(network: TorsoFactory, spec: EnvironmentSpec) -> Torso:
    """Make the torso of a network; see `as_torso`, which raises the same.

    Raises:
        AttributeError: the network takes the spec for a space of Gymnasium, as those of other libraries get it; a note
            says what the spec has.
    """
    try:
        module = network(spec)
    except AttributeError as error:
        if EnvironmentSpec.__name__ in str(error):
            error.add_note(
                "a network is made from the environment's spec: spec.observation.shape and .dtype are those of an "
                "observation (of a dictionary, spec.observation[name] is one), and spec.action says the actions"
            )
        raise
    return as_torso(module, spec)


def as_torso(module: nn.Module, spec: EnvironmentSpec) -> Torso:
    """Return the module if it is a torso, otherwise a torso that applies it to each observation.

    Args:
        module: maps observations, shape (B, ...), to features, shape (B, F). It is tried with two observations of
            zeros, in evaluation mode, to count the features.
        spec: the observations' shapes and dtypes.

    Raises:
        TypeError: it is not a module.
        ValueError: what it returns has another shape.
    """
    if not isinstance(module, nn.Module):
        raise TypeError(f"a network is a torch.nn.Module, not {type(module).__name__}; see rl.MLP for an example")
    if isinstance(module, Torso):
        return module
    was_training = module.training
    module.eval()
    tried = zeros_of(spec, 2)
    with torch.no_grad(), seeded(0):
        try:
            out: Any = module(tried)
        except Exception as error:
            error.add_note(
                f"{type(module).__name__} was tried with observations as the environment gives them, a batch of 2: "
                f"{_described(tried)}"
            )
            raise
    module.train(was_training)
    if not isinstance(out, Tensor) or out.ndim != 2 or out.shape[0] != 2:
        what = f"a tensor of shape {tuple(out.shape)}" if isinstance(out, Tensor) else f"a {type(out).__name__}"
        raise ValueError(
            f"{type(module).__name__} returned {what} for 2 observations; a network returns features of shape "
            "(batch, features), float32, and agents add their own heads to them. One with memory derives from rl.Torso"
        )
    return WrappedTorso(module, out.shape[1])


def _described(observation: ObservationTensor) -> str:
    if isinstance(observation, Tensor):
        return f"shape {tuple(observation.shape)}, {str(observation.dtype).removeprefix('torch.')}"
    return "; ".join(f"{name!r} of {_described(one)}" for name, one in observation.items())


def zeros_of(spec: EnvironmentSpec, *leading: int) -> ObservationTensor:
    """Return observations of zeros with these leading axes."""

    def zeros(array: ArraySpec) -> Tensor:
        return torch.zeros((*leading, *array.shape), dtype=getattr(torch, array.dtype))

    if isinstance(spec.observation, ArraySpec):
        return zeros(spec.observation)
    return {name: zeros(array) for name, array in spec.observation.items()}


def reset_state(state: Mapping[str, Tensor], initial: Mapping[str, Tensor], first: Tensor) -> State:
    """Return the state with the rows where `first` is True replaced by the initial ones.

    Args:
        state: shape (B, ...) each.
        initial: the same.
        first: bool, shape (B,).
    """
    return {
        name: torch.where(first.reshape(-1, *[1] * (array.ndim - 1)), initial[name], array)
        for name, array in state.items()
    }


def _map(observation: ObservationTensor, function: Callable[[Tensor], Tensor]) -> ObservationTensor:
    if isinstance(observation, Tensor):
        return function(observation)
    return {name: function(array) for name, array in observation.items()}


__all__ = [
    "FeedForwardTorso",
    "ObservationTensor",
    "State",
    "Torso",
    "TorsoFactory",
    "WrappedTorso",
    "as_torso",
    "reset_state",
    "torso_of",
    "zeros_of",
]
