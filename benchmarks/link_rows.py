"""Training over links of a given rate: the same shaped transport for every exchange, real processes, real sockets.

Members are the replicas of a service; their groups speak over the program's own links, which a token bucket holds
back. Exchanges take turns in the same processes. What is looked at between steps (the loss over all data) is not
part of the time.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from exchange_bench import Bench, Row
from pool_rows import Line, milliseconds
from sklearn.datasets import load_digits
from torch import Tensor, nn

import ropewalk as rw
from ropewalk.exchange.all_gather import AllGather
from ropewalk.exchange.all_reduce import AllReduce
from ropewalk.exchange.compressors.gd_sec import GDSEC
from ropewalk.exchange.exchange import Exchange, StepRecord
from ropewalk.exchange.groups.link_emulation import LinkEmulation
from ropewalk.exchange.groups.member import GroupMember

BATCH, RATE = 32, 0.2
#: Reached by every exchange; the loss over all digits.
TARGET, MAX_STEPS, LOOK_EVERY = 0.1, 400, 10
COMPONENTS = 25_000_000
#: The share of components that matters.
FEW = 0.01

EXCHANGES: dict[str, Callable[[], Exchange]] = {
    "dense": lambda: AllReduce(),
    "bf16": lambda: AllReduce("half"),
    "ropewalk": lambda: AllGather(GDSEC(c=100.0, beta=0.01)),
}


def network() -> nn.Sequential:
    """85,002 weights for digits."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))


class Racer(GroupMember):
    """One member."""

    def __init__(self, peers: Any) -> None:
        super().__init__()
        torch.set_num_threads(1)
        found: Any = load_digits()
        self._x = torch.from_numpy(found.data.astype(np.float32) / 16)
        self._y = torch.from_numpy(found.target)
        self._peers = peers

    @rw.concurrent(1)
    def race(self, epoch: int, name: str, rate: str) -> tuple[float, int, int]:
        """Train to the target; seconds, steps and payload bytes sent by this member."""
        node = rw.current_node()
        group = self.group(self._peers, epoch=epoch, shaping=LinkEmulation(rate))
        model, exchange = network(), EXCHANGES[name]()
        optimizer = torch.optim.SGD(model.parameters(), RATE)
        exchange.bind(model.named_parameters(), group)
        order = torch.Generator().manual_seed(node.replica)
        gone_s, step = 0.0, 0
        for step in range(MAX_STEPS):
            begun = time.monotonic()
            chosen = torch.randint(len(self._x) // node.replicas, (BATCH,), generator=order)
            one_step(model, optimizer, exchange, step, *self._share(chosen, node.replica, node.replicas))
            gone_s += time.monotonic() - begun
            if step % LOOK_EVERY == LOOK_EVERY - 1 and self._loss(model) < TARGET:
                break
        exchange.close()
        return gone_s, step + 1, group.traffic.sent_bytes

    @rw.concurrent(1)
    def pace(self, epoch: int, names: Sequence[str], rate: str | None, rounds: int, size: int) -> dict[str, float]:
        """Median seconds of a step of each exchange, which take turns; the gradients are those of a wide layer."""
        node = rw.current_node()
        # One group for all: they use it one after the other.
        group = self.group(self._peers, range(2), epoch=epoch, shaping=LinkEmulation(rate) if rate else None)
        exchanges = {name: EXCHANGES[name]() for name in names}
        weight = torch.zeros(size)
        for exchange in exchanges.values():
            exchange.bind([("weight", weight)], group)
        random = np.random.default_rng(node.replica)
        large = random.random(size, np.float32) < FEW
        found: dict[str, list[float]] = {name: [] for name in names}
        for step in range(rounds):
            # Another hundredth of the components in each step, as in a table of embeddings; the rest is zero.
            noise = random.standard_normal(size, np.float32)
            drawn = torch.from_numpy(np.where(np.roll(large, step * 7919), noise, np.float32(0)))
            for name in [*names[step % len(names) :], *names[: step % len(names)]]:
                gradient = drawn.clone()
                group.all_gather(memoryview(b""), (), "turn")
                begun = time.perf_counter()
                exchange = exchanges[name]
                exchange.begin(StepRecord(step))
                exchange.ready("weight", gradient)
                exchange.finish()
                weight.add_(gradient, alpha=-0.01)
                found[name].append(time.perf_counter() - begun)
        for exchange in exchanges.values():
            exchange.close()
        # The first rounds are dense: nothing is known yet.
        return {name: statistics.median(times[len(times) // 3 :]) for name, times in found.items()}

    def _share(self, chosen: Tensor, replica: int, replicas: int) -> tuple[Tensor, Tensor]:
        mine = chosen * replicas + replica
        return self._x[mine], self._y[mine]

    def _loss(self, model: nn.Module) -> float:
        with torch.no_grad():
            return float(nn.functional.cross_entropy(model(self._x), self._y))


def one_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, exchange: Exchange, step: int, x: Tensor, y: Tensor
) -> None:
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    exchange.begin(StepRecord(step))
    for name, parameter in reversed(list(model.named_parameters())):
        assert parameter.grad is not None
        exchange.ready(name, parameter.grad)
    exchange.finish()
    optimizer.step()


def racers(replicas: int) -> Any:
    program = rw.Program("racers")
    peers = program.declare("racers")
    program.add(rw.Service(Racer, peers), name="racers", replicas=replicas)
    return program.launch()


def slow(bench: Bench) -> Iterator[Line]:
    """Four members with 10 Mbit/s each, to a fixed loss."""
    rounds = 1 if bench.quick else 2  # minutes each, and what links hold back is hardly noisy
    found: dict[str, list[tuple[float, int, int]]] = {name: [] for name in EXCHANGES}
    with racers(4) as running:
        client = running.client("racers")
        for number in range(rounds):
            for at, name in enumerate(EXCHANGES):
                first, *_ = client.all.race(number * len(EXCHANGES) + at, name, "10Mbit/s")
                found[name].append(tuple(first))
    seconds = {name: statistics.median(run[0] for run in runs) for name, runs in found.items()}
    steps = {name: runs[0][1] for name, runs in found.items()}
    sent = {name: runs[0][2] for name, runs in found.items()}
    for name, reach in (("dense", 3.0), ("bf16", 1.0)):
        ratio = seconds[name] / seconds["ropewalk"]
        yield Line(
            f"time to a loss of {TARGET} with 4 members, 85,002 weights, 10 Mbit/s each",
            f">= {reach:g} x shorter than {name}" if reach > 1 else f"shorter than {name}",
            f"{ratio:.1f} x ({steps['ropewalk']} steps against {steps[name]}, {sent['ropewalk'] / sent[name]:.1%} of "
            "its bytes)",
            ratio >= reach,
            {each: f"{value:.1f} s" for each, value in seconds.items()},
        )


def quick_links(bench: Bench) -> Iterator[Line]:
    """Two members with links as they are: the exchange has to notice that compression does not pay."""
    size = bench.count(COMPONENTS)
    with racers(2) as running:
        # Long enough for what is learnt in the first rounds, and for a look again.
        times, _ = running.client("racers").all.pace(0, ["dense", "ropewalk"], None, 4 * bench.repeats, size)
    ratio = times["ropewalk"] / times["dense"]
    yield Line(
        f"a step with {size:,} weights over unshaped links, 2 members",
        "<= 1.10 x dense",
        f"{ratio:.2f} x",
        ratio <= 1.10,
        {name: milliseconds(value) for name, value in times.items()},
    )


def gigabit(bench: Bench) -> Iterator[Line]:
    """Two members with 1 Gbit/s each, and one component of a hundred that matters."""
    size = bench.count(COMPONENTS)
    with racers(2) as running:
        times, _ = running.client("racers").all.pace(0, ["dense", "ropewalk"], "1Gbit/s", 2 * bench.repeats, size)
    ratio = times["dense"] / times["ropewalk"]
    yield Line(
        f"a step with {size:,} weights at 1 Gbit/s and {FEW:.0%} density, 2 members",
        ">= 3 x faster than dense",
        f"{ratio:.1f} x",
        ratio >= 3,
        {name: milliseconds(value) for name, value in times.items()},
    )


ROWS: dict[str, Row] = {"slow-links": slow, "quick-links": quick_links, "gigabit": gigabit}
