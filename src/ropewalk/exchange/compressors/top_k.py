"""Top-k: the components of largest magnitude (Aji and Heafield, 1704.05021; Lin et al., DGC, 1712.01887, section 3).

Biased: use it inside of `ErrorFeedback`, which keeps the other components for later rounds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ropewalk.errors import ExchangeInvalid
from ropewalk.exchange.buckets import Layout
from ropewalk.exchange.compressors.components import add_said, say_some
from ropewalk.exchange.compressors.compressor import Round
from ropewalk.exchange.compressors.memoryless import Memoryless, value_seed
from ropewalk.exchange.kernels import Selection, select_above
from ropewalk.exchange.message import Message
from ropewalk.exchange.wire.values import value_codec

_SAMPLE = 1 << 16
"""Number of components that are sampled to guess the magnitude from which a component is among the largest."""


@dataclass(frozen=True)
class TopK(Memoryless):
    """Sends the largest components of each bucket, exactly as many as the density says, but never zeros.

    Aji and Heafield, 2017 (https://arxiv.org/abs/1704.05021); Lin et al., Deep Gradient Compression, 2018
    (https://arxiv.org/abs/1712.01887), section 3.

    Attributes:
        density: fraction of the components that is sent; at least one is.
        values: how values are encoded, such as "bfloat16" (see `wire.values`); "same" keeps the dtype.
    """

    name = "top_k"
    transparent = True

    density: float = 0.01
    values: str = "same"

    def __post_init__(self) -> None:
        if not 0 < self.density <= 1:
            raise ExchangeInvalid(f"density is a part of all components, above 0 and at most 1, not {self.density}")
        value_codec(self.values)

    def encode(self, gradient: Tensor, layout: Layout, round_: Round) -> Message:
        found = largest(gradient, max(1, round(self.density * layout.numel)))
        return say_some(layout, found, self.values, seed=value_seed(round_, layout))

    def decode(self, data: memoryview, layout: Layout, out: Tensor) -> None:
        add_said(data, layout, out)


def largest(vector: Tensor, num: int) -> Selection:
    """Find the `num` components of largest magnitude, in ascending order of position; of equal ones the first.

    A sample gives a magnitude that is almost certainly not too large, one pass over all collects the components above
    it, and only those few are sorted: 20 times faster than `torch.topk` for 1 % of 25 million.

    Args:
        vector: one-dimensional, of any float dtype.
        num: number of components.

    Returns:
        Positions and values of the components; fewer than `num` if fewer are not zero.
    """
    found = select_above(vector, _guess(vector, num))
    if len(found.indices) < num:
        found = select_above(vector, 0.0)
    excess = len(found.indices) - num
    if excess <= 0:
        return found
    sizes = np.abs(found.values.astype(np.float64))
    sizes[np.isnan(sizes)] = math.inf
    smallest = np.partition(sizes, excess)[excess]
    is_above = sizes > smallest
    equal = np.flatnonzero(sizes == smallest)[: num - np.count_nonzero(is_above)]
    is_above[equal] = True
    return Selection(found.indices[is_above], found.values[is_above])


def _guess(vector: Tensor, num: int) -> float:
    """Guess a magnitude that a few more than `num` components exceed; 0 where a sample would not be faster."""
    step = len(vector) // _SAMPLE
    if step < 2:
        return 0.0
    sample = vector[::step].abs().float()
    expected = num // step
    rank = min(len(sample), expected + 5 * math.isqrt(expected) + 5)
    return float(torch.kthvalue(sample, len(sample) - rank + 1).values.item())
