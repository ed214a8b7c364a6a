"""Noisy linear layers: exploration by noise in the weights, with a learned size.

Fortunato et al.: Noisy Networks for Exploration, 2018 (https://arxiv.org/abs/1706.10295), factorised noise, equations 9
to 11 and section 3.2.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional


class NoisyLinear(nn.Module):
    """A linear layer whose weights have noise in training mode, and none in evaluation mode.

    The noise stays as it is until `draw_noise`; at first it is 0. It is not a part of the state dictionary.

    Args:
        inputs: size of the input.
        outputs: size of the output.
        sigma: initial size of the noise, times 1 / sqrt(inputs).
    """

    input_noise: Tensor
    output_noise: Tensor

    def __init__(self, inputs: int, outputs: int, sigma: float = 0.5) -> None:
        super().__init__()
        bound = 1 / math.sqrt(inputs)
        self.weight = nn.Parameter(torch.empty(outputs, inputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(outputs).uniform_(-bound, bound))
        self.weight_sigma = nn.Parameter(torch.full((outputs, inputs), sigma * bound))
        self.bias_sigma = nn.Parameter(torch.full((outputs,), sigma * bound))
        self.register_buffer("input_noise", torch.zeros(inputs), persistent=False)
        self.register_buffer("output_noise", torch.zeros(outputs), persistent=False)

    def draw_noise(self, generator: torch.Generator) -> None:
        """Draw new noise; the generator is of the CPU, wherever the layer is."""
        for noise in (self.input_noise, self.output_noise):
            drawn = torch.randn(noise.shape, generator=generator)
            noise.copy_(drawn.sign() * drawn.abs().sqrt())

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the outputs, shape (..., outputs)."""
        if not self.training:
            return functional.linear(inputs, self.weight, self.bias)
        weight = self.weight + self.weight_sigma * torch.outer(self.output_noise, self.input_noise)
        return functional.linear(inputs, weight, self.bias + self.bias_sigma * self.output_noise)


def draw_noise(network: nn.Module, generator: torch.Generator) -> None:
    """Draw new noise for all noisy layers of a network, in the order of its modules."""
    for module in network.modules():
        if isinstance(module, NoisyLinear):
            module.draw_noise(generator)


__all__ = ["NoisyLinear", "draw_noise"]
