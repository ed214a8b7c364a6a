"""A training step with whole gradients: our hook against DistributedDataParallel's own all-reduce, both over gloo."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from exchange_bench import Bench, Row, Values, together
from pool_rows import Line, milliseconds
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ropewalk.exchange.all_reduce import AllReduce
from ropewalk.exchange.ddp_hook import attach

SIZE = 2
#: Steps of one turn.
STEPS = 4


def hook(bench: Bench) -> Iterator[Line]:
    """Forward, backward and an SGD step, with buckets as DDP makes them by default."""
    for what, width, depth, batch in (("a small MLP", 256, 4, 64), ("an MLP", 1024, 8, 64)):
        times: Values = together(SIZE, steps_of, bench, width, depth, batch)
        rate = times["DDP"] / times["ropewalk"]
        yield Line(
            f"training step of {what} of {depth * (width**2 + width):,} float32 over {SIZE} processes",
            ">= 0.95 x DDP's rate",
            f"{rate:.2f} x",
            rate >= 0.95,
            {name: milliseconds(times[name]) for name in ("ropewalk", "DDP")},
        )


def steps_of(bench: Bench, width: int, depth: int, batch: int) -> Values:
    """One member's part: seconds of a step, by contender. Both train the same model on the same data."""
    torch.manual_seed(dist.get_rank())
    x, y = torch.randn(batch, width), torch.randn(batch, width)
    models: dict[str, Any] = {}

    def make(name: str) -> Callable[[], None]:
        torch.manual_seed(0)
        layers = [part for _ in range(depth) for part in (nn.Linear(width, width), nn.ReLU())]
        model = models[name] = DistributedDataParallel(nn.Sequential(*layers))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

        def steps() -> None:
            for _ in range(STEPS):
                optimizer.zero_grad()
                nn.functional.mse_loss(model(x), y).backward()
                optimizer.step()

        return steps

    contenders = {"ropewalk": make("ropewalk"), "DDP": make("DDP")}
    attached = attach(models["ropewalk"], AllReduce())
    times = bench.times_together(contenders)
    for ours, theirs in zip(models["ropewalk"].parameters(), models["DDP"].parameters(), strict=True):
        assert torch.equal(ours, theirs), "the hook does not compute what DDP computes"
    attached.detach()
    return {name: seconds / STEPS for name, seconds in times.items()}


ROWS: dict[str, Row] = {"hook": hook}
