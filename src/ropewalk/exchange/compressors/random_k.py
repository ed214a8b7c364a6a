"""Random-k: randomly chosen components (Stich et al., Sparsified SGD with Memory, 1809.07599, section 2.1).

    [step, 8 bytes] [values]        the receiver draws the indices again

Every member draws the same components from (seed, step, parameter name): no index travels, and an all-reduce can sum
the values.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ropewalk.errors import ExchangeInvalid, MessageCorrupt
from ropewalk.exchange.buckets import Layout
from ropewalk.exchange.compressors.components import from_host
from ropewalk.exchange.compressors.compressor import Compressor, Round
from ropewalk.exchange.compressors.memoryless import SILENCE, SummableMemoryless
from ropewalk.exchange.message import Message


@dataclass(frozen=True)
class RandomK(SummableMemoryless):
    """Sends the same random components on every member.

    Stich et al., Sparsified SGD with Memory, 2018 (https://arxiv.org/abs/1809.07599), section 2.1.

    Attributes:
        density: fraction of each parameter's components that is sent, on average.
        unbiased: divide by the density, so that the expected value is the gradient. Under error feedback the division
            is omitted, because it would let the residual grow without bound.
        seed: seed of the draw.
    """

    name = "random_k"

    density: float = 0.01
    unbiased: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.density <= 1:
            raise ExchangeInvalid(f"density is a part of all components, above 0 and at most 1, not {self.density}")

    def encode(self, gradient: Tensor, layout: Layout, round_: Round) -> Message:
        values = self.summand(gradient, layout, round_)
        if not values.any():
            return SILENCE
        step = np.array([round_.step], "<u8").view(np.uint8)
        data = np.concatenate([step, values.cpu().view(torch.uint8).numpy()])
        layers = {name: len(at) * values.itemsize for name, at in self._drawn(layout, round_.step) if len(at)}
        layers[next(iter(layers))] += len(step)
        return Message(data, layers, len(values))

    def decode(self, data: memoryview, layout: Layout, out: Tensor) -> None:
        step = int.from_bytes(data[:8], "little")
        at = self._indices(layout, step)
        if len(data) != 8 + len(at) * layout.dtype.itemsize:
            raise MessageCorrupt(f"{len(data)} bytes are not the {len(at)} values that chance picks in step {step}")
        values = torch.frombuffer(bytearray(data[8:]), dtype=layout.dtype) if len(at) else torch.empty(0)
        out.index_add_(0, at.to(out.device), values.to(out))

    def summand(self, gradient: Tensor, layout: Layout, round_: Round) -> Tensor:
        picked = gradient[self._indices(layout, round_.step).to(gradient.device)]
        return picked.div_(self.density) if self.unbiased else picked

    def spread(self, total: Tensor, layout: Layout, round_: Round, out: Tensor) -> None:
        out.zero_()
        out[self._indices(layout, round_.step).to(out.device)] = total.to(out)

    def under_error_feedback(self) -> Compressor:
        return replace(self, unbiased=False)

    def _indices(self, layout: Layout, step: int) -> Tensor:
        return from_host(np.concatenate([at for _, at in self._drawn(layout, step)]))

    def _drawn(self, layout: Layout, step: int) -> list[tuple[str, NDArray[np.int64]]]:
        """Draw components of each parameter; return them by name as ascending positions in the bucket, int64."""
        drawn: list[tuple[str, NDArray[np.int64]]] = []
        for name, part in layout.slices.items():
            chance = np.random.default_rng((self.seed, step, zlib.crc32(name.encode())))
            num_all = part.stop - part.start
            num = int(self.density * num_all + chance.random())
            drawn.append((name, part.start + np.sort(chance.choice(num_all, num, replace=False, shuffle=False))))
        return drawn
