"""A search whose trials are pipelines: each trains its network in two processes, one for each half of the layers.

    python examples/search_pipelines.py --trials 4

A trial is an ordinary function. Its `Trainer` starts the processes of the pipeline beside the worker of the trial, on
the same host; the trial's checkpoints are those of the trainer's state, whatever the number of its stages.
"""

from __future__ import annotations

import argparse
import functools
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

import ropewalk as rw
from ropewalk.search import ASHA, Integers, LogUniform, Search, SearchResults

EPOCHS, BATCH, MICRO_BATCHES = 4, 128, 4


@functools.cache
def digits() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Pictures and what they show, to train and to validate with."""
    found: Any = load_digits()
    x, y = torch.tensor(found.data, dtype=torch.float32) / 16, torch.tensor(found.target)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    return x[order[:1280]], y[order[:1280]], x[order[1280:]], y[order[1280:]]


def train(run: Any, rate: float, width: int) -> None:
    """Train one configuration as a pipeline of two stages."""
    train_x, train_y, valid_x, valid_y = digits()
    torch.manual_seed(run.seed)
    model = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))
    plan = rw.pipeline.plan(
        model, train_x[: BATCH // MICRO_BATCHES], devices=2, num_stages=2, micro_batches=MICRO_BATCHES
    )
    optimizer = functools.partial(torch.optim.Adam, lr=rate)
    with rw.Trainer(
        model, F.cross_entropy, optimizer, plan, example_inputs=(train_x[: BATCH // MICRO_BATCHES],), seed=run.seed
    ) as trainer:
        if saved := run.restore():
            trainer.load_state_dict(saved.state)
        for epoch in run.steps(EPOCHS):
            order = torch.randperm(len(train_y), generator=torch.Generator().manual_seed(epoch))
            for part in order.split(BATCH):
                trainer.step(train_x[part], train_y[part])
            accuracy = (trainer.predict(valid_x).argmax(1) == valid_y).float().mean()
            run.log(accuracy=accuracy)
            run.checkpoint(trainer.state_dict)


def main() -> SearchResults:
    parser = argparse.ArgumentParser(description="Search with trials that are pipelines.")
    parser.add_argument("--trials", type=int, default=4)
    parser.add_argument("--at-once", type=int, default=1, help="trials at a time; each has two stages and a worker")
    options = parser.parse_args()
    search = Search(
        train,
        {"rate": LogUniform(1e-4, 1e-1), "width": Integers(16, 64, log=True)},
        metric="accuracy",
        scheduler=ASHA(R=EPOCHS, eta=2),
        trials=options.trials,
        max_concurrent=options.at_once,
        name="pipelines",
        preload=["torch"],
    )
    results = search.run()
    print(results)
    return results


if __name__ == "__main__":
    main()
