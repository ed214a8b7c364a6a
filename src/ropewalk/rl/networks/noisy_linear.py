"""`NoisyLinear`: a linear layer whose weights carry noise of learned size, which explores in place of epsilon.

Fortunato et al. 2018, "Noisy Networks for Exploration", with factorised noise (section 3, equations 9 to 11):

    y = (W + S * f(e_out) f(e_in)^T) x + b + s * f(e_out),   f(e) = sign(e) sqrt(|e|),   e standard normal

The layer draws nothing by itself: `set_noise` takes the generator, so that what a network computes follows from its
weights and from the generators it was given.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional


class NoisyLinear(nn.Module):
    """A linear layer with noise in its weights; without noise until `set_noise` is called.

    Args:
        in_features: size of the inputs.
        out_features: size of the outputs.
        sigma: the noise's initial size is sigma / sqrt(in_features), 0.5 in the paper.
    """

    def __init__(self, in_features: int, out_features: int, *, sigma: float = 0.5) -> None:
        super().__init__()
        bound, size = 1 / math.sqrt(in_features), sigma / math.sqrt(in_features)
        self.weight = nn.Parameter(torch.empty(out_features, in_features).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(out_features).uniform_(-bound, bound))
        self.weight_sigma = nn.Parameter(torch.full((out_features, in_features), size))
        self.bias_sigma = nn.Parameter(torch.full((out_features,), size))
        self.register_buffer("noise_in", torch.zeros(in_features), persistent=False)
        self.register_buffer("noise_out", torch.zeros(out_features), persistent=False)
        self.noise_in: torch.Tensor
        self.noise_out: torch.Tensor

    def set_noise(self, rng: np.random.Generator | None) -> None:
        """Draw new noise, which stays until the next call; None takes the noise away, for evaluators."""
        for noise in (self.noise_in, self.noise_out):
            if rng is None:
                noise.zero_()
            else:
                noise.copy_(torch.from_numpy(_scaled(rng.standard_normal(noise.shape[0]))))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Map inputs [..., in_features] to [..., out_features]; all rows share one noise."""
        weight = self.weight + self.weight_sigma * torch.outer(self.noise_out, self.noise_in)
        return functional.linear(inputs, weight, self.bias + self.bias_sigma * self.noise_out)


def set_noise(module: nn.Module, rng: np.random.Generator | None) -> None:
    """Call `set_noise` of every noisy layer within `module`, in the order of its modules."""
    for layer in module.modules():
        if isinstance(layer, NoisyLinear):
            layer.set_noise(rng)


def _scaled(noise: NDArray[np.float64]) -> NDArray[np.float32]:
    return (np.sign(noise) * np.sqrt(np.abs(noise))).astype(np.float32)


__all__ = ["NoisyLinear", "set_noise"]
