"""Lanes: the compression state of one bucket (`BucketLane`), and exchanges that have lanes (`LanedExchange`).

bucket ── lane: encoder (h_m, e_m) · decoder (h, the same on every member) · the update applied in the last round
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Unpack

import torch
from torch import Tensor

from ropewalk.errors import ExchangeInvalid
from ropewalk.exchange.bucket_store import State
from ropewalk.exchange.bucketed import BucketedExchange, BucketOptions
from ropewalk.exchange.buckets import BucketEntry, Layout, check_real
from ropewalk.exchange.compressors.compressor import Compressor, Decoder, Encoder, Round
from ropewalk.exchange.exchange import ExchangeReport
from ropewalk.exchange.groups.group import Group
from ropewalk.exchange.open_step import Agreement, Bucket, OpenStep
from ropewalk.exchange.packed_state import pack, part_of_state, unpack
from ropewalk.exchange.traffic import ring_bytes


class BucketLane:
    """The compression state of one bucket.

    Args:
        encoder: the worker's side.
        decoder: the receiver's side; None where sums are decoded by the encoder.

    Attributes:
        applied: the sum of the last round, flat; None if there was none, or it bypassed this lane.
        holds: whether residuals or memories may be other than zero.
    """

    def __init__(self, encoder: Encoder, decoder: Decoder | None = None) -> None:
        self.encoder = encoder
        self.decoder = decoder
        self.layout: Layout = encoder.layout
        self.applied: Tensor | None = None
        self.holds: bool = False
        self._spare: Tensor | None = None
        self._next: Tensor | None = None
        self._begun = self._flushes = False

    def round_of(self, step: OpenStep, group: Group) -> Round:
        """Return the facts for the encoder about the step that begins."""
        self._begun = True
        return Round(
            step=step.record.step,
            rank=group.rank,
            size=group.size,
            samples=step.agreed.samples[group.rank],
            applied=self.applied,
        )

    def sum_buffer(self) -> Tensor:
        """A buffer for the sum of this round; the previously applied sum stays until `commit`."""
        if self._spare is None:
            self._spare = torch.empty(self.layout.numel, dtype=self.layout.dtype, device=self.layout.device)
        return self._spare

    def apply(self, total: Tensor) -> None:
        """Prepare `total`, which lies in `sum_buffer`, as the applied update."""
        self._next = total

    def flush_at_commit(self) -> None:
        """Let gradients bypass this lane from now on: the residual is sent with the first of them."""
        self._flushes = True

    def commit(self) -> None:
        if self._begun:
            self.encoder.commit()
            if self.decoder is not None:
                self.decoder.commit()
            if self._next is not None:
                self._spare, self.applied = self.applied, self._next
            self.holds = True
        elif self._flushes:
            self.encoder.flush()
            if self.decoder is not None:
                self.decoder.flush()
            self.applied, self.holds = None, False
        self._settle()

    def abort(self) -> None:
        if self._begun:
            self.encoder.abort()
            if self.decoder is not None:
                self.decoder.abort()
        self._settle()

    def _settle(self) -> None:
        self._next, self._begun, self._flushes = None, False, False

    def state(self) -> State:
        """Return the whole state, by kind and then by parameter."""
        state: State = {f"encoder.{kind}": part for kind, part in self.encoder.state_dict().items()}
        return state | self._shared()

    def load(self, state: Mapping[str, Any]) -> None:
        """Load the state of this lane's parameters."""
        self.holds = True
        self.encoder.load_state_dict(part_of_state(state, "encoder."))
        if self.decoder is not None:
            self.decoder.load_state_dict(part_of_state(state, "decoder."))
        applied: Mapping[str, Tensor] = state.get("applied", {})
        if all(name in applied for name in self.layout.names):
            self.applied = torch.empty(self.layout.numel, dtype=self.layout.dtype, device=self.layout.device)
            self.layout.fill(self.applied, applied)

    def replicated(self) -> State:
        """Return the part of the state that is the same on every member."""
        kinds: Iterable[str] = getattr(self.encoder, "replicated", ())
        own = self.encoder.state_dict() if kinds else {}
        return {f"encoder.{kind}": own[kind] for kind in kinds if kind in own} | self._shared()

    def _shared(self) -> State:
        state: State = {}
        if self.decoder is not None:
            state |= {f"decoder.{kind}": part for kind, part in self.decoder.state_dict().items()}
        if self.applied is not None:
            state["applied"] = self.layout.by_name(self.applied)
        return state


class LanedExchange(BucketedExchange):
    """An exchange whose buckets have lanes.

    Args:
        compressor: the compressor of all buckets.
        options: see `BucketedExchange`.
    """

    def __init__(self, compressor: Compressor, **options: Unpack[BucketOptions]) -> None:
        super().__init__(**options)
        self._compressor = compressor
        self._lanes: dict[int, BucketLane] = {}

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._compressor!r}>"

    def bind(self, named_parameters: Iterable[tuple[str, Tensor]], group: Group) -> None:
        named = list(named_parameters)
        if not self.takes_complex:
            check_real([BucketEntry.of(*pair) for pair in named], repr(self))
        super().bind(named, group)

    @property
    def takes_complex(self) -> bool:
        """Whether gradients may be complex: they are never messages, which hold real numbers."""
        return False

    def make_lane(self, layout: Layout) -> BucketLane:
        """Make the lane of a new bucket."""
        return BucketLane(self._compressor.encoder(layout), self._compressor.decoder(layout))

    @property
    def compressor(self) -> Compressor:
        """The compressor of all buckets."""
        return self._compressor

    def set_compressor(self, compressor: Compressor) -> None:
        """Change the configuration of the compressor, of the same class, between two steps; the same on every member.

        Args:
            compressor: the new configuration, of the same class.

        Raises:
            ExchangeInvalid: `compressor` is of another class.
        """
        if type(compressor) is not type(self._compressor):
            raise ExchangeInvalid(f"{compressor!r} cannot go on with the state of {self._compressor!r}")
        self._compressor = compressor
        self.rebucket(self.layouts)

    @property
    def keeps_state(self) -> bool:
        return not self._compressor.transparent

    def prepare(self, bucket: Bucket) -> None:
        self._lanes[bucket.index] = self.make_lane(bucket.layout)

    def discard(self, bucket: Bucket) -> None:
        self._lanes.pop(bucket.index, None)

    def commit_bucket(self, bucket: Bucket) -> None:
        self._lanes[bucket.index].commit()

    def abort_bucket(self, bucket: Bucket) -> None:
        self._lanes[bucket.index].abort()

    def bucket_state(self, bucket: Bucket) -> State:
        return self._lanes[bucket.index].state()

    def load_bucket_state(self, bucket: Bucket, state: State) -> None:
        self._lanes[bucket.index].load(state)

    def sync_bucket(self, bucket: Bucket, agreement: Agreement) -> None:
        lane, group = self._lanes[bucket.index], self.group
        if agreement.fresh:
            shared = b""
            if group.rank == agreement.source:
                shared = pack(lane.replicated())
            told = group.all_gather(memoryview(shared), [], f"state of bucket {bucket.index}")
            if group.rank in agreement.fresh:
                lane.load(unpack(bytes(told[agreement.source][0]), lane.layout.device))
        memory = lane.encoder.memory
        if memory is not None and lane.decoder is not None:
            total = memory.clone()
            group.all_reduce(total, f"memory of bucket {bucket.index}").wait()
            lane.decoder.remember(total)

    def errors(self) -> dict[str, Tensor]:
        self._refuse_open_step("read the errors")
        self._buckets.make()  # they have the state of those that `rebucket` has dropped
        return {
            name: part
            for lane in self._lanes.values()
            if lane.encoder.error is not None
            for name, part in lane.layout.by_name(lane.encoder.error).items()
        }

    def take_errors(self, errors: Mapping[str, Tensor]) -> None:
        self._refuse_open_step("take errors")
        self._buckets.make()
        for lane in self._lanes.values():
            if lane.encoder.error is not None and any(name in errors for name in lane.layout.names):
                flat = torch.zeros_like(lane.encoder.error)
                lane.layout.fill(flat, errors)
                lane.encoder.take_error(flat)

    def error_norm(self) -> float:
        """Return the Euclidean norm of this member's residuals."""
        errors = [lane.encoder.error for lane in self._lanes.values()]
        return math.sqrt(sum(float(torch.dot(error, error)) for error in errors if error is not None))

    def report(self) -> ExchangeReport:
        return replace(super().report(), error_norm=self.error_norm())

    def begin_sum(self, bucket: Bucket, summand: Tensor) -> Callable[[], None]:
        """Begin to sum a tensor of a bucket over all members; the returned function waits for the sum."""
        self.count_layers(shares(bucket.layout, ring_bytes(summand.nbytes, self.group.size)))
        work = self.group.all_reduce(summand, f"bucket {bucket.index}")

        def arrive() -> None:
            with self.timed("transfer", bucket.index):
                work.wait()

        return arrive

    def count_layers(self, layers: Mapping[str, int], factor: float = 1) -> None:
        """Count payload bytes by parameter."""
        self.group.traffic.add_layers({name: round(factor * size) for name, size in layers.items()})


def shares(layout: Layout, size_bytes: int) -> dict[str, int]:
    """Divide a number of bytes among parameters in proportion to their components; the parts add up."""
    ends = [round(part.stop / max(1, layout.numel) * size_bytes) for part in layout.slices.values()]
    return {name: end - start for name, start, end in zip(layout.names, [0, *ends[:-1]], ends, strict=True)}
