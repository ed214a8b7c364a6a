"""Signs: one bit per component (Bernstein et al., signSGD, 1802.04434, algorithm 1; scaled: 1901.09847, section 4).

    [mean magnitude of each parameter, float32] [one bit per component: 1 is negative]

A zero counts as positive, but a parameter whose gradient is all zeros stays zero. Biased: use it inside of
`ErrorFeedback`, or with `vote`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ropewalk.errors import ExchangeInvalid, MessageCorrupt
from ropewalk.exchange.buckets import Layout
from ropewalk.exchange.compressors.components import from_host
from ropewalk.exchange.compressors.compressor import Compressor, Decoder, Round
from ropewalk.exchange.compressors.decoding import decode_all
from ropewalk.exchange.compressors.memoryless import SILENCE, Memoryless, MemorylessDecoder
from ropewalk.exchange.message import Message


@dataclass(frozen=True)
class Sign(Memoryless):
    """Sends signs, times the mean magnitude of their parameter.

    Bernstein et al., signSGD, 2018 (https://arxiv.org/abs/1802.04434), algorithm 1; scaled as by Karimireddy et
    al., 2019 (https://arxiv.org/abs/1901.09847), section 4.

    Attributes:
        vote: whether the receiver takes the sign that most members sent, times the mean of their magnitudes (signSGD
            with majority vote); otherwise it adds up what each member sent.
    """

    name = "sign"
    transparent = True

    vote: bool = False

    def encode(self, gradient: Tensor, layout: Layout, round_: Round) -> Message:
        parts = [gradient[part] for part in layout.slices.values()]
        scales = np.array([part.abs().mean(dtype=torch.float32).item() if part.numel() else 0 for part in parts], "<f4")
        if not scales.any():
            return SILENCE
        signs = np.packbits((gradient < 0).cpu().numpy())
        return Message(np.concatenate([scales.view(np.uint8), signs]), _bytes_by_name(layout), layout.numel)

    def decode(self, data: memoryview, layout: Layout, out: Tensor) -> None:
        scales, signs = _read(data, layout)
        for part, scale in zip(layout.slices.values(), scales, strict=True):
            out[part].add_(signs[part].to(out), alpha=float(scale))

    def decoder(self, layout: Layout) -> Decoder:
        return _Vote(layout, self.decode) if self.vote else super().decoder(layout)

    def under_error_feedback(self) -> Compressor:
        if self.vote:
            raise ExchangeInvalid("after a vote, no member knows what became of its own signs; use Sign(vote=False)")
        return self


class _Vote(MemorylessDecoder):
    """Counts votes by component and adds up magnitudes by parameter."""

    def decode(self, messages: Mapping[int, memoryview], out: Tensor) -> None:
        votes = torch.zeros(self.layout.numel, dtype=torch.int32)
        magnitudes = np.zeros(len(self.layout.entries))

        def count(data: memoryview) -> None:
            scales, signs = _read(data, self.layout)
            magnitudes[:] += scales
            for part, scale in zip(self.layout.slices.values(), scales, strict=True):
                if scale:
                    votes[part] += signs[part]

        decode_all(messages, count)
        for part, magnitude in zip(self.layout.slices.values(), magnitudes, strict=True):
            out[part] = votes[part].sign().to(out) * float(magnitude)


def _read(data: memoryview, layout: Layout) -> tuple[NDArray[np.float32], Tensor]:
    """Return magnitudes by parameter, and +1 or -1 by component (int8)."""
    raw = np.frombuffer(data, np.uint8)
    split = 4 * len(layout.entries)
    if len(raw) != split + -(-layout.numel // 8):
        raise MessageCorrupt(f"{len(raw)} bytes are not the signs of {layout.numel} components")
    scales = raw[:split].view("<f4")
    if (scales < 0).any() or np.unpackbits(raw[-1:])[layout.numel % 8 or 8 :].any():
        raise MessageCorrupt("the mean magnitude of a parameter is negative, or there are signs of no component")
    negative = np.unpackbits(raw[split:], count=layout.numel).view(np.int8)
    return scales, from_host(1 - 2 * negative)


def _bytes_by_name(layout: Layout) -> dict[str, int]:
    """Return bytes by parameter: its magnitude and whole bytes of signs; the remaining bits count for the first one."""
    by_name = {entry.name: 4 + entry.numel // 8 for entry in layout.entries}
    by_name[layout.names[0]] += 4 * len(by_name) + -(-layout.numel // 8) - sum(by_name.values())
    return by_name
