"""GD-SEC: send only the components of gradient differences that matter, and correct the error later.

    worker m                                                             receiver (every worker, or a server)
    D_m = g_m - h_m + e_m
    S_m = D_m where |D_m,i| > (xi_i / M) |theta_i^k - theta_i^{k-1}| ──▶ ghat = h + sum_m S_m
    e_m <- D_m - S_m                                                     h   <- h + beta sum_m S_m
    h_m <- h_m + beta S_m                                                theta <- theta - alpha ghat

Y. Chen, R. S. Blum, M. Takac, B. M. Sadler, "Distributed Learning With Sparsified Gradient Differences", IEEE JSTSP
2022, https://arxiv.org/abs/2202.02491; sum convention, `f = sum_m f_m`. The lines above imply, with `h = sum_m h_m` and
`e = sum_m e_m`, for every beta:

    ghat^k = grad f(theta^k) + e^k - e^{k+1}                nothing is lost, only delayed
    |e_{m,i}^{k+1}| <= (xi_i / M) |theta_i^k - theta_i^{k-1}|

We go beyond the paper in two points: every receiver keeps h, so that the downlink is sparse too; and there is a form
for any optimizer. Since plain SGD moves by `-alpha ghat`, its threshold is `(xi alpha / M) |ghat^{k-1}|`. The averaged
form takes `c = xi alpha` as the setting: it needs no learning rate and no copy of theta, is the same on every worker,
and keeps its meaning under momentum or Adam. `Round.applied` is the reference of the test: ghat of the last round in
the averaged form, `theta^k - theta^{k-1}` in the paper's form.

One code path serves the whole family: the test by component, layer or bucket (as in CGD) or by rank (top-j), with or
without memory, with or without error correction, exact or quantized values. `ropewalk.exchange.presets` names them.
For the proofs see docs/theory.md, "GD-SEC".
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ropewalk.errors import ExchangeInvalid
from ropewalk.exchange.buckets import Layout
from ropewalk.exchange.compressors.compressor import Decoder, Encoder, Round
from ropewalk.exchange.compressors.decoding import decode_all
from ropewalk.exchange.compressors.gd_sec_options import GDSECOptions
from ropewalk.exchange.compressors.memoryless import SILENCE, state_dtype, value_seed
from ropewalk.exchange.compressors.pending import PendingState
from ropewalk.exchange.kernels import Selection, gd_sec_select, scatter_add
from ropewalk.exchange.message import Message
from ropewalk.exchange.wire.sparse import pack_sparse, unpack_sparse
from ropewalk.exchange.wire.values import value_codec


class GDSEC(GDSECOptions):
    """Gradient descent with sparsification and error correction; see `GDSECOptions` for its options.

    Chen, Blum, Takáč and Sadler, 2022 (https://arxiv.org/abs/2202.02491).
    """

    name = "gd_sec"

    def encoder(self, layout: Layout) -> GDSECEncoder:
        return GDSECEncoder(self, layout)

    def decoder(self, layout: Layout) -> GDSECDecoder:
        return GDSECDecoder(self, layout)


@dataclass(frozen=True, slots=True)
class _PendingCommit:
    """What `commit` takes over: the sent components as the receiver decodes them; all of D where `whole`."""

    sent: Selection | None = None
    whole: Tensor | None = None
    error_changes: bool = True


class GDSECEncoder(Encoder):
    """The worker's side: h_m and e_m, in float32 or float64."""

    def __init__(self, config: GDSECOptions, layout: Layout) -> None:
        self.layout = layout
        self._config = config
        self._beta = config.memory_rate
        self._memory = _zeros(layout) if self._beta else None
        self._error = _zeros(layout) if config.error_correction else None
        # The error of the next round, in a buffer of its own until `commit`.
        self._next_error = _zeros(layout)
        self._factor = _factors(config, layout)
        # Gradients of 16 bits are not sent in 32 bits, although the state is kept in 32.
        self._is_exact = config.values == "same" and layout.dtype == self._next_error.dtype
        self._codec = str(layout.dtype).removeprefix("torch.") if config.values == "same" else config.values
        self._next = PendingState[_PendingCommit]()

    def encode(self, gradient: Tensor, round_: Round) -> Message:
        self._next.check()
        if not self._config.speaks(round_):
            return self._silent(gradient)
        found = self._select(gradient, round_)
        seed = value_seed(round_, self.layout)
        message = pack_sparse(self.layout, found.indices, found.values, self._codec, seed)
        if not self._is_exact and len(found.values):
            heard = value_codec(self._codec).heard(found.values, seed)
            # Where S has components the next error is still 0: what the codec loses stays there.
            scatter_add(self._next_error, found.indices, found.values - heard)
            found = Selection(found.indices, heard)
        self._next.prepare(_PendingCommit(found))
        return message

    def _silent(self, gradient: Tensor) -> Message:
        if self._config.silent == "computes":
            self._difference(gradient)
            self._next.prepare(_PendingCommit())
        else:
            self._next.prepare(_PendingCommit(error_changes=False))
        return SILENCE

    def _select(self, gradient: Tensor, round_: Round) -> Selection:
        """Select S, and leave D - S in `_next_error`."""
        config = self._config
        reference = None if round_.applied is None else round_.applied.to(self._next_error.dtype)
        factor = (config.c if config.xi is None else config.xi) / round_.size
        if config.density is None and config.per == "component":
            scaled: float | Tensor = factor if self._factor is None else self._factor * factor
            return gd_sec_select(gradient, self._memory, self._error, reference, scaled, self._next_error)
        difference = self._difference(gradient)
        if config.density is not None:
            # The number of components is fixed, zeros included; but for a gradient of zeros alone nothing is sent.
            num = max(1, round(config.density * len(difference))) if difference.any() else 0
            indices = torch.topk(difference.abs(), num, sorted=False).indices.sort().values
        else:
            loud = [part for part in self._blocks() if self._is_loud(part, reference, factor)]
            places = [difference[part].nonzero().reshape(-1) + part.start for part in loud]
            indices = torch.cat(places) if places else torch.empty(0, dtype=torch.int64, device=difference.device)
        values = difference[indices]
        difference[indices] = 0
        return Selection(indices.to("cpu", torch.int32).numpy(), values.cpu().numpy())

    def _difference(self, gradient: Tensor) -> Tensor:
        """Compute D in `_next_error`."""
        difference = self._next_error.copy_(gradient)
        if self._memory is not None:
            difference -= self._memory
        if self._error is not None:
            difference += self._error
        return difference

    def _blocks(self) -> Iterator[slice]:
        return iter(self.layout.slices.values() if self._config.per == "layer" else [slice(0, self.layout.numel)])

    def _is_loud(self, part: slice, reference: Tensor | None, factor: float) -> bool:
        if reference is None:
            return True
        moved = reference[part] if self._factor is None else reference[part] * self._factor[part]
        # NaN counts as loud, as everywhere.
        return not _norm(self._next_error[part]) <= factor * _norm(moved)

    def whole(self, gradient: Tensor, round_: Round) -> Tensor:
        self._next.check()
        if not self._config.speaks(round_):
            self._silent(gradient)
            return torch.zeros_like(gradient)
        difference = self._difference(gradient)
        said = difference.to(self.layout.dtype, copy=True)
        # The rest is zero, unless the bucket's dtype is less precise than the state's.
        difference -= said
        self._next.prepare(_PendingCommit(whole=said.to(difference.dtype, copy=True)))
        return said

    def commit(self) -> None:
        said = self._next.take()
        if said is None:
            return
        if self._error is not None and said.error_changes:
            self._error, self._next_error = self._next_error, self._error
        if self._memory is None:
            return
        if said.whole is not None:
            self._memory.add_(said.whole, alpha=self._beta)
        elif said.sent is not None:
            scatter_add(self._memory, said.sent.indices, said.sent.values, self._beta)

    def abort(self) -> None:
        self._next.drop()

    @property
    def error(self) -> Tensor | None:
        return self._error

    @property
    def memory(self) -> Tensor | None:
        return self._memory

    def flush(self) -> None:
        for flat in (self._memory, self._error):
            if flat is not None:
                flat.zero_()

    def state_dict(self) -> dict[str, Any]:
        held = {"memory": self._memory, "error": self._error}
        return {name: self.layout.by_name(flat) for name, flat in held.items() if flat is not None}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name, flat in (("memory", self._memory), ("error", self._error)):
            if flat is not None:
                self.layout.fill(flat, state.get(name, {}))


class GDSECDecoder(Decoder):
    """The receiver's side: h. Replicas add in the order of ranks, and therefore hold the same bits."""

    def __init__(self, config: GDSECOptions, layout: Layout) -> None:
        self.layout = layout
        self._beta = config.memory_rate
        self._memory = _zeros(layout) if self._beta else None
        self._next = PendingState[list[Selection] | Tensor]()

    def decode(self, messages: Mapping[int, memoryview], out: Tensor) -> None:
        self._next.check()
        heard: list[Selection] = []
        decode_all(
            messages, lambda data: heard.append(unpack_sparse(data, self.layout.numel, state_dtype(self.layout)))
        )
        total = self._start(out)
        for said in heard:
            scatter_add(total, said.indices, said.values)
        if total is not out:
            out.copy_(total)
        self._next.prepare(heard)

    def decode_whole(self, total: Tensor, out: Tensor) -> None:
        self._next.check()
        heard = total.to(state_dtype(self.layout), copy=True)
        applied = self._start(out).add_(heard)
        if applied is not out:
            out.copy_(applied)
        self._next.prepare(heard)

    def _start(self, out: Tensor) -> Tensor:
        """Return a tensor that contains h, or zeros; `out` itself where its dtype fits."""
        dtype = state_dtype(self.layout)
        total = out if out.dtype == dtype and out.is_contiguous() else torch.empty_like(out, dtype=dtype)
        return total.zero_() if self._memory is None else total.copy_(self._memory)

    def commit(self) -> None:
        heard = self._next.take()
        if heard is None or self._memory is None:
            return
        if isinstance(heard, Tensor):
            self._memory.add_(heard, alpha=self._beta)
            return
        for said in heard:
            scatter_add(self._memory, said.indices, said.values, self._beta)

    def abort(self) -> None:
        self._next.drop()

    def remember(self, total: Tensor) -> None:
        if self._memory is not None:
            self._memory.copy_(total)

    def flush(self) -> None:
        if self._memory is not None:
            self._memory.zero_()

    def state_dict(self) -> dict[str, Any]:
        return {} if self._memory is None else {"memory": self.layout.by_name(self._memory)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if self._memory is not None:
            self.layout.fill(self._memory, state.get("memory", {}))


def _zeros(layout: Layout) -> Tensor:
    return torch.zeros(layout.numel, dtype=state_dtype(layout), device=layout.device)


def _factors(config: GDSECOptions, layout: Layout) -> Tensor | None:
    """Return the factor of c or xi for each component, flat; None where it is 1 everywhere."""
    if not config.factors:
        return None
    flat = _zeros(layout)
    for name, part in layout.views(flat):
        factor = config.factor_of(name)
        if isinstance(factor, Tensor) and factor.shape != part.shape:
            raise ExchangeInvalid(
                f"the factor of {name!r} has shape {tuple(factor.shape)}, and not {tuple(part.shape)}"
            )
        part.copy_(torch.as_tensor(factor))
    return flat


def _norm(flat: Tensor) -> float:
    return math.sqrt(float(torch.dot(flat, flat)))
