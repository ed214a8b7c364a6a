"""`AllReduce`: the mean by sums over all members, of whole gradients or of payloads that can be summed as they are.

whole        flat * weight ─▶ all-reduce ─▶ the mean                         bit for bit what DDP computes
compressed   encoder.summand ─▶ all-reduce ─▶ (next_summand ─▶ all-reduce)* ─▶ decode_sum ─▶ / samples
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from torch import Tensor

from ropewalk.errors import ExchangeInvalid
from ropewalk.exchange.buckets import BUCKET_BYTES, FIRST_BUCKET_BYTES, Layout
from ropewalk.exchange.compressors import make_compressor
from ropewalk.exchange.compressors.compressor import Compressor, SummableEncoder
from ropewalk.exchange.groups.group import Work
from ropewalk.exchange.lanes import Lane, LanedExchange
from ropewalk.exchange.not_finite import NanPolicy
from ropewalk.exchange.observer import Observer
from ropewalk.exchange.open_step import Bucket, OpenStep
from ropewalk.exchange.traffic import ring_bytes


class AllReduce(LanedExchange):
    """Averages gradients by all-reduce.

    Args:
        compressor: a name or a compressor whose payloads can be summed: "none", "half", "random_k", "low_rank", ...
        bucket_bytes: see `BucketedExchange`, also for the rest.
        first_bucket_bytes: likewise.
        nan: likewise.
        observers: likewise.

    Raises:
        ExchangeInvalid: payloads of this compressor cannot be summed.
    """

    def __init__(
        self,
        compressor: str | Compressor = "none",
        *,
        bucket_bytes: int = BUCKET_BYTES,
        first_bucket_bytes: int = FIRST_BUCKET_BYTES,
        nan: NanPolicy = "pass",
        observers: Sequence[Observer] = (),
    ) -> None:
        self._compressor = make_compressor(compressor)
        if not self._compressor.summable:
            raise ExchangeInvalid(
                f"payloads of {self._compressor.name!r} cannot be summed on the way, so no all-reduce can carry them; "
                f"use AllGather({self._compressor.name!r}), where every member hears all payloads, or "
                f"ParameterServer(..., compressor={self._compressor.name!r})"
            )
        self._lanes = {}
        super().__init__(bucket_bytes=bucket_bytes, first_bucket_bytes=first_bucket_bytes, nan=nan, observers=observers)

    def make_lane(self, layout: Layout) -> Lane:
        return Lane(self._compressor.encoder(layout))

    def reduce_bucket(self, bucket: Bucket, step: OpenStep) -> Callable[[], None]:
        if self._compressor.name == "none":
            return self._reduce_whole(bucket, step)
        return self._reduce_summands(bucket, step)

    def _reduce_whole(self, bucket: Bucket, step: OpenStep) -> Callable[[], None]:
        flat = bucket.flat.mul_(step.agreed.weight(self.group.rank))
        return partial(self._wait, bucket, self._begin_sum(bucket, flat))

    def _reduce_summands(self, bucket: Bucket, step: OpenStep) -> Callable[[], None]:
        lane, record, agreed = self._lanes[bucket.index], step.record, step.agreed
        encoder = lane.encoder
        assert isinstance(encoder, SummableEncoder)
        flat = bucket.flat
        with self.timed("encode", bucket.index):
            if (own := agreed.samples[self.group.rank] / record.scale) != 1.0:
                flat.mul_(own)
            summand = encoder.summand(flat, lane.round_of(step, self.group))
        work = self._begin_sum(bucket, summand)
        # Most have one summand; a second one depends on the sum of the first, and is begun on this thread like all.
        if type(encoder).next_summand is not SummableEncoder.next_summand:
            while True:
                self._wait(bucket, work)
                following = encoder.next_summand(summand)
                if following is None:
                    break
                summand = following
                work = self._begin_sum(bucket, summand)
        factor = record.scale / agreed.total_samples if agreed.total_samples else 0.0

        def complete() -> None:
            self._wait(bucket, work)
            with self.timed("decode", bucket.index):
                encoder.decode_sum(summand, flat)
                if factor != 1.0:
                    flat.mul_(factor)

        return complete

    def _begin_sum(self, bucket: Bucket, summand: Tensor) -> Work:
        moved = ring_bytes(summand.nbytes, self.group.size)
        self.count_layers(_shares(bucket.layout, moved))
        self.tell_sent(bucket, "dense", summand.numel())
        return self.group.all_reduce(summand, f"bucket {bucket.index}")

    def _wait(self, bucket: Bucket, work: Work) -> None:
        with self.timed("transfer", bucket.index):
            work.wait()


def _shares(layout: Layout, size_bytes: int) -> dict[str, int]:
    """Bytes by parameter, as its components are; they add up."""
    ends = [round(part.stop / layout.numel * size_bytes) for part in layout.slices.values()]
    return {name: end - start for name, start, end in zip(layout.names, [0, *ends[:-1]], ends, strict=True)}
