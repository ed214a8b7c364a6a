"""PowerSGD: each gradient matrix as a product of two thin ones (Vogels et al., PowerSGD, 1905.13727, algorithm 1).

    M (n x m) ─▶ P = M Q ─▶ sum of all ─▶ orthonormal P ─▶ Q = M' P ─▶ sum of all ─▶ M ~ P Q'      r (n + m) values
                     Q of the previous round (warm start): a round is one step of power iteration

Parameters with fewer than two dimensions, and those that would not get smaller, travel whole together with Q. In a
message, which is not summed on the way, each member sends the factors of its own gradient. Biased: use it inside of
`ErrorFeedback`. P, Q and M are the paper's symbols.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from ropewalk.errors import ExchangeInvalid, MessageCorrupt
from ropewalk.exchange.buckets import Layout
from ropewalk.exchange.compressors.compressor import Compressor, Decoder, Round, SummableEncoder
from ropewalk.exchange.compressors.memoryless import SILENCE, MemorylessDecoder, state_dtype
from ropewalk.exchange.compressors.pending import PendingState
from ropewalk.exchange.message import Message


@dataclass(frozen=True)
class LowRank(Compressor):
    """Sends two thin factors of every matrix; dimensions after the first are flattened into one.

    Vogels et al., PowerSGD, 2019 (https://arxiv.org/abs/1905.13727), algorithm 1.

    Attributes:
        rank: number of columns of the factors.
        seed: seed of the first Q.
    """

    name = "low_rank"
    summable = True

    rank: int = 2
    seed: int = 0

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise ExchangeInvalid(f"the rank of factors is at least 1, not {self.rank}")

    def encoder(self, layout: Layout) -> SummableEncoder:
        return _LowRankEncoder(layout, self)

    def decoder(self, layout: Layout) -> Decoder:
        return MemorylessDecoder(layout, _Pieces(layout, self.rank).decode)


@dataclass(frozen=True)
class _Matrix:
    """A parameter that becomes two factors."""

    part: slice
    rows: int
    columns: int
    rank: int

    def of(self, flat: Tensor, dtype: torch.dtype) -> Tensor:
        return flat[self.part].view(self.rows, self.columns).to(dtype)

    @property
    def size_P(self) -> int:
        return self.rows * self.rank

    @property
    def size_Q(self) -> int:
        return self.columns * self.rank


class _Pieces:
    """The parameters of a bucket that become factors, and how payloads are made of them.

    first summand      [P of each matrix]
    second summand                         [Q of each matrix] [whole parameters]
    message            [P of each matrix]  [Q of each matrix] [whole parameters]
    """

    def __init__(self, layout: Layout, rank: int) -> None:
        self.dtype = state_dtype(layout)
        self.matrices: dict[str, _Matrix] = {}
        self.whole: dict[str, slice] = {}
        for entry, part in zip(layout.entries, layout.slices.values(), strict=True):
            rows = entry.shape[0] if len(entry.shape) > 1 else 1
            columns = entry.numel // max(rows, 1)
            if (rows + columns) * rank < rows * columns:
                self.matrices[entry.name] = _Matrix(part, rows, columns, rank)
            else:
                self.whole[entry.name] = part
        self._sizes_P = [matrix.size_P for matrix in self.matrices.values()]
        self._sizes_Q = [matrix.size_Q for matrix in self.matrices.values()]
        self._sizes_whole = [part.stop - part.start for part in self.whole.values()]

    def all_M(self, gradient: Tensor) -> list[Tensor]:
        return [matrix.of(gradient, self.dtype) for matrix in self.matrices.values()]

    def second(self, all_Q: Sequence[Tensor], gradient: Tensor) -> Tensor:
        return self._joined([*all_Q, *(gradient[part] for part in self.whole.values())], gradient)

    def first(self, all_P: Sequence[Tensor], gradient: Tensor) -> Tensor:
        return self._joined(all_P, gradient)

    def read_first(self, payload: Tensor) -> list[Tensor]:
        return [
            flat.view(matrix.rows, matrix.rank)
            for flat, matrix in zip(payload.split_with_sizes(self._sizes_P), self.matrices.values(), strict=True)
        ]

    def read_second(self, payload: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        flats = payload.split_with_sizes([*self._sizes_Q, *self._sizes_whole])
        split = len(self.matrices)
        all_Q = [
            flat.view(matrix.columns, matrix.rank)
            for flat, matrix in zip(flats[:split], self.matrices.values(), strict=True)
        ]
        return all_Q, list(flats[split:])

    def add(self, all_P: Sequence[Tensor], second: Tensor, out: Tensor) -> None:
        """Add the gradient that the payloads represent to a flat tensor."""
        all_Q, whole = self.read_second(second)
        for matrix, P, Q in zip(self.matrices.values(), all_P, all_Q, strict=True):
            out[matrix.part].view(matrix.rows, matrix.columns).add_(P @ Q.T)
        for part, flat in zip(self.whole.values(), whole, strict=True):
            out[part].add_(flat)

    def decode(self, data: memoryview, layout: Layout, out: Tensor) -> None:
        num_P = sum(self._sizes_P)
        num = num_P + sum(self._sizes_Q) + sum(self._sizes_whole)
        if len(data) != num * self.dtype.itemsize:
            raise MessageCorrupt(f"{len(data)} bytes are not the {num} values of the factors of this bucket")
        payload = torch.frombuffer(bytearray(data), dtype=self.dtype).to(out.device)
        self.add(self.read_first(payload[:num_P]), payload[num_P:], out)

    def bytes_by_name(self) -> dict[str, int]:
        num_by_name = {name: matrix.size_P + matrix.size_Q for name, matrix in self.matrices.items()}
        num_by_name |= dict(zip(self.whole, self._sizes_whole, strict=True))
        return {name: num * self.dtype.itemsize for name, num in num_by_name.items()}

    def _joined(self, parts: Sequence[Tensor], like: Tensor) -> Tensor:
        if not parts:
            return torch.empty(0, dtype=self.dtype, device=like.device)
        return torch.cat([part.reshape(-1).to(self.dtype) for part in parts])


class _LowRankEncoder(SummableEncoder):
    """Keeps the Q of each matrix: of its own gradient after a message, of the sum after an all-reduce."""

    replicated = ("Q",)

    def __init__(self, layout: Layout, compressor: LowRank) -> None:
        self.layout = layout
        self._pieces = _Pieces(layout, compressor.rank)
        self._all_Q = {
            name: _first_Q(compressor.seed, name, matrix, self._pieces.dtype).to(layout.device)
            for name, matrix in self._pieces.matrices.items()
        }
        self._next = PendingState[dict[str, Tensor]]()
        # State of the open round: the gradient to send, and the orthonormal P once all members' P have been summed.
        self._gradient: Tensor | None = None
        self._all_P: list[Tensor] | None = None

    def encode(self, gradient: Tensor, round_: Round) -> Message:
        self._next.check()
        self._next.prepare(self._all_Q)
        if not round_.participates or not gradient.any():
            return SILENCE
        all_M = self._pieces.all_M(gradient)
        all_P = [_orthonormal(M @ Q) for M, Q in zip(all_M, self._all_Q.values(), strict=True)]
        all_Q = [M.T @ P for M, P in zip(all_M, all_P, strict=True)]
        self._prepare(all_Q)
        payload = torch.cat([self._pieces.first(all_P, gradient), self._pieces.second(all_Q, gradient)])
        return Message(payload.cpu().view(torch.uint8).numpy(), self._pieces.bytes_by_name(), len(payload))

    def summand(self, gradient: Tensor, round_: Round) -> Tensor:
        self._next.check()
        self._next.prepare(self._all_Q)
        self._gradient = gradient if round_.participates else torch.zeros_like(gradient)
        if not self._all_Q:
            self._all_P = []
            return self._pieces.second([], self._gradient)
        self._all_P = None
        all_M = self._pieces.all_M(self._gradient)
        return self._pieces.first([M @ Q for M, Q in zip(all_M, self._all_Q.values(), strict=True)], gradient)

    def next_summand(self, total: Tensor) -> Tensor | None:
        if self._gradient is None or self._all_P is not None:
            return None
        self._all_P = [_orthonormal(P) for P in self._pieces.read_first(total)]
        all_M = self._pieces.all_M(self._gradient)
        return self._pieces.second([M.T @ P for M, P in zip(all_M, self._all_P, strict=True)], self._gradient)

    def decode_sum(self, total: Tensor, out: Tensor) -> None:
        if self._all_P is None:
            raise RuntimeError("the second summand has not been made yet; call next_summand with the sum of the first")
        out.zero_()
        self._pieces.add(self._all_P, total, out)
        self._prepare([Q.clone() for Q in self._pieces.read_second(total)[0]])

    def whole(self, gradient: Tensor, round_: Round) -> Tensor | None:
        return None if round_.participates else torch.zeros_like(gradient)

    def commit(self) -> None:
        self._all_Q = self._next.take() or self._all_Q
        self.abort()

    def abort(self) -> None:
        self._next.drop()
        self._gradient = self._all_P = None

    def state_dict(self) -> dict[str, Any]:
        return {"Q": {name: Q.clone() for name, Q in self._all_Q.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        given: Mapping[str, Tensor] = state.get("Q", {})
        for name, Q in self._all_Q.items():
            if name not in given:
                continue
            if given[name].shape != Q.shape:
                raise ValueError(
                    f"the state of {name!r} has factors of shape {tuple(given[name].shape)}, this encoder's are "
                    f"{tuple(Q.shape)}; it belongs to another rank or model"
                )
            self._all_Q[name] = given[name].to(Q, copy=True)

    def _prepare(self, all_Q: Sequence[Tensor]) -> None:
        """Keep the previous Q where the new one is zero: a zero gradient's Q would be no start for the next round."""
        self._next.prepare(
            {name: Q if Q.any() else old for Q, (name, old) in zip(all_Q, self._all_Q.items(), strict=True)}
        )


def _first_Q(seed: int, name: str, matrix: _Matrix, dtype: torch.dtype) -> Tensor:
    """Return a random first Q that is the same on every member and does not depend on the buckets."""
    chance = torch.Generator().manual_seed(seed * 0x9E3779B1 + zlib.crc32(name.encode()))
    return torch.randn(matrix.columns, matrix.rank, generator=chance, dtype=dtype)


def _orthonormal(P: Tensor) -> Tensor:
    return cast(Tensor, torch.linalg.qr(P).Q)  # pyright: ignore[reportUnknownMemberType]
