"""`AllGather`: every member receives the messages of all members and adds them up itself, in the order of ranks.

    sparse   g ─▶ encoder ─▶ message ─▶ all-gather ─▶ replicated decoder ─▶ the mean
    dense    g ─▶ encoder.whole ─▶ all-reduce ─▶ decoder.decode_whole ─▶ the mean        state is kept
    bypass   g (once: + error) ─▶ all-reduce ─▶ the mean                              state is zero everywhere

Any compressor can travel this way. A member receives from all others, so this pays while messages are shorter than
`2 / M` of the gradient; `Crossover` decides for each bucket by predicted time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Unpack, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ropewalk.errors import ExchangeInvalid
from ropewalk.exchange.bucketed import BucketOptions
from ropewalk.exchange.compressors import make_compressor
from ropewalk.exchange.compressors.compressor import Compressor
from ropewalk.exchange.crossover import Crossover, Figures, Mode
from ropewalk.exchange.exchange import StepRecord
from ropewalk.exchange.groups.group import Group
from ropewalk.exchange.lanes import LanedExchange
from ropewalk.exchange.open_step import Agreement, Bucket, OpenStep
from ropewalk.exchange.traffic import ring_bytes


class AllGather(LanedExchange):
    """Averages gradients that are sent as messages of a compressor.

    Args:
        compressor: a compressor or its name.
        mode: "auto" decides by time; "sparse", "dense" or "bypass" always uses that mode.
        probe_every: number of steps after which "auto" measures the other modes again.
        options: see `BucketedExchange`.

    Raises:
        ExchangeInvalid: there is no such compressor or mode.
    """

    def __init__(
        self,
        compressor: str | Compressor,
        *,
        mode: str = "auto",
        probe_every: int = 500,
        **options: Unpack[BucketOptions],
    ) -> None:
        super().__init__(make_compressor(compressor), **options)
        if mode not in ("auto", *Mode):
            raise ExchangeInvalid(f"mode={mode!r} is not a mode; choose auto, {', '.join(Mode)}")
        self._mode = None if mode == "auto" else Mode(mode)
        self._probe_every = probe_every
        self._crossovers: dict[int, Crossover] = {}
        self._measured: dict[int, Figures] = {}
        """What this member measured in the last step, and what all members agreed on, by bucket."""
        self._told: dict[int, Figures] = {}
        self._agreed: dict[int, Figures] = {}

    # The agreement on the mode of each bucket.

    def prepare(self, bucket: Bucket) -> None:
        super().prepare(bucket)
        self._reset(bucket)

    def regroup(self, group: Group) -> None:
        super().regroup(group)
        for bucket in self._buckets:
            self._reset(bucket)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        for bucket in self._buckets:
            self._reset(bucket)

    def _reset(self, bucket: Bucket) -> None:
        dense_bytes = ring_bytes(bucket.layout.size_bytes, self.group.size)
        self._crossovers[bucket.index] = Crossover(dense_bytes, self._mode, probe_every=self._probe_every)
        self._measured.pop(bucket.index, None)

    @property
    def keeps_state(self) -> bool:
        return super().keeps_state and not self._all_bypass

    @property
    def _all_bypass(self) -> bool:
        """Whether every bucket bypasses its lane in the next step too, so that there is nothing to agree on."""
        crossovers = self._crossovers.values()
        return bool(crossovers) and not (
            self._syncs
            or self._fresh
            or any(lane.holds for lane in self._lanes.values())
            or any(crossover.coming is not Mode.BYPASS for crossover in crossovers)
        )

    def _open(self, record: StepRecord) -> None:
        # Taken here, where every member is at the same point: buckets may change while the step runs.
        self._told = dict(sorted(self._measured.items()))
        super()._open(record)

    @property
    def must_agree(self) -> bool:
        times_matter = self._mode is None and not self._all_bypass
        return super().must_agree or times_matter

    def further_facts(self) -> list[int]:
        facts: list[int] = []
        for figures in self._told.values():
            facts += [round(figures.local_s * 1e9), round(figures.transfer_s * 1e9), figures.size_bytes]
        return facts

    def hear_facts(self, told: Sequence[Sequence[int]]) -> None:
        self._agreed = {
            index: Figures.agreed(Figures(theirs[at] / 1e9, theirs[at + 1] / 1e9, theirs[at + 2]) for theirs in told)
            for at, index in zip(range(0, 3 * len(self._told), 3), self._told, strict=True)
        }

    def sync_bucket(self, bucket: Bucket, agreement: Agreement) -> None:
        super().sync_bucket(bucket, agreement)
        self._reset(bucket)

    # The transport of a bucket.

    def reduce_bucket(self, bucket: Bucket, step: OpenStep) -> Callable[[], None] | None:
        crossover = self._crossovers[bucket.index]
        mode = crossover.advance(self._agreed.pop(bucket.index, None))
        self._measured.pop(bucket.index, None)
        if mode is Mode.BYPASS:
            return self._bypass(bucket, step)
        if (own := step.own_factor(self.group.rank)) != 1.0:
            bucket.flat.mul_(own)
        figures = (self._dense if mode is Mode.DENSE else self._sparse)(bucket, step)
        if crossover.measured:
            self._measured[bucket.index] = figures
        return None

    def _sparse(self, bucket: Bucket, step: OpenStep) -> Figures:
        lane, group = self._lanes[bucket.index], self.group
        began = time.perf_counter()
        with self.timed("encode", bucket.index):
            message = lane.encoder.encode(bucket.flat, lane.round_of(step, group))
        self.tell_sent(bucket, Mode.SPARSE, message.num_values)
        self.count_layers(message.layers, group.size - 1)
        encoded = time.perf_counter()
        with self.timed("transfer", bucket.index):
            heard = group.all_gather(_view(message.data), [], f"bucket {bucket.index}")
        arrived = time.perf_counter()
        with self.timed("decode", bucket.index):
            total = lane.sum_buffer()
            assert lane.decoder is not None
            lane.decoder.decode({rank: data for rank, (data, _) in enumerate(heard)}, total)
            self._apply(bucket, step, total)
        ended = time.perf_counter()
        received = sum(len(data) for data, _ in heard) - len(message.data)
        return Figures(encoded - began + ended - arrived, arrived - encoded, received)

    def _dense(self, bucket: Bucket, step: OpenStep) -> Figures:
        lane = self._lanes[bucket.index]
        began = time.perf_counter()
        with self.timed("encode", bucket.index):
            whole = lane.encoder.whole(bucket.flat, lane.round_of(step, self.group))
            said = bucket.flat if whole is None else whole
        self.tell_sent(bucket, Mode.DENSE, said.numel())
        encoded = time.perf_counter()
        self.begin_sum(bucket, said)()
        arrived = time.perf_counter()
        with self.timed("decode", bucket.index):
            total = lane.sum_buffer()
            assert lane.decoder is not None
            lane.decoder.decode_whole(said, total)
            self._apply(bucket, step, total)
        ended = time.perf_counter()
        return Figures(encoded - began + ended - arrived, arrived - encoded, ring_bytes(said.nbytes, self.group.size))

    def _bypass(self, bucket: Bucket, step: OpenStep) -> Callable[[], None]:
        lane, flat = self._lanes[bucket.index], bucket.flat
        self.tell_sent(bucket, Mode.BYPASS, flat.numel())
        if not lane.holds:
            flat.mul_(step.agreed.weight(self.group.rank))
            return self.begin_sum(bucket, flat)
        flat.mul_(step.own_factor(self.group.rank))
        if lane.encoder.error is not None:
            flat.add_(lane.encoder.error)
        lane.flush_at_commit()
        arrive = self.begin_sum(bucket, flat)

        def complete() -> None:
            arrive()
            flat.mul_(step.mean_factor)

        return complete

    def _apply(self, bucket: Bucket, step: OpenStep, total: Tensor) -> None:
        """Record the sum as the applied update, and turn it into the mean."""
        self._lanes[bucket.index].apply(total)
        torch.mul(total, step.mean_factor, out=bucket.flat)


def _view(data: NDArray[np.uint8]) -> memoryview:
    return memoryview(cast(Any, data))
