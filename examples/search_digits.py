"""Search the hyperparameters of a digit classifier: 64 configurations, most of which are stopped after an epoch.

    python examples/search_digits.py                       ASHA; the picture is search_digits.png
    python examples/search_digits.py --scheduler none      random search: every configuration for 81 epochs
    python examples/search_digits.py --sampler tpe         configurations chosen by Optuna's TPE

ASHA (Li et al. 2018, https://arxiv.org/abs/1810.05934) gives every configuration one epoch, the best third of them two
more, the best third of those six more, and so on to 81. A trial that waits is a checkpoint and occupies no process.
Interrupt it with Ctrl-C, or kill it: the same command goes on.
"""

from __future__ import annotations

import argparse
import functools
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

from ropewalk.search import ASHA, Choice, Integers, LogUniform, Search, SearchResults, Uniform

EPOCHS = 81
SPACE = {
    "rate": LogUniform(1e-4, 1.0),
    "momentum": Uniform(0.0, 0.99),
    "decay": LogUniform(1e-6, 1e-1),
    "width": Integers(8, 128, log=True),
    "dropout": Uniform(0.0, 0.6),
    "batch": Choice([32, 64, 128, 256]),
}


@functools.cache  # once in each worker
def digits() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Pictures and what they show, to train and to validate with."""
    found: Any = load_digits()
    x = torch.tensor(found.data, dtype=torch.float32) / 16
    y = torch.tensor(found.target)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    return x[order[:1200]], y[order[:1200]], x[order[1200:]], y[order[1200:]]


def train(run: Any, rate: float, momentum: float, decay: float, width: int, dropout: float, batch: int) -> None:
    """Train one configuration; goes on where its last attempt or rung ended."""
    train_x, train_y, valid_x, valid_y = digits()
    torch.set_num_threads(1)
    torch.manual_seed(run.seed)
    model = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Dropout(dropout), nn.Linear(width, 10))
    optimizer = torch.optim.SGD(model.parameters(), rate, momentum, weight_decay=decay)
    if saved := run.restore():
        model.load_state_dict(saved.state["model"])
        optimizer.load_state_dict(saved.state["optimizer"])
    for epoch in run.steps(EPOCHS):
        torch.manual_seed(run.seed + epoch)  # the order of an epoch is the same, however many attempts there were
        for part in torch.randperm(len(train_y)).split(batch):
            optimizer.zero_grad()
            F.cross_entropy(model.train()(train_x[part]), train_y[part]).backward()
            optimizer.step()
        with torch.no_grad():
            accuracy = (model.eval()(valid_x).argmax(1) == valid_y).float().mean()
        run.log(accuracy=accuracy)
        run.checkpoint(lambda: {"model": model.state_dict(), "optimizer": optimizer.state_dict()})


def main() -> SearchResults:
    parser = argparse.ArgumentParser(description="Search for good hyperparameters.")
    parser.add_argument("--trials", type=int, default=64)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--scheduler", choices=["asha", "none"], default="asha")
    parser.add_argument("--sampler", default="random", help="random, sobol, tpe, ...")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--picture", default="search_digits.png")
    options = parser.parse_args()

    search = Search(
        train,
        SPACE,
        metric="accuracy",
        sampler=options.sampler,
        scheduler=ASHA(R=EPOCHS, eta=3) if options.scheduler == "asha" else "none",
        trials=options.trials,
        max_concurrent=options.workers,
        name=f"digits-{options.scheduler}-{options.sampler}-{options.seed}",
        project="digits",
        seed=options.seed,
        preload=["torch"],
    )
    results = search.run()
    print(results)
    print(f"{sum(trial.step for trial in results):.0f} epochs; best accuracy {results.best.best:.4f}")
    if options.picture:
        search.plot(options.picture)
        print(f"history, importance and configurations: {options.picture}")
    return results


if __name__ == "__main__":
    main()
