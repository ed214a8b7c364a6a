"""Rescaled values: rewards of any size without clipping.

Pohlen et al.: Observe and Look Further, 2018 (https://arxiv.org/abs/1805.11593), proposition A.2:

    h(x) = sign(x) (sqrt(|x| + 1) - 1) + eps x
    h^-1(x) = sign(x) (((sqrt(1 + 4 eps (|x| + 1 + eps)) - 1) / (2 eps))^2 - 1)
"""

from __future__ import annotations

import torch
from torch import Tensor

EPSILON = 1e-3


def rescaled(values: Tensor, eps: float = EPSILON) -> Tensor:
    """Return h of each value; near 0 it is computed without subtracting nearly equal numbers."""
    size = values.abs()
    return torch.sign(values) * (size / ((size + 1).sqrt() + 1)) + eps * values


def unrescaled(values: Tensor, eps: float = EPSILON) -> Tensor:
    """Return h^-1 of each value.

    (sqrt(1 + y) - 1) / (2 eps) is computed as y / (2 eps (sqrt(1 + y) + 1)), which keeps float32's digits.
    """
    size = values.abs() + 1 + eps
    root = 2 * size / ((1 + 4 * eps * size).sqrt() + 1)
    return torch.sign(values) * (root - 1) * (root + 1)


__all__ = ["EPSILON", "rescaled", "unrescaled"]
