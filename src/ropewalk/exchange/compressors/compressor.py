"""The family of compressors: an encoder with state at the worker, a decoder with state at the receiver.

                 worker                                         receiver (a server, or every worker)
    gradient ─▶ Encoder.encode ─▶ Message (bytes) ─▶ link ─▶ Decoder.decode(messages of all) ─▶ sum applied
                 state: error kept, memory                      state: sum of memories

A `Compressor` is the configuration: frozen, picklable, the same everywhere. Its encoders and decoders handle one
bucket each: a flat tensor whose `Layout` says which parameter lies where. State changes only in `commit`, so a
step can be taken back. Two shapes of payload:

- `Encoder.encode` makes a `Message`: bytes for whoever can decode them. Every compressor has it.
- Where payloads can be summed as they are (`summable`), `SummableEncoder` also makes tensors for an all-reduce.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from ropewalk.exchange.buckets import Layout
from ropewalk.exchange.message import Message


@dataclass(frozen=True, slots=True)
class Round:
    """What an encoder is told beside the gradient.

    Attributes:
        step: counts rounds, from 0; seeds what is random, the same on every member.
        rank: of this member.
        size: number of members.
        samples: of this member's gradient; 0 where it has none, and what arrives at `encode` is zero.
        applied: what the receiver applied in the last round: the flat sum of what members said; None in the first
            round. Must not be changed.
        participates: False where a member is to stay silent in this round (round robin, partial participation).
    """

    step: int
    rank: int = 0
    size: int = 1
    samples: float = 1.0
    applied: Tensor | None = None
    participates: bool = True


class Encoder(abc.ABC):
    """A worker's half, for one bucket.

    Attributes:
        layout: of the bucket.
        replicated: names of the states in `state_dict` that are the same on every member; who joins takes them over.
    """

    layout: Layout
    replicated: tuple[str, ...] = ()

    @abc.abstractmethod
    def encode(self, gradient: Tensor, round_: Round) -> Message:
        """Say what the receiver shall hear of this gradient. The state changes at `commit` only; not before.

        Args:
            gradient: flat, of the layout, not changed here; this member's part of the mean, by its samples.
            round_: see `Round`.
        """

    @abc.abstractmethod
    def commit(self) -> None:
        """The round is done: take over the state that `encode` prepared."""

    @abc.abstractmethod
    def abort(self) -> None:
        """The round did not happen: forget what `encode` prepared. Nothing if there is nothing."""

    @property
    def error(self) -> Tensor | None:
        """What was kept back so far and will be sent later, flat; None where nothing ever is."""
        return None

    def take_error(self, error: Tensor) -> None:
        """Take over what a member that leaves kept back, flat; added to the own."""
        if self.error is None:
            raise ValueError(f"{type(self).__name__} keeps nothing back")
        self.error.add_(error)

    @property
    def memory(self) -> Tensor | None:
        """This worker's part of the sum that decoders remember (GD-SEC's h_m), flat; None where there is none."""
        return None

    def flush(self) -> None:  # noqa: B027  (most have nothing to forget)
        """Set error and memory to zero: the error was sent, and from now on gradients travel whole."""

    def whole(self, gradient: Tensor, round_: Round) -> Tensor | None:
        """What would be said if nothing was left out, flat: for one dense all-reduce, where that is quicker.

        The state is kept as after `encode` with a threshold of zero (at `commit`). None: the gradient itself.
        """
        return None

    @abc.abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """State by its name and then by parameter, such as `{"error": {"fc.weight": tensor}}`, as copies."""

    @abc.abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over state; parameters that are not in it keep theirs, others are ignored."""


class SummableEncoder(Encoder):
    """An encoder whose payload may be summed over members as it is."""

    @abc.abstractmethod
    def summand(self, gradient: Tensor, round_: Round) -> Tensor:
        """The tensor that members sum up; the caller may overwrite it. The same numel and dtype on every member."""

    def next_summand(self, total: Tensor) -> Tensor | None:
        """A further tensor to sum, given the last sum (PowerSGD needs two); None when that was the last."""
        return None

    @abc.abstractmethod
    def decode_sum(self, total: Tensor, out: Tensor) -> None:
        """Write the sum of all members' gradients, as far as the payload says, to `out` (flat, of the layout).

        Linear in `total`; may be called several times in a round, and what the last call was given counts.
        """


class Decoder(abc.ABC):
    """The receiver's half, for one bucket; every replica of it computes the same bits."""

    layout: Layout

    @abc.abstractmethod
    def decode(self, messages: Mapping[int, memoryview], out: Tensor) -> None:
        """Write to `out` (flat, of the layout) the sum to apply.

        The state changes at `commit` only.

        Args:
            messages: by rank, added in the order of ranks; an empty one, or none, for who is silent.
            out: overwritten.

        Raises:
            MessageCorrupt: bytes that no encoder of this layout can have made; says whose.
        """

    @abc.abstractmethod
    def commit(self) -> None: ...

    @abc.abstractmethod
    def abort(self) -> None: ...

    def decode_whole(self, total: Tensor, out: Tensor) -> None:
        """As `decode`, given the sum of what `Encoder.whole` gave on all members."""
        out.copy_(total)

    @abc.abstractmethod
    def remember(self, total: Tensor) -> None:
        """Replace the memory by `total`, the sum of the `memory` of all encoders; nothing where there is no memory."""

    @abc.abstractmethod
    def flush(self) -> None:
        """Set the memory to zero, when all encoders do; nothing where there is none."""

    @abc.abstractmethod
    def state_dict(self) -> dict[str, Any]: ...

    @abc.abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class Compressor(abc.ABC):
    """The configuration of a way to say less than a whole gradient. Members are frozen dataclasses.

    Attributes:
        name: in the table of compressors.
        summable: whether payloads may be summed by an all-reduce (its encoders are `SummableEncoder`s).
        keeps_memory: whether decoders remember a sum over members, which must follow changes of them.
        stale_safe: whether gradients of older weights may be mixed in (False for GD-SEC in averaged form).
        transparent: whether nothing is kept from round to round, and NaN or infinity of a member always reaches the sum
            of all; members then need not tell each other of it.
    """

    name: ClassVar[str]
    summable: bool = False
    keeps_memory: bool = False
    stale_safe: bool = True
    transparent: bool = False

    @abc.abstractmethod
    def encoder(self, layout: Layout) -> Encoder: ...

    @abc.abstractmethod
    def decoder(self, layout: Layout) -> Decoder: ...

    def under_error_feedback(self) -> Compressor:
        """What `ErrorFeedback` is to wrap: this, or what it becomes where errors are kept and sent later.

        Raises:
            ExchangeInvalid: there is nothing to keep, errors are kept already, or what decoders give is not the sum of
                what each member's message says.
        """
        return self
