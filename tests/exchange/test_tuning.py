"""Tuning an exchange while it runs: other buckets, another factor, and the same weights on every member."""

import math

import pytest
import torch
from torch import nn
from torch.optim import SGD

from ropewalk.errors import ExchangeInvalid
from ropewalk.exchange import tuning
from ropewalk.exchange.all_gather import AllGather
from ropewalk.exchange.all_reduce import AllReduce
from ropewalk.exchange.broadcasting import broadcast_parameters
from ropewalk.exchange.buckets import BUCKET_BYTES
from ropewalk.exchange.compressors.gd_sec import GDSEC
from ropewalk.exchange.distributed_optimizer import DistributedOptimizer
from ropewalk.exchange.groups.thread_group import ThreadGroup, run_members
from ropewalk.exchange.tuning import ExchangeTuner


@pytest.fixture(scope="module", autouse=True)
def _first_optimizer() -> None:
    # The first one makes torch import its compiler, which threads had better not do at the same time.
    SGD([torch.zeros(1)])


class Clock:
    """Tells a time that the exchange's own configuration makes pass."""

    def __init__(self, exchange, cost) -> None:
        self.exchange, self.cost, self.now = exchange, cost, 0.0

    def __call__(self) -> float:
        self.now += self.cost(self.exchange)
        return self.now


def _train(group, exchange, cost, steps: int):
    model = nn.Sequential(*(nn.Linear(32, 32) for _ in range(4)))
    optimizer = DistributedOptimizer(SGD(model.parameters(), lr=0.01), exchange, model.named_parameters(), group)
    broadcast_parameters(model, group)  # a seed would be that of all threads
    tuner = ExchangeTuner(exchange, group, window=3, clock=Clock(exchange, cost))
    batches = torch.Generator().manual_seed(group.rank)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 32, generator=batches)).square().mean().backward()
        optimizer.step()
        tuner.after_step()
    optimizer.close()
    return tuner.done, torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def test_bucket_sizes_are_tried_and_the_quickest_stays() -> None:
    exchanges = [AllReduce() for _ in range(2)]

    def member(group):
        exchange = exchanges[group.rank]
        # As if small buckets were quicker, down to 1 MiB.
        return _train(group, exchange, lambda made: 1.0 + abs(made.bucket_bytes / (1 << 20) - 1), 40)

    (done, first), (_, second) = run_members(ThreadGroup.make(2), member)
    assert done and torch.equal(first, second)
    assert [exchange.bucket_bytes for exchange in exchanges] == [1 << 20] * 2


@pytest.mark.parametrize(("growth", "found"), [(math.inf, 100.0), (0.0, 10.0)])
def test_the_factor_of_gd_sec_grows_within_its_guard_unless_too_much_is_kept_back(monkeypatch, growth, found) -> None:
    monkeypatch.setattr(tuning, "ERROR_GROWTH", growth)
    exchanges = [AllGather(GDSEC(c=10.0, beta=0.01), mode="sparse") for _ in range(2)]

    def member(group):
        exchange = exchanges[group.rank]
        return _train(group, exchange, lambda made: 1 / made.compressor.c + made.bucket_bytes / BUCKET_BYTES, 80)

    (done, first), (_, second) = run_members(ThreadGroup.make(2), member)
    assert done and torch.equal(first, second) and first.isfinite().all()
    assert [getattr(exchange.compressor, "c", 0.0) for exchange in exchanges] == [found] * 2


@pytest.mark.parametrize("more", [{"momentum": 0.9}, {"factors": {"0.*": 10.0}}])
def test_no_factor_is_tried_that_the_guard_of_gd_sec_refuses(more) -> None:
    exchange = AllGather(GDSEC(c=10.0, beta=0.02, on_unstable="raise", **more), mode="sparse")
    group = ThreadGroup.make(1)[0]
    done, _ = _train(group, exchange, lambda made: 1 / made.compressor.c, 60)
    assert done
    assert getattr(exchange.compressor, "c", 0.0) == 10.0  # 30 would be quicker, and 2 / beta is 100


def test_buckets_that_were_the_quickest_already_stay() -> None:
    mine = 3 << 20
    exchange = AllReduce(bucket_bytes=mine)
    done, _ = _train(ThreadGroup.make(1)[0], exchange, lambda made: 1.0 + abs(made.bucket_bytes / mine - 1), 60)
    assert done
    assert exchange.bucket_bytes == mine


def test_only_exchanges_with_buckets_can_be_tuned() -> None:
    with pytest.raises(ExchangeInvalid, match="str has no buckets to tune"):
        ExchangeTuner("none", ThreadGroup.make(1)[0])  # pyright: ignore[reportArgumentType]
