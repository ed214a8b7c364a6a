"""Weights from a seed: orthogonal layers, and a context that keeps torch's generator as it was.

Saxe, McClelland, Ganguli: Exact solutions to the nonlinear dynamics of learning in deep linear neural networks, 2014
(https://arxiv.org/abs/1312.6120). Gains as in Huang et al.: The 37 Implementation Details of Proximal Policy
Optimization, 2022, details 2 and 3: sqrt 2 for hidden layers, 0.01 for policies, 1 for values; biases are 0, but for
networks of action values and normalised layers (`draw_zero_biases`).
"""

from __future__ import annotations

import math
from collections.abc import Generator
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import nn

HIDDEN_GAIN = math.sqrt(2.0)
POLICY_GAIN = 0.01
VALUE_GAIN = 1.0

Layer = TypeVar("Layer", nn.Linear, nn.Conv2d)


@contextmanager
def seeded(seed: int) -> Generator[None]:
    """Build modules in here: their weights follow from the seed, and torch's global generator is as before afterwards.

        with seeded(7):
            network = rl.MLP((64, 64))(spec)

    Modules are to be built on the CPU and moved afterwards: generators of other devices are neither used nor changed.
    """
    before = torch.get_rng_state()
    torch.set_rng_state(torch.Generator().manual_seed(seed).get_state())
    try:
        yield
    finally:
        torch.set_rng_state(before)


def orthogonal(layer: Layer, gain: float = HIDDEN_GAIN) -> Layer:
    """Initialise a layer in place, weights orthogonal and biases 0, and return it."""
    nn.init.orthogonal_(layer.weight, gain)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer


def draw_zero_biases(module: nn.Module) -> None:
    """Draw the biases of linear and convolutional layers that are all 0, as torch does: within 1 / sqrt(inputs).

    With ReLU and without biases, a network is proportional to the size of the observation in each direction, and so are
    the values of states that are further out than those that were learned from; values that are bootstrapped from them
    diverge more easily. With normalised layers and without biases, the size of the observation is lost.
    """
    for layer in module.modules():
        if not isinstance(layer, nn.Linear | nn.Conv2d) or layer.bias is None or layer.bias.is_meta:
            continue
        if not layer.bias.any():
            bound = 1 / math.sqrt(layer.weight[0].numel())
            nn.init.uniform_(layer.bias, -bound, bound)


__all__ = ["HIDDEN_GAIN", "POLICY_GAIN", "VALUE_GAIN", "draw_zero_biases", "orthogonal", "seeded"]
