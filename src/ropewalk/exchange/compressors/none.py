"""No compression: whole gradients, as Horovod (1802.05799) and DistributedDataParallel (2006.15704) send them."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ropewalk.errors import ExchangeInvalid
from ropewalk.exchange.buckets import Layout
from ropewalk.exchange.compressors.components import add_said, say_all
from ropewalk.exchange.compressors.compressor import Compressor, Round
from ropewalk.exchange.compressors.memoryless import SummableMemoryless
from ropewalk.exchange.message import Message


@dataclass(frozen=True)
class NoCompression(SummableMemoryless):
    """Sends every component unchanged. The summand is the gradient itself, not a copy."""

    name = "none"
    transparent = True

    def encode(self, gradient: Tensor, layout: Layout, round_: Round) -> Message:
        return say_all(layout, gradient)

    def decode(self, data: memoryview, layout: Layout, out: Tensor) -> None:
        add_said(data, layout, out)

    def summand(self, gradient: Tensor, layout: Layout, round_: Round) -> Tensor:
        return gradient

    def spread(self, total: Tensor, layout: Layout, round_: Round, out: Tensor) -> None:
        out.copy_(total)

    def under_error_feedback(self) -> Compressor:
        raise ExchangeInvalid("'none' leaves nothing out, so there is no error to feed back; use it without")
