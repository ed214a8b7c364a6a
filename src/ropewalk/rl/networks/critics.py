"""`Critics`: two estimates Q(x, a) of the return of continuous actions, of which the lower counts (SAC, TD3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from ropewalk.rl.environments.spec import ArraySpec, EnvironmentSpec
from ropewalk.rl.networks.initialisation import VALUE_GAIN, orthogonal
from ropewalk.rl.networks.memoryless import without_memory
from ropewalk.rl.networks.mlp import MLPTorso
from ropewalk.rl.networks.torso import ObservationTensor, TorsoFactory, WrappedTorso

HEAD_UNITS = 256
"""Units of the hidden layer that joins the action to the features of observations that are not vectors."""
_NUM = 2
"""C, the number of estimates."""


class Critics(nn.Module):
    """Two estimates of Q(x, a), each with weights of its own.

    Where the observation is a vector of floats, the network sees it joined with the action. Otherwise (images,
    dictionaries) it sees the observation, and a hidden layer joins its features with the action. Perceptrons are
    evaluated together, see `stacked`: with small layers, the two critics of SAC cost little more than one.

    Args:
        network: makes the torso, once for each estimate.
        spec: observations and actions, which are continuous.
    """

    def __init__(self, network: TorsoFactory, spec: EnvironmentSpec) -> None:
        super().__init__()
        self._joins = is_vector(spec)
        make = _joined_critic if self._joins else _SplitCritic
        critics = [make(network, spec) for _ in range(_NUM)]
        together = stacked(critics) if self._joins else None
        self._is_stacked = together is not None
        self.body: nn.Module = nn.ModuleList(critics) if together is None else together

    def forward(self, observation: ObservationTensor, action: Tensor) -> Tensor:
        """Return estimates, shape (C, B).

        Args:
            observation: shape (B, ...).
            action: canonical, each entry from -1 to 1; shape (B, A).
        """
        if not self._joins:
            return torch.stack([critic(observation, action).squeeze(-1) for critic in self._critics()])
        joined = torch.cat([cast("Tensor", observation), action], dim=-1)
        if self._is_stacked:
            return self.body(joined.expand(_NUM, *joined.shape)).squeeze(-1)
        return torch.stack([critic(joined).squeeze(-1) for critic in self._critics()])

    def _critics(self) -> nn.ModuleList:
        return cast("nn.ModuleList", self.body)


def is_vector(spec: EnvironmentSpec) -> bool:
    """Whether observations are vectors of floats."""
    observation = spec.observation
    return isinstance(observation, ArraySpec) and len(observation.shape) == 1 and observation.dtype.startswith("float")


def _joined_critic(network: TorsoFactory, spec: EnvironmentSpec) -> nn.Sequential:
    observation = cast("ArraySpec", spec.observation)
    size = observation.shape[0] + spec.action_array.shape[0]
    try:
        torso = without_memory(network, EnvironmentSpec(ArraySpec((size,)), spec.action), "a critic of actions")
    except Exception as error:
        error.add_note(
            f"critics of SAC and TD3 read the observation joined with the action, {size} numbers: a network takes its "
            "size from the spec that it is made for, as spec.observation.shape[0]"
        )
        raise
    body: nn.Module = torso
    if isinstance(torso, MLPTorso):
        body = torso.body
    elif isinstance(torso, WrappedTorso):
        body = torso.module
    return nn.Sequential(body, orthogonal(nn.Linear(torso.features, 1), VALUE_GAIN))


class _SplitCritic(nn.Module):
    """Features of the observation, joined with the action by a hidden layer."""

    def __init__(self, network: TorsoFactory, spec: EnvironmentSpec) -> None:
        super().__init__()
        self.torso = without_memory(network, spec, "a critic of actions")
        size = self.torso.features + spec.action_array.shape[0]
        self.head = nn.Sequential(
            orthogonal(nn.Linear(size, HEAD_UNITS)), nn.ReLU(), orthogonal(nn.Linear(HEAD_UNITS, 1), VALUE_GAIN)
        )

    def forward(self, observation: Tensor | Mapping[str, Tensor], action: Tensor) -> Tensor:
        return self.head(torch.cat([self.torso(observation), action], dim=-1))


ELEMENTWISE = (nn.ReLU, nn.Tanh, nn.ELU, nn.SiLU, nn.GELU, nn.LeakyReLU)


class StackedLinear(nn.Module):
    """C linear layers: maps (C, B, in) to (C, B, out).

    Args:
        layers: layers of one shape, all with a bias.
    """

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        super().__init__()
        # Stored as the product takes them: a transposed view costs 20 % more in a product of this size.
        self.weight = nn.Parameter(torch.stack([layer.weight.detach().T for layer in layers]).contiguous())
        self.bias = nn.Parameter(torch.stack([layer.bias.detach().unsqueeze(0) for layer in layers]))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the outputs of each layer for its inputs."""
        return torch.baddbmm(self.bias, inputs, self.weight)


def stacked(modules: Sequence[nn.Module]) -> nn.Sequential | None:
    """Return one module that maps (C, B, in) to (C, B, out), as each of the C modules maps (B, in) to (B, out).

    Args:
        modules: C modules, made by the same function.

    Returns:
        None if they have other layers than linear ones with a bias and elementwise activations.
    """
    columns = list(zip(*(_layers(module) for module in modules), strict=True))
    layers: list[nn.Module] = []
    for column in columns:
        if all(_is_linear(layer) for layer in column):
            layers.append(StackedLinear(cast("Sequence[nn.Linear]", column)))
        elif type(column[0]) in ELEMENTWISE:
            layers.append(column[0])
        else:
            return None
    return nn.Sequential(*layers)


def _is_linear(layer: nn.Module) -> bool:
    return type(layer) is nn.Linear and "bias" in dict(layer.named_parameters())


def _layers(module: nn.Module) -> list[nn.Module]:
    """The layers of nested `nn.Sequential`s, in order."""
    if type(module) is nn.Sequential:
        return [layer for child in module for layer in _layers(child)]
    return [module]


__all__ = ["Critics", "is_vector"]
