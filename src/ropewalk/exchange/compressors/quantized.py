"""QSGD: every component, rounded stochastically to a few levels (Alistarh et al., QSGD, 1610.02132, section 3.1).

Levels, signs and norms travel as `wire.values.Levels` encodes them: a norm for each group of components, and a fixed
number of bits for each component.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from torch import Tensor

from ropewalk.exchange.buckets import Layout
from ropewalk.exchange.compressors.components import add_said, say_all
from ropewalk.exchange.compressors.compressor import Compressor, Round
from ropewalk.exchange.compressors.memoryless import SILENCE, Memoryless, value_seed
from ropewalk.exchange.message import Message
from ropewalk.exchange.wire.values import Levels


@dataclass(frozen=True)
class Quantized(Memoryless):
    """Sends a sign and a level for each component.

    Alistarh et al., QSGD, 2017 (https://arxiv.org/abs/1610.02132), section 3.1.

    Attributes:
        levels: number of levels above zero; 2^b - 1 levels take b + 1 bits with their sign.
        group: number of components that share a norm; 0 for all of the bucket.
        norm: the norm, "max" or, as in the paper, "l2".
        stochastic: round stochastically, which is unbiased; under error feedback round to the nearest level, because
            only then the residual stays small with few levels.
        seed: seed of the rounding, together with step, rank and bucket.
    """

    name = "quantized"
    transparent = True

    levels: int = 7
    group: int = 512
    norm: Literal["max", "l2"] = "max"
    stochastic: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        self._codec()

    def encode(self, gradient: Tensor, layout: Layout, round_: Round) -> Message:
        if not gradient.any():
            return SILENCE
        return say_all(layout, gradient, self._codec(), seed=(self.seed, *value_seed(round_, layout)))

    def decode(self, data: memoryview, layout: Layout, out: Tensor) -> None:
        add_said(data, layout, out)

    def under_error_feedback(self) -> Compressor:
        return replace(self, stochastic=False)

    def _codec(self) -> Levels:
        return Levels(self.levels, self.group, self.norm, self.stochastic)
