"""Several perceptrons of one shape, evaluated together: each layer is one batched matrix product.

With small layers, the two critics of SAC cost little more than one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

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


__all__ = ["StackedLinear", "stacked"]
