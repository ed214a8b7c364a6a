"""Rounds of a few members in one thread, for the tests of compressors."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ropewalk.exchange.buckets import BucketEntry, Layout
from ropewalk.exchange.compressors import Compressor, Encoder, Round, SummableEncoder


def layout_of(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Layout:
    return Layout(tuple(BucketEntry(f"p{at}", shape, dtype) for at, shape in enumerate(shapes)))


def heard(compressor: Compressor, layout: Layout, gradients: list[Tensor], step: int = 0) -> Tensor:
    """What new encoders say in one round, as a new decoder hears it."""
    messages = {
        rank: compressor.encoder(layout).encode(gradient, Round(step, rank, len(gradients))).data.data
        for rank, gradient in enumerate(gradients)
    }
    out = torch.empty(layout.numel, dtype=layout.dtype)
    compressor.decoder(layout).decode(messages, out)
    return out


def summed(encoders: Sequence[Encoder], gradients: list[Tensor], step: int = 0) -> Tensor:
    """A round of sums, committed; what the first member decodes."""
    members = [encoder for encoder in encoders if isinstance(encoder, SummableEncoder)]
    total = sum_of([
        member.summand(gradient, Round(step, rank, len(members)))
        for rank, (member, gradient) in enumerate(zip(members, gradients, strict=True))
    ])  # fmt: skip
    while further := [part for member in members if (part := member.next_summand(total.clone())) is not None]:
        total = sum_of(further)
    outs = [torch.empty_like(gradients[0]) for _ in members]
    for member, out in zip(members, outs, strict=True):
        member.decode_sum(total.clone(), out)
        member.commit()
    return outs[0]


def sum_of(parts: list[Tensor]) -> Tensor:
    return torch.stack(parts).sum(0)
