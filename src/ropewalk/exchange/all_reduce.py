"""`AllReduce`: averages gradients by summation over all members, of whole gradients or of summable payloads.

whole        flat * weight ─▶ all-reduce ─▶ the mean                         bit for bit DDP's result
compressed   encoder.summand ─▶ all-reduce ─▶ (next_summand ─▶ all-reduce)* ─▶ decode_sum ─▶ the mean
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Unpack

from ropewalk.errors import ExchangeInvalid
from ropewalk.exchange.bucketed import BucketOptions
from ropewalk.exchange.buckets import Layout
from ropewalk.exchange.compressors import make_compressor
from ropewalk.exchange.compressors.compressor import Compressor, SummableEncoder
from ropewalk.exchange.crossover import Mode
from ropewalk.exchange.lanes import BucketLane, LanedExchange
from ropewalk.exchange.open_step import Bucket, OpenStep


class AllReduce(LanedExchange):
    """Averages gradients by all-reduce.

    Example:
        >>> import torch
        >>> import ropewalk as rw
        >>> def member(group):  # each of two threads; under torchrun or in a RankGroup, leave out `group=`
        ...     weight = torch.nn.Parameter(torch.zeros(2))
        ...     sgd = torch.optim.SGD([weight], lr=1.0)
        ...     optimizer = rw.exchange.DistributedOptimizer(sgd, rw.exchange.AllReduce("half"), group=group)
        ...     (weight * torch.tensor([1.0, 3.0 * group.rank])).sum().backward()
        ...     optimizer.step()
        ...     return weight.tolist()
        >>> rw.exchange.run_members(rw.exchange.ThreadGroup.make(2), member)
        [[-1.0, -1.5], [-1.0, -1.5]]

    Args:
        compressor: a compressor whose payloads can be summed, or its name: "none", "half", "random_k", "low_rank", ...
        options: see `BucketedExchange`.

    Raises:
        ExchangeInvalid: payloads of this compressor cannot be summed.
    """

    def __init__(self, compressor: str | Compressor = "none", **options: Unpack[BucketOptions]) -> None:
        made = make_compressor(compressor)
        if not made.summable:
            raise ExchangeInvalid(
                f"payloads of {made.name!r} cannot be summed on the way, so no all-reduce can carry them; use "
                f"AllGather({made.name!r}), where every member gets all payloads, or "
                f"ParameterServer(..., compressor={made.name!r})"
            )
        super().__init__(made, **options)

    @property
    def takes_complex(self) -> bool:
        return self._compressor.name == "none"

    def make_lane(self, layout: Layout) -> BucketLane:
        return BucketLane(self._compressor.encoder(layout))

    def reduce_bucket(self, bucket: Bucket, step: OpenStep) -> Callable[[], None]:
        if self._compressor.name == "none":
            return self._reduce_whole(bucket, step)
        return self._reduce_summands(bucket, step)

    def _reduce_whole(self, bucket: Bucket, step: OpenStep) -> Callable[[], None]:
        self.tell_sent(bucket, Mode.DENSE, bucket.layout.numel)
        flat = bucket.flat.mul_(step.agreed.weight(self.group.rank))
        return self.begin_sum(bucket, flat)

    def _reduce_summands(self, bucket: Bucket, step: OpenStep) -> Callable[[], None]:
        lane, flat = self._lanes[bucket.index], bucket.flat
        encoder = lane.encoder
        assert isinstance(encoder, SummableEncoder)
        with self.timed("encode", bucket.index):
            if (own := step.own_factor(self.group.rank)) != 1.0:
                flat.mul_(own)
            summand = encoder.summand(flat, lane.round_of(step, self.group))
        self.tell_sent(bucket, Mode.DENSE, summand.numel())
        arrive = self.begin_sum(bucket, summand)
        # Most encoders have one summand. A second one depends on the sum of the first; it too is begun on this thread.
        if type(encoder).next_summand is not SummableEncoder.next_summand:
            arrive()
            while (following := encoder.next_summand(summand)) is not None:
                summand = following
                self.begin_sum(bucket, summand)()

        def complete() -> None:
            arrive()
            with self.timed("decode", bucket.index):
                encoder.decode_sum(summand, flat)
                flat.mul_(step.mean_factor)

        return complete
