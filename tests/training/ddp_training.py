"""What the ranks of `test_data_parallel` do: torch's DistributedDataParallel, on the micro-batches of one replica."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from ropewalk.pipeline.stages.randomness import micro_batch_seed

SEED, STEPS, MICRO_BATCHES = 5, 20, 8


def network() -> nn.Sequential:
    """With dropout, so that who draws which random numbers shows."""
    torch.manual_seed(4)
    return nn.Sequential(
        nn.Linear(10, 24), nn.Dropout(0.2), nn.GELU(), nn.LayerNorm(24), nn.Linear(24, 16), nn.Tanh(), nn.Linear(16, 5)
    )


def sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, 0.1, momentum=0.9)


def batches() -> Iterator[tuple[Tensor, Tensor]]:
    """Of a size that does not divide."""
    generator = torch.Generator().manual_seed(6)
    for _ in range(STEPS):
        yield torch.randn(37, 10, generator=generator), torch.randint(5, (37,), generator=generator)


def trained(rank: int, num_replicas: int) -> dict[str, Tensor]:
    """The weights, trained by all ranks of the process group."""
    torch.set_num_threads(1)
    model = DistributedDataParallel(network())
    optimizer = sgd(list(model.parameters()))
    for step, (x, y) in enumerate(batches()):
        pieces = list(zip(x.tensor_split(MICRO_BATCHES), y.tensor_split(MICRO_BATCHES), strict=True))
        own = range(rank, MICRO_BATCHES, num_replicas)
        for index in own:
            inputs, labels = pieces[index]
            model.require_backward_grad_sync = index == own[-1]  # what `no_sync` does
            torch.manual_seed(micro_batch_seed(SEED, step, index))
            loss = functional.cross_entropy(model(inputs), labels, reduction="sum")
            (loss * num_replicas / len(y)).backward()  # DDP takes the mean over ranks, we mean that over samples
        optimizer.step()
        optimizer.zero_grad()
    return {name: one.detach().clone() for name, one in model.module.named_parameters()}
