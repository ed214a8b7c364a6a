"""Trains a model larger than any of its processes may become; run by `test_memory_limits`.

Prints the losses, and what came of building the whole model.
"""

from __future__ import annotations

import json
import resource
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import ropewalk
from ropewalk.pipeline.tracing.tracer import trace
from ropewalk.training.building import build
from ropewalk.training.trainer_options import ProcessOptions
from tests.pipeline.played_plans import even_cut, plan_of

WIDTH, DEPTH, STAGES, STEPS = 2048, 24, 4, 2


def factory() -> nn.Module:
    """Layers of 16 MiB each."""
    layers: list[nn.Module] = []
    for _ in range(DEPTH):
        layers += [nn.Linear(WIDTH, WIDTH, bias=False), nn.ReLU()]
    return nn.Sequential(*layers)


def sgd(parameters: Any) -> torch.optim.Optimizer:
    """Plain SGD, which keeps nothing."""
    return torch.optim.SGD(parameters, lr=0.1, foreach=False)


def private_bytes() -> int:
    """Bytes of memory that count against RLIMIT_DATA."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmData"))


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and labels."""
    generator = torch.Generator().manual_seed(step)
    return torch.randn(8, WIDTH, generator=generator), torch.randn(8, WIDTH, generator=generator)


def main() -> None:
    """Train under the limit."""
    torch.set_num_threads(1)
    graph = trace(build(factory, 0).model, batch(0)[0])
    plan = plan_of(graph, even_cut(graph, STAGES), micro_batches=2)
    size_bytes = sum(one.nbytes for one in graph.parameters.values())
    limit = private_bytes() + 4 * size_bytes // 5
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))  # processes that start from here have it too
    losses: list[float] = []
    trainer = ropewalk.Trainer(factory, functional.mse_loss, sgd, plan, processes=ProcessOptions(snapshots=None))
    with trainer:
        for step in range(STEPS):
            losses.append(float(trainer.step(*batch(step)).metrics().loss))
    try:
        build(factory, 0, keep=None)
        whole = "fits"
    except RuntimeError as error:
        whole = str(error)
    print(json.dumps({"losses": losses, "whole": whole}))


if __name__ == "__main__":
    main()
