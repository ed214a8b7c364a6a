"""The interface of compressors: an encoder with state at the worker, a decoder with state at the receiver.

                 worker                                         receiver (a server, or every worker)
    gradient ─▶ Encoder.encode ─▶ Message (bytes) ─▶ link ─▶ Decoder.decode(messages of all) ─▶ sum applied
                 state: residual, memory                        state: sum of memories

A `Compressor` is the configuration: frozen, picklable, the same on all members. Its encoders and decoders handle one
bucket each: a flat tensor whose `Layout` says which parameter lies where. State changes only in `commit`, so a step can
be taken back. There are two kinds of payload:

- `Encoder.encode` makes a `Message`: bytes for a decoder. Every compressor has it.
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
    """What an encoder is told in addition to the gradient.

    Attributes:
        step: counts rounds, from 0; seeds random choices that are the same on every member.
        rank: rank of this member.
        size: number of members.
        samples: number of samples in this member's gradient; 0 where it has none, and `encode` then gets zeros.
        applied: the sum of all members' messages that the receiver applied in the last round, flat; None in the first
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
    """The worker's side of a compressor, for one bucket.

    Attributes:
        layout: layout of the bucket.
        replicated: names of the states in `state_dict` that are the same on every member; a joining member takes them
            over.
    """

    layout: Layout
    replicated: tuple[str, ...] = ()

    @abc.abstractmethod
    def encode(self, gradient: Tensor, round_: Round) -> Message:
        """Make the message for a gradient. The state does not change before `commit`.

        Args:
            gradient: flat, as the layout says, not changed here; this member's part of the mean, by its samples.
            round_: see `Round`.

        Returns:
            The message; empty if this member is silent.
        """

    @abc.abstractmethod
    def commit(self) -> None:
        """Take over the state that `encode` prepared, because the round has succeeded."""

    @abc.abstractmethod
    def abort(self) -> None:
        """Drop the state that `encode` prepared, if any, because the round failed."""

    @property
    def error(self) -> Tensor | None:
        """The residual, flat: what was kept back so far and will be sent later; None where nothing is kept back."""
        return None

    def take_error(self, error: Tensor) -> None:
        """Add the residual of a leaving member, flat, to this member's own."""
        if self.error is None:
            raise ValueError(f"{type(self).__name__} keeps nothing back")
        self.error.add_(error)

    @property
    def memory(self) -> Tensor | None:
        """This worker's part of the sum that decoders remember (GD-SEC's h_m), flat; None where there is none."""
        return None

    def flush(self) -> None:  # noqa: B027  (most encoders have no state to reset)
        """Set residual and memory to zero: the residual was sent, and from now on gradients travel whole."""

    def whole(self, gradient: Tensor, round_: Round) -> Tensor | None:
        """Return what would be sent if nothing were left out, flat: for one dense all-reduce, where that is faster.

        The state is kept as after `encode` with a threshold of zero (at `commit`). None: the gradient itself is sent.
        """
        return None

    @abc.abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Return copies of the state, by its name and then by parameter, such as `{"error": {"fc.weight": tensor}}`."""

    @abc.abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load state; parameters that are not in it keep theirs, others are ignored."""


class SummableEncoder(Encoder):
    """An encoder whose payload may be summed over members as it is."""

    @abc.abstractmethod
    def summand(self, gradient: Tensor, round_: Round) -> Tensor:
        """Return the tensor that members sum up, of the same numel and dtype on all; the caller may overwrite it."""

    def next_summand(self, total: Tensor) -> Tensor | None:
        """Return a further tensor to sum, given the last sum (PowerSGD needs two); None when that was the last."""
        return None

    @abc.abstractmethod
    def decode_sum(self, total: Tensor, out: Tensor) -> None:
        """Write the sum of all members' gradients, as the payloads represent it, to `out` (flat, as the layout says).

        Linear in `total`; may be called several times in a round, and the last call counts.
        """


class Decoder(abc.ABC):
    """The receiver's side, for one bucket; every replica of it computes the same bits."""

    layout: Layout

    @abc.abstractmethod
    def decode(self, messages: Mapping[int, memoryview], out: Tensor) -> None:
        """Write the sum to apply to `out` (flat, as the layout says).

        The state does not change before `commit`.

        Args:
            messages: by rank, added in the order of ranks; a silent member has an empty message or none.
            out: overwritten.

        Raises:
            MessageCorrupt: no encoder of this layout can have made these bytes; names the sender's rank.
        """

    @abc.abstractmethod
    def commit(self) -> None: ...

    @abc.abstractmethod
    def abort(self) -> None: ...

    def decode_whole(self, total: Tensor, out: Tensor) -> None:
        """Decode like `decode`, but from the sum of the results of `Encoder.whole` on all members."""
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
    """The configuration of a method that sends less than a whole gradient. Implementations are frozen dataclasses.

    Attributes:
        name: name in the table of compressors.
        summable: whether payloads may be summed by an all-reduce (its encoders are `SummableEncoder`s).
        keeps_memory: whether decoders remember a sum over members, which must follow changes of membership.
        stale_safe: whether gradients of older weights may be mixed in (False for GD-SEC in averaged form).
        transparent: whether no state is kept between rounds, and NaN or infinity of a member always reaches the sum of
            all; members then need not tell each other of it.
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
        """Return the form of this compressor that `ErrorFeedback` wraps; by default the compressor itself.

        Raises:
            ExchangeInvalid: there is no error to keep, errors are kept already, or the decoder's result is not the sum
                of the members' messages.
        """
        return self
