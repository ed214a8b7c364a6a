"""`MLP`: fully connected layers on the flat observation."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from torch import Tensor, nn

from ropewalk.argument_kinds import check_kind
from ropewalk.near_names import instead_of
from ropewalk.rl.environments.spec import ArraySpec, EnvironmentSpec
from ropewalk.rl.networks.initialisation import draw_zero_biases, orthogonal
from ropewalk.rl.networks.preprocessing import as_vector, vector_size
from ropewalk.rl.networks.torso import FeedForwardTorso, ObservationTensor
from ropewalk.rl.other_names import refuse_unknown

ACTIVATIONS: Mapping[str, Callable[[], nn.Module]] = {
    "elu": nn.ELU,
    "gelu": nn.GELU,
    "leaky_relu": nn.LeakyReLU,
    "relu": nn.ReLU,
    "silu": nn.SiLU,
    "tanh": nn.Tanh,
}


def activation(name: str) -> nn.Module:
    """Make the activation function of that name.

    Raises:
        ValueError: there is none of that name.
    """
    if name in ACTIVATIONS:
        return ACTIVATIONS[name]()
    raise ValueError(f"there is no activation {name!r}{instead_of(name, ACTIVATIONS)}")


@dataclass(frozen=True)
class MLP:
    """Settings of a multilayer perceptron; called with a spec, it makes the torso.

    Observations of several names are joined; see `ropewalk.rl.networks.preprocessing`. Weights are orthogonal with gain
    sqrt 2, biases 0, or drawn where layers are normalised.

    Args:
        hidden: number of units of each layer; () passes the flat observation on.
        activation: after each layer: "tanh", "relu", "elu", "silu", "gelu", "leaky_relu".
        layer_norm: whether each layer is normalised before its activation.
    """

    hidden: tuple[int, ...] = (64, 64)
    activation: str = "tanh"
    layer_norm: bool = False

    def __new__(cls, *arguments: Any, **settings: Any) -> Self:
        """Refuse unknown settings, with the names of other libraries in ours."""
        refuse_unknown("rl.MLP", settings, (field.name for field in dataclasses.fields(cls)))
        return super().__new__(cls)

    def __post_init__(self) -> None:
        check_kind(
            "hidden", self.hidden, Sequence, "the number of units of each layer, such as (64, 64)", required=True
        )
        example = "the name of a function, such as 'relu'; for others make a network of your own"
        check_kind("activation", self.activation, str, example, required=True)
        object.__setattr__(self, "hidden", tuple(self.hidden))
        if any(units < 1 for units in self.hidden):
            raise ValueError(f"each layer of an MLP needs at least one unit, but hidden is {self.hidden}")
        activation(self.activation)

    def __call__(self, spec: EnvironmentSpec) -> MLPTorso:
        return MLPTorso(self, spec.observation)


class MLPTorso(FeedForwardTorso):
    """See `MLP`."""

    def __init__(self, settings: MLP, observation: ArraySpec | Mapping[str, ArraySpec]) -> None:
        super().__init__()
        self.observation = observation
        size = vector_size(observation)
        layers: list[nn.Module] = []
        for units in settings.hidden:
            layers.append(orthogonal(nn.Linear(size, units)))
            if settings.layer_norm:
                layers.append(nn.LayerNorm(units))
            layers.append(activation(settings.activation))
            size = units
        self.body: nn.Sequential = nn.Sequential(*layers)
        if settings.layer_norm:  # of W x alone, without a bias, it would forget the size of x
            draw_zero_biases(self.body)
        self.features = size

    def forward(self, observation: ObservationTensor) -> Tensor:
        """Return features, shape (B, F), of observations, shape (B, ...)."""
        return self.body(as_vector(observation, self.observation))


__all__ = ["ACTIVATIONS", "MLP", "MLPTorso", "activation"]
