"""Members that run rounds of an exchange in one thread, for the conformance suite of compressors."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from ropewalk.errors import MessageCorrupt
from ropewalk.exchange.buckets import Layout
from ropewalk.exchange.compressors.compressor import Compressor, Decoder, Round, SummableEncoder

NUM_MEMBERS = 3
_SAMPLES = (1.0, 2.0, 0.5)
"""The weight of each member's gradient."""

_TOLERANCE = {torch.float64: 1e-11, torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}
"""The relative rounding error of sums that is allowed, against the largest magnitude that was summed."""


class Team:
    """Members that send each other's messages to one decoder, in a run that is the same every time."""

    def __init__(self, compressor: Compressor, layout: Layout) -> None:
        self.compressor = compressor
        self.layout = layout
        self.encoders = [compressor.encoder(layout) for _ in range(NUM_MEMBERS)]
        self.decoder = compressor.decoder(layout)
        self.applied: Tensor | None = None
        self.summed_in = layout.dtype
        """The dtype of the last sum, which also rounds."""
        self._chance = torch.Generator().manual_seed(7)
        self._step = 0
        self.samples = list(_SAMPLES)
        self.gradients = self._next_gradients()

    def at(self, rank: int, *, participates: bool = True, samples: float | None = None) -> Round:
        samples = self.samples[rank] if samples is None else samples
        return Round(self._step, rank, NUM_MEMBERS, samples, self.applied, participates=participates)

    def idle(self, rank: int) -> None:
        """Give a member no samples in this round."""
        self.samples[rank] = 0.0
        self.gradients[rank].zero_()

    def encode(self, quiet: int = -1) -> dict[int, memoryview]:
        """Return the messages of all members, of which `quiet` is silent."""
        return {
            rank: memoryview(encoder.encode(gradient, self.at(rank, participates=rank != quiet)).data.tobytes())
            for rank, (encoder, gradient) in enumerate(zip(self.encoders, self.gradients, strict=True))
        }

    def encode_whole(self) -> Tensor:
        """Return the sum of the members' whole gradients and kept errors."""
        whole = [
            encoder.whole(gradient, self.at(rank))
            for rank, (encoder, gradient) in enumerate(zip(self.encoders, self.gradients, strict=True))
        ]
        return _sum([gradient if part is None else part for part, gradient in zip(whole, self.gradients, strict=True)])

    def sum_up(self, quiet: int = -1) -> list[Tensor]:
        """Return the sum as each member decodes it."""
        encoders = [encoder for encoder in self.encoders if isinstance(encoder, SummableEncoder)]
        summands: list[Tensor | None] = [
            encoder.summand(gradient, self.at(rank, participates=rank != quiet))
            for rank, (encoder, gradient) in enumerate(zip(encoders, self.gradients, strict=True))
        ]
        total = self.gradients[0]
        while present := [summand for summand in summands if summand is not None]:
            assert len(present) == NUM_MEMBERS, "some members have another summand, and some have none"
            assert len({(summand.dtype, summand.shape) for summand in present}) == 1, "summands do not fit together"
            total = _sum(present)
            for summand, gradient in zip(present, self.gradients, strict=True):
                if summand.data_ptr() != gradient.data_ptr():
                    # The caller owns summands, unless they are its own gradient.
                    summand.fill_(7)
            self.summed_in = total.dtype
            summands = [encoder.next_summand(total.clone()) for encoder in encoders]
        outs = [torch.full_like(self.gradients[0], 7) for _ in encoders]
        for encoder, out in zip(encoders, outs, strict=True):
            encoder.decode_sum(total.clone(), out)
        return outs

    def play(self, quiet: int = -1) -> Tensor:
        """Run one round; returns the sum that is applied."""
        out = torch.full_like(self.gradients[0], 7)
        self.decoder.decode(self.encode(quiet), out)
        return self.commit(out)

    def play_whole(self) -> Tensor:
        """Run a round that leaves nothing out; returns the sum that is applied."""
        out = torch.full_like(self.gradients[0], 7)
        self.decoder.decode_whole(self.encode_whole(), out)
        return self.commit(out)

    def commit(self, applied: Tensor) -> Tensor:
        for half in (*self.encoders, self.decoder):
            half.commit()
        self.applied = applied
        self._step += 1
        self.samples = list(_SAMPLES)
        self.gradients = self._next_gradients()
        return applied

    def abort(self) -> None:
        for half in (*self.encoders, self.decoder):
            half.abort()

    def states(self) -> list[dict[str, Any]]:
        return [half.state_dict() for half in (*self.encoders, self.decoder)]

    def through_single_parameters(self) -> Team:
        """Return a team with this team's state, saved and loaded through buckets of one parameter each."""
        other = Team(self.compressor, self.layout)
        other.applied, other._step, other.gradients = self.applied, self._step, self.gradients
        other._chance.set_state(self._chance.get_state())
        for half, new_half, make in zip(
            (*self.encoders, self.decoder),
            (*other.encoders, other.decoder),
            [self.compressor.encoder] * NUM_MEMBERS + [self.compressor.decoder],
            strict=True,
        ):
            parts: dict[str, Any] = {}
            for entry in self.layout.entries:
                single = make(Layout((entry,)))
                single.load_state_dict(half.state_dict())
                for kind, state in single.state_dict().items():
                    parts[kind] = {**parts.get(kind, {}), **state} if isinstance(state, Mapping) else state
            new_half.load_state_dict(parts)
        return other

    def errors(self) -> Tensor:
        """Return the sum of all kept errors."""
        return self.zeros() + sum(encoder.error.double() for encoder in self.encoders if encoder.error is not None)

    def true_sum(self) -> Tensor:
        return _sum([gradient.double() for gradient in self.gradients])

    def zeros(self) -> Tensor:
        return torch.zeros(self.layout.numel, dtype=torch.float64, device=self.layout.device)

    def _next_gradients(self) -> list[Tensor]:
        """Draw gradients with a common part and one of each member; some components are zero."""
        common = torch.randn(self.layout.numel, generator=self._chance, dtype=torch.float64)
        own = torch.randn(NUM_MEMBERS, self.layout.numel, generator=self._chance, dtype=torch.float64)
        weights = torch.tensor(_SAMPLES, dtype=torch.float64).view(-1, 1)
        gradients = weights * (own + common) * (torch.arange(self.layout.numel) % 5 != 3)
        return list(gradients.to(self.layout.device, self.layout.dtype))


def _sum(parts: list[Tensor]) -> Tensor:
    return torch.stack(parts).sum(0)


def same(one: Tensor | None, other: Tensor | None) -> bool:
    """Return whether two tensors have the same bits, or both are absent."""
    if one is None or other is None:
        return one is other
    return torch.equal(one, other)


def equal_states(one: Any, other: Any) -> bool:
    """Return whether two states are equal: tensors and plain values, in lists and mappings."""
    if isinstance(one, Tensor):
        return torch.equal(one, other)
    if isinstance(one, Mapping):
        states = cast(Mapping[str, Any], one)
        return states.keys() == other.keys() and all(equal_states(state, other[at]) for at, state in states.items())
    if isinstance(one, list):
        return len(cast(list[Any], one)) == len(other) and all(map(equal_states, cast(list[Any], one), other))
    return one == other


T = TypeVar("T")


def copied(thing: T) -> T:
    """Return a copy by pickle, as another process would get it."""
    return pickle.loads(pickle.dumps(thing))  # noqa: S301 - its own bytes


def refusal(decoder: Decoder, messages: Mapping[int, memoryview], out: Tensor) -> MessageCorrupt | None:
    """Return the error with which a decoder refuses messages; None if it accepts them."""
    try:
        decoder.decode(messages, out)
    except MessageCorrupt as error:
        return error
    return None


def close(found: Tensor, expected: Tensor, complaint: str, team: Team) -> None:
    """Fail with the complaint unless two sums are equal up to rounding."""
    off = (found - expected).abs().max().item()
    size = 1 + expected.abs().max().item()
    assert off <= max(_TOLERANCE[team.layout.dtype], _TOLERANCE[team.summed_in]) * size, (
        f"{complaint}: off by {off:.3g} of {size:.3g} with {team.compressor!r}, {team.layout.dtype}"
    )


def damaged(data: bytes) -> Iterator[bytes]:
    """Yield bytes that are truncated, extended or changed, and random bytes."""
    chance = np.random.default_rng(11)
    for length in {0, 1, 2, 3, 7, len(data) // 2, len(data) - 1} & set(range(len(data))):
        yield data[:length]
    yield data + b"\0"
    yield data + data
    for _ in range(40):
        changed = bytearray(data)
        if changed:
            changed[chance.integers(min(len(changed), 16))] = chance.integers(256)
            changed[chance.integers(len(changed))] = chance.integers(256)
        yield bytes(changed)
        yield chance.bytes(int(chance.integers(64)))
