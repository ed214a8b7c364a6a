"""CGD: a worker whose gradient has hardly changed sends nothing (LAG, 1805.09965, section 2; CSGD, 1909.03631).

    worker      D = gradient - h_m       sent whole, and h_m += D, if |D| > c / M * |the last applied update|
    receiver    h += D of those that sent; h is what is applied

The applied update stands for `(theta^k - theta^{k-1}) / alpha`, so that c needs no learning rate. M is the number of
members; norms are those of a bucket.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from ropewalk.errors import ExchangeInvalid
from ropewalk.exchange.buckets import Layout
from ropewalk.exchange.compressors.components import add_said, say_all
from ropewalk.exchange.compressors.compressor import Compressor, Decoder, Encoder, Round
from ropewalk.exchange.compressors.decoding import decode_all
from ropewalk.exchange.compressors.memoryless import SILENCE, state_dtype
from ropewalk.exchange.compressors.pending import PendingState
from ropewalk.exchange.message import Message


@dataclass(frozen=True)
class Censored(Compressor):
    """Sends the whole bucket, or nothing.

    Chen et al., LAG, 2018 (https://arxiv.org/abs/1805.09965), section 2; CSGD, 2019
    (https://arxiv.org/abs/1909.03631).

    Attributes:
        c: factor of the threshold that a change must exceed to be sent; 0 sends every change.
        history: number of rounds over which the squared norm of the applied update is averaged.
    """

    name = "censored"
    keeps_memory = True
    stale_safe = False

    c: float = 1.0
    history: int = 1

    def __post_init__(self) -> None:
        if self.c < 0 or self.history < 1:
            raise ExchangeInvalid(f"c is at least 0 and history at least 1, not {self.c} and {self.history}")

    def encoder(self, layout: Layout) -> Encoder:
        return _CensoredEncoder(layout, self)

    def decoder(self, layout: Layout) -> Decoder:
        return _CensoredDecoder(layout)


@dataclass(frozen=True)
class _SentSum:
    """The sum that a worker has sent so far, and squared norms of earlier applied updates, by parameter and round."""

    memory: Tensor
    applied: Tensor


class _CensoredEncoder(Encoder):
    replicated = ("applied",)

    def __init__(self, layout: Layout, compressor: Censored) -> None:
        self.layout = layout
        self._compressor = compressor
        self._said = _SentSum(
            torch.zeros(layout.numel, dtype=state_dtype(layout), device=layout.device),
            torch.zeros(len(layout.entries), compressor.history - 1, dtype=torch.float64),
        )
        self._next = PendingState[_SentSum]()

    def encode(self, gradient: Tensor, round_: Round) -> Message:
        self._next.check()
        window = self._window(round_)
        limit = self._compressor.c / round_.size * (window.sum().item() / self._compressor.history) ** 0.5
        difference = self._difference(gradient)
        # A norm that is NaN is sent, too.
        if not round_.participates or _norm(difference) <= limit:
            self._prepare(self._said.memory, window)
            return SILENCE
        self._prepare(self._said.memory + difference, window)
        return say_all(self.layout, difference)

    def whole(self, gradient: Tensor, round_: Round) -> Tensor:
        self._next.check()
        difference = self._difference(gradient) if round_.participates else torch.zeros_like(gradient)
        self._prepare(self._said.memory + difference, self._window(round_))
        return difference

    def commit(self) -> None:
        self._said = self._next.take() or self._said

    def abort(self) -> None:
        self._next.drop()

    @property
    def memory(self) -> Tensor:
        return self._said.memory

    def flush(self) -> None:
        self._said.memory.zero_()

    def state_dict(self) -> dict[str, Any]:
        applied = {name: row.clone() for name, row in zip(self.layout.names, self._said.applied, strict=True)}
        return {"memory": self.layout.by_name(self._said.memory), "applied": applied}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.layout.fill(self._said.memory, state.get("memory", {}))
        for row, name in zip(self._said.applied, self.layout.names, strict=True):
            if name in state.get("applied", {}):
                row.copy_(state["applied"][name])

    def _difference(self, gradient: Tensor) -> Tensor:
        """Return the difference in the dtype in which it travels, so that the memory holds the decoded values."""
        return (gradient - self._said.memory).to(self.layout.dtype)

    def _window(self, round_: Round) -> Tensor:
        """Return squared norms of applied updates, float64, by parameter and by round from the last one backwards."""
        last = torch.zeros(len(self.layout.entries), 1, dtype=torch.float64)
        if round_.applied is not None:
            for at, part in enumerate(self.layout.slices.values()):
                last[at] = _norm(round_.applied[part]) ** 2
        return torch.cat([last, self._said.applied], dim=1)

    def _prepare(self, memory: Tensor, window: Tensor) -> None:
        self._next.prepare(_SentSum(memory, window[:, : self._compressor.history - 1]))


class _CensoredDecoder(Decoder):
    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self._memory = torch.zeros(layout.numel, dtype=state_dtype(layout), device=layout.device)
        self._next = PendingState[Tensor]()

    def decode(self, messages: Mapping[int, memoryview], out: Tensor) -> None:
        self._next.check()
        total = self._memory.clone()
        decode_all(messages, lambda data: add_said(data, self.layout, total))
        self._next.prepare(total)
        out.copy_(total)

    def decode_whole(self, total: Tensor, out: Tensor) -> None:
        self._next.check()
        memory = self._memory + total
        self._next.prepare(memory)
        out.copy_(memory)

    def commit(self) -> None:
        memory = self._next.take()
        self._memory = self._memory if memory is None else memory

    def abort(self) -> None:
        self._next.drop()

    def remember(self, total: Tensor) -> None:
        self._memory.copy_(total)

    def flush(self) -> None:
        self._memory.zero_()

    def state_dict(self) -> dict[str, Any]:
        return {"memory": self.layout.by_name(self._memory)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.layout.fill(self._memory, state.get("memory", {}))


def _norm(flat: Tensor) -> float:
    norm = torch.linalg.vector_norm(flat, dtype=torch.float64)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return cast(Tensor, norm).item()
