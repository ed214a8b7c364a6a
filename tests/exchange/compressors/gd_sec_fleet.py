"""Workers of GD-SEC and one receiver, in one process, and a problem to compare them on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from ropewalk.exchange.buckets import BucketEntry, Layout
from ropewalk.exchange.compressors.compressor import Message, Round
from ropewalk.exchange.compressors.gd_sec import GDSEC, GDSECDecoder, GDSECEncoder


def layout_of(dtype: torch.dtype = torch.float64) -> Layout:
    """17 components in three parameters, one of them a scalar."""
    shapes = {"weight": (3, 4), "bias": (4,), "scale": ()}
    return Layout(tuple(BucketEntry(name, shape, dtype) for name, shape in shapes.items()))


@dataclass
class Fleet:
    """Runs rounds the way an exchange does, with an own check of nothing."""

    compressor: GDSEC
    size: int
    layout: Layout = field(default_factory=layout_of)
    step: int = 0
    applied: Tensor | None = None
    encoders: list[GDSECEncoder] = field(init=False)
    decoder: GDSECDecoder = field(init=False)
    messages: list[Message] = field(init=False)

    def __post_init__(self) -> None:
        self.encoders = [self.compressor.encoder(self.layout) for _ in range(self.size)]
        self.decoder = self.compressor.decoder(self.layout)

    def round_of(self, rank: int, participates: bool = True) -> Round:
        return Round(self.step, rank, len(self.encoders), applied=self.applied, participates=participates)

    def encode(self, gradients: Sequence[Tensor], silent: frozenset[int] = frozenset()) -> list[Message]:
        pairs = enumerate(zip(self.encoders, gradients, strict=True))
        return [encoder.encode(grad, self.round_of(rank, rank not in silent)) for rank, (encoder, grad) in pairs]

    def exchange(self, gradients: Sequence[Tensor], silent: frozenset[int] = frozenset()) -> Tensor:
        """One round; gives what is applied, a sum."""
        self.messages = self.encode(gradients, silent)
        out = torch.full((self.layout.numel,), float("nan"), dtype=self.layout.dtype)
        self.decoder.decode({rank: said.data.data for rank, said in enumerate(self.messages)}, out)
        self.settle(out)
        return out

    def exchange_whole(self, gradients: Sequence[Tensor]) -> Tensor:
        """One round in which all is said, by a dense all-reduce."""
        pairs = enumerate(zip(self.encoders, gradients, strict=True))
        total = sum(encoder.whole(grad, self.round_of(rank)) for rank, (encoder, grad) in pairs)
        assert isinstance(total, Tensor)
        out = torch.empty_like(total)
        self.decoder.decode_whole(total, out)
        self.settle(out)
        return out

    def settle(self, applied: Tensor) -> None:
        for half in (*self.encoders, self.decoder):
            half.commit()
        self.applied = applied
        self.step += 1

    @property
    def errors(self) -> list[Tensor]:
        kept = [encoder.error for encoder in self.encoders]
        return [torch.zeros(self.layout.numel, dtype=self.layout.dtype) if error is None else error for error in kept]

    @property
    def memories(self) -> list[Tensor]:
        held = [encoder.memory for encoder in self.encoders]
        return [torch.zeros(self.layout.numel, dtype=self.layout.dtype) if one is None else one for one in held]

    @property
    def remembered(self) -> Tensor:
        held = self.decoder.state_dict().get("memory")
        if held is None:
            return torch.zeros(self.layout.numel, dtype=self.layout.dtype)
        return torch.cat([held[name].reshape(-1) for name in self.layout.names])

    def go_on(self, encoders: list[GDSECEncoder]) -> None:
        """Regroup: the receiver's memory becomes the sum of those who are there now."""
        self.encoders = encoders
        self.decoder.remember(total(self.memories))


def total(tensors: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(tensors)).sum(0)


def at_rest(compressor: GDSEC) -> GDSEC:
    return replace(compressor, silent="rests")


@dataclass(frozen=True)
class Quadratics:
    """f_m = |A_m theta - b_m|^2 / 2, another for each worker, and stiff: components move at different rates."""

    matrices: Tensor
    targets: Tensor

    @classmethod
    def random(cls, seed: int, size: int, numel: int) -> Quadratics:
        made = torch.Generator().manual_seed(seed)
        scales = torch.logspace(0, -1.5, numel, dtype=torch.float64)
        matrices = torch.randn(size, numel, numel, generator=made, dtype=torch.float64) * scales
        return cls(matrices, torch.randn(size, numel, generator=made, dtype=torch.float64))

    @property
    def hessian(self) -> Tensor:
        return torch.einsum("mij,mik->jk", self.matrices, self.matrices)

    @property
    def smoothness(self) -> float:
        return float(torch.linalg.eigvalsh(self.hessian)[-1])

    @property
    def strong_convexity(self) -> float:
        return float(torch.linalg.eigvalsh(self.hessian)[0])

    def residuals(self, theta: Tensor) -> Tensor:
        return self.matrices @ theta - self.targets

    def value(self, theta: Tensor) -> float:
        return float(self.residuals(theta).square().sum() / 2)

    def gradients(self, theta: Tensor) -> list[Tensor]:
        return list(torch.einsum("mij,mi->mj", self.matrices, self.residuals(theta)))

    @property
    def optimum(self) -> float:
        right = torch.einsum("mij,mi->j", self.matrices, self.targets)
        return self.value(torch.linalg.solve(self.hessian, right))
