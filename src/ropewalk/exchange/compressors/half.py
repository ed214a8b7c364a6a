"""Half precision: every component in 16 bits (Horovod's fp16, 1802.05799; bfloat16: 1905.12322, section 3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ropewalk.errors import ExchangeInvalid
from ropewalk.exchange.buckets import Layout
from ropewalk.exchange.compressors.components import add_said, say_all
from ropewalk.exchange.compressors.compressor import Round
from ropewalk.exchange.compressors.memoryless import SummableMemoryless
from ropewalk.exchange.message import Message
from ropewalk.near_names import check_choice


@dataclass(frozen=True)
class Half(SummableMemoryless):
    """Sends every component, rounded to 16 bits.

    An all-reduce also adds in this dtype; a server or an all-gather adds in float32.

    Attributes:
        dtype: "bfloat16" has the range of float32 and 8 bits of precision; "float16" has 11 bits, and parts of
            the mean above 65504 become infinite.
    """

    name = "half"
    transparent = True

    dtype: Literal["bfloat16", "float16"] = "bfloat16"

    def __post_init__(self) -> None:
        check_choice("dtype", self.dtype, ("bfloat16", "float16"), ExchangeInvalid)

    def encode(self, gradient: Tensor, layout: Layout, round_: Round) -> Message:
        return say_all(layout, gradient, self.dtype)

    def decode(self, data: memoryview, layout: Layout, out: Tensor) -> None:
        add_said(data, layout, out)

    def summand(self, gradient: Tensor, layout: Layout, round_: Round) -> Tensor:
        return gradient.to(getattr(torch, self.dtype))

    def spread(self, total: Tensor, layout: Layout, round_: Round, out: Tensor) -> None:
        out.copy_(total)
