"""Base classes of compressors without state: each message depends on the gradient and the round alone.

    class Mine(Memoryless):             encode: gradient ─▶ Message       decode: adds the components of a message
    class Mine(SummableMemoryless):     and summand: gradient ─▶ tensor   spread: the sum of them ─▶ gradient

Most compressors derive from one of these and leave the two phases to the encoder and decoder below.
"""

from __future__ import annotations

import abc
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ropewalk.exchange.buckets import Layout
from ropewalk.exchange.compressors.compressor import Compressor, Decoder, Encoder, Round, SummableEncoder
from ropewalk.exchange.compressors.decoding import decode_all
from ropewalk.exchange.compressors.pending import PendingState
from ropewalk.exchange.message import Message

SILENCE = Message(np.empty(0, np.uint8), {})
"""The message of a member that has nothing to send."""


def state_dtype(layout: Layout) -> torch.dtype:
    """Return the dtype of a bucket's residuals, memories and sums: float32, or float64 where gradients are float64."""
    return torch.promote_types(layout.dtype, torch.float32)


def value_seed(round_: Round, layout: Layout) -> tuple[int, ...]:
    """Return the seed for the rounding of a message's values: different for each round, member and bucket."""
    return round_.step, round_.rank, zlib.crc32(layout.names[0].encode())


def is_silent(gradient: Tensor, round_: Round) -> bool:
    """Whether a member sends nothing: it does not participate, or has no samples and no residual, or no components."""
    return not round_.participates or not gradient.numel() or (round_.samples == 0 and not gradient.any())


class Memoryless(Compressor):
    """A compressor whose messages do not depend on earlier rounds."""

    @abc.abstractmethod
    def encode(self, gradient: Tensor, layout: Layout, round_: Round) -> Message:
        """Make the message for a flat gradient, which is not changed."""

    @abc.abstractmethod
    def decode(self, data: memoryview, layout: Layout, out: Tensor) -> None:
        """Add the components of a message that is not empty to `out`, a flat tensor of `state_dtype`.

        Args:
            data: bytes of the message.
            layout: layout of the bucket.
            out: flat; changed in place.

        Raises:
            MessageCorrupt: `encode` cannot have made it.
        """

    def encoder(self, layout: Layout) -> Encoder:
        return MemorylessEncoder(self, layout)

    def decoder(self, layout: Layout) -> Decoder:
        return MemorylessDecoder(layout, self.decode)


class SummableMemoryless(Memoryless):
    """A compressor without state whose payloads can be summed."""

    summable = True

    @abc.abstractmethod
    def summand(self, gradient: Tensor, layout: Layout, round_: Round) -> Tensor:
        """Return the tensor that members sum up; it may be the gradient itself."""

    @abc.abstractmethod
    def spread(self, total: Tensor, layout: Layout, round_: Round, out: Tensor) -> None:
        """Write the sum of gradients that `total`, the sum of summands, represents to `out`."""

    def encoder(self, layout: Layout) -> SummableEncoder:
        return SummableMemorylessEncoder(self, layout)


class MemorylessEncoder(Encoder):
    """An encoder whose only state is whether a round has begun."""

    def __init__(self, compressor: Memoryless, layout: Layout) -> None:
        self.layout = layout
        self._compressor = compressor
        self._round = PendingState[Round]()

    def encode(self, gradient: Tensor, round_: Round) -> Message:
        self._round.check()
        message = SILENCE if is_silent(gradient, round_) else self._compressor.encode(gradient, self.layout, round_)
        self._round.prepare(round_)
        return message

    def whole(self, gradient: Tensor, round_: Round) -> Tensor | None:
        return torch.zeros_like(gradient) if is_silent(gradient, round_) else None

    def commit(self) -> None:
        self._round.drop()

    def abort(self) -> None:
        self._round.drop()

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        return


class SummableMemorylessEncoder(MemorylessEncoder, SummableEncoder):
    """The same for payloads that can be summed."""

    def __init__(self, compressor: SummableMemoryless, layout: Layout) -> None:
        super().__init__(compressor, layout)
        self._summable = compressor
        self._sums: Round | None = None

    def summand(self, gradient: Tensor, round_: Round) -> Tensor:
        self._round.check()
        summand = self._summable.summand(gradient, self.layout, round_)
        self._round.prepare(round_)
        self._sums = round_
        return torch.zeros_like(summand) if is_silent(gradient, round_) else summand

    def decode_sum(self, total: Tensor, out: Tensor) -> None:
        if self._sums is None:
            raise RuntimeError("there is nothing to decode before the first summand was made")
        self._summable.spread(total, self.layout, self._sums, out)


class MemorylessDecoder(Decoder):
    """Adds up the components of all messages."""

    def __init__(self, layout: Layout, decode: Callable[[memoryview, Layout, Tensor], None]) -> None:
        self.layout = layout
        self._decode = decode

    def decode(self, messages: Mapping[int, memoryview], out: Tensor) -> None:
        exact = state_dtype(self.layout)
        # The sum of 16-bit gradients is rounded once, at the end.
        total = out if out.dtype == exact else torch.empty_like(out, dtype=exact)
        total.zero_()
        decode_all(messages, lambda data: self._decode(data, self.layout, total))
        if total is not out:
            out.copy_(total)

    def commit(self) -> None:
        return

    def abort(self) -> None:
        return

    def remember(self, total: Tensor) -> None:
        return

    def flush(self) -> None:
        return

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        return
