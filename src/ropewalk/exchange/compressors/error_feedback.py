"""Error feedback: what a message leaves out is added to the next gradient (EF-SGD, 1901.09847, algorithm 2).

    corrected = gradient + error ─▶ encoder of the inner compressor ─▶ Message ─▶ link
                                                                          └─▶ decoder for this message alone ─▶ sent
    error = corrected - sent

All that was sent, plus the error, is all that there was to send: this holds whatever the inner compressor does. Where
payloads are summed, a member's own part of the sum counts as what it sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ropewalk.errors import ExchangeInvalid
from ropewalk.exchange.buckets import Layout
from ropewalk.exchange.compressors.compressor import Compressor, Decoder, Encoder, Round, SummableEncoder
from ropewalk.exchange.compressors.memoryless import state_dtype
from ropewalk.exchange.compressors.pending import PendingState
from ropewalk.exchange.message import Message
from ropewalk.exchange.packed_state import part_of_state


@dataclass(frozen=True)
class ErrorFeedback(Compressor):
    """Wraps another compressor and feeds back what that one leaves out.

    Karimireddy et al., Error Feedback Fixes SignSGD, 2019 (https://arxiv.org/abs/1901.09847), algorithm 2.

    Attributes:
        inner: the wrapped compressor, in its form under error feedback. Compressors that leave nothing out, or keep
            errors themselves, are refused.
    """

    name = "error_feedback"

    inner: Compressor

    def __post_init__(self) -> None:
        inner = self.inner.under_error_feedback()
        object.__setattr__(self, "inner", inner)
        for promise in ("summable", "keeps_memory", "stale_safe"):
            object.__setattr__(self, promise, getattr(inner, promise))

    def encoder(self, layout: Layout) -> Encoder:
        inner, hears = self.inner.encoder(layout), self.inner.decoder(layout)
        if isinstance(inner, SummableEncoder):
            return _SummableCorrectingEncoder(layout, inner, hears)
        return _CorrectingEncoder(layout, inner, hears)

    def decoder(self, layout: Layout) -> Decoder:
        return self.inner.decoder(layout)

    def under_error_feedback(self) -> Compressor:
        raise ExchangeInvalid(f"{self!r} keeps its errors already")


class _CorrectingEncoder(Encoder):
    def __init__(self, layout: Layout, inner: Encoder, hears: Decoder) -> None:
        self.layout = layout
        self.replicated = tuple(f"inner.{kind}" for kind in inner.replicated)
        self._inner = inner
        self._hears = hears
        self._error = torch.zeros(layout.numel, dtype=state_dtype(layout), device=layout.device)
        # The buffer is reused, because allocating memory of this size takes longer than the computation in it.
        self._spare = torch.zeros_like(self._error)
        self._said = torch.zeros_like(self._error, dtype=layout.dtype)
        self._next = PendingState[Tensor]()

    def encode(self, gradient: Tensor, round_: Round) -> Message:
        self._next.check()
        corrected = torch.add(self._error, gradient, out=self._spare)
        message = self._inner.encode(corrected.to(self.layout.dtype), round_)
        self._hears.decode({round_.rank: message.data.data}, self._said)
        self._next.prepare(corrected.sub_(self._said))
        return message

    def whole(self, gradient: Tensor, round_: Round) -> Tensor:
        self._next.check()
        corrected = torch.add(self._error, gradient, out=self._spare)
        travelling = corrected.to(self.layout.dtype, copy=True)
        whole = self._inner.whole(travelling, round_)
        if whole is None:
            whole = travelling
        self._hears.decode_whole(whole, self._said)
        self._next.prepare(corrected.sub_(self._said))
        return whole

    def commit(self) -> None:
        error = self._next.take()
        if error is not None:
            self._error, self._spare = error, self._error
        self._inner.commit()
        self._hears.commit()

    def abort(self) -> None:
        self._next.drop()
        self._inner.abort()
        self._hears.abort()

    @property
    def error(self) -> Tensor:
        return self._error

    @property
    def memory(self) -> Tensor | None:
        return self._inner.memory

    def flush(self) -> None:
        self._error.zero_()
        self._inner.flush()
        self._hears.flush()

    def state_dict(self) -> dict[str, Any]:
        inner = {f"inner.{kind}": state for kind, state in self._inner.state_dict().items()}
        heard = {f"heard.{kind}": state for kind, state in self._hears.state_dict().items()}
        return {"error": self.layout.by_name(self._error)} | inner | heard

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.layout.fill(self._error, state.get("error", {}))
        self._inner.load_state_dict(part_of_state(state, "inner."))
        self._hears.load_state_dict(part_of_state(state, "heard."))


class _SummableCorrectingEncoder(_CorrectingEncoder, SummableEncoder):
    def __init__(self, layout: Layout, inner: SummableEncoder, hears: Decoder) -> None:
        super().__init__(layout, inner, hears)
        self._sums = inner
        # State of the open round: the corrected gradient, and this member's part of the last sum.
        self._corrected: Tensor | None = None
        self._own: Tensor | None = None

    def summand(self, gradient: Tensor, round_: Round) -> Tensor:
        self._next.check()
        self._corrected = self._error + gradient
        summand = self._sums.summand(self._corrected.to(self.layout.dtype), round_)
        self._own = summand.clone()
        return summand

    def next_summand(self, total: Tensor) -> Tensor | None:
        summand = self._sums.next_summand(total)
        self._own = self._own if summand is None else summand.clone()
        return summand

    def decode_sum(self, total: Tensor, out: Tensor) -> None:
        if self._corrected is None or self._own is None:
            raise RuntimeError("there is nothing to decode before the first summand was made")
        self._sums.decode_sum(self._own, out)
        self._next.prepare(torch.sub(self._corrected, out, out=self._spare))
        self._sums.decode_sum(total, out)

    def commit(self) -> None:
        super().commit()
        self._corrected = self._own = None

    def abort(self) -> None:
        super().abort()
        self._corrected = self._own = None
