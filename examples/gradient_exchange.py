"""Every way to exchange gradients, on the same data: what it costs in bytes, and what that means on a slow link.

    python examples/gradient_exchange.py                          a table, and loss against bytes as an SVG
    python examples/gradient_exchange.py --link 1Mbit/s           the same over slow links, loss against seconds
    python examples/gradient_exchange.py --model cnn --steps 150

    learner 0 ◀──┐
    learner 1 ◀──┤  each has a quarter of scikit-learn's digits; every step all of them get the mean gradient,
    learner 2 ◀──┤  by an exchange of the table below, and take the same step
    learner 3 ◀──┘

Four processes train softmax regression (650 weights) or a small convolutional net (5,388) from the same start with
the same minibatches. Nothing but the exchange differs. GD-SEC: Chen, Blum, Takac, Sadler, arXiv 2202.02491.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import ropewalk as rw
from ropewalk.exchange import (
    GDSEC,
    AllGather,
    AllReduce,
    DistributedOptimizer,
    ErrorFeedback,
    Exchange,
    GroupMember,
    LinkEmulation,
    LowRank,
    ParameterServer,
    ParameterShard,
    Quantized,
    RandomK,
    Sign,
    TopK,
)

LEARNERS, BATCH, RATE = 4, 32, 0.2
MODULES = ["torch", "torch._dynamo", "sklearn.datasets"]  # torch imports dynamo when it makes the first optimizer

#: `mode="sparse"`: otherwise AllGather would notice that links within a machine are quick, and send everything.
EXCHANGES: dict[str, Callable[[Any], Exchange]] = {
    "all-reduce": lambda _: AllReduce(),
    "parameter server": lambda servers: ParameterServer(servers),
    "bfloat16": lambda _: AllReduce("half"),
    "PowerSGD, rank 1": lambda _: AllReduce(ErrorFeedback(LowRank(1))),
    "random 5 %": lambda _: AllReduce(ErrorFeedback(RandomK(0.05))),
    "QSGD, 7 levels": lambda _: AllGather(Quantized(7), mode="sparse"),
    "signs": lambda _: AllGather(ErrorFeedback(Sign()), mode="sparse"),
    "top 1 %": lambda _: AllGather(ErrorFeedback(TopK(0.01)), mode="sparse"),
    "GD-SEC": lambda _: AllGather(GDSEC(c=100, beta=0.01), mode="sparse"),
}


torch.manual_seed(0)
#: All learners, and all exchanges, begin with these weights.
MODELS = {
    "softmax": nn.Sequential(nn.Flatten(), nn.Linear(64, 10)),
    "cnn": nn.Sequential(
        nn.Conv2d(1, 10, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(10, 20, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(80, 38),
        nn.Linear(38, 10),
    ),
}


@dataclass(frozen=True)
class Run:
    """One exchange, as learner 0 saw it: every few steps the bytes it had sent, seconds gone, and the loss of all."""

    exchange: str
    sent_bytes: list[int]
    seconds: list[float]
    loss: list[float]
    accuracy: float


def digits() -> tuple[Tensor, Tensor]:
    """Images (1797, 1, 8, 8) from 0 to 1, and their digits."""
    from sklearn.datasets import load_digits  # here and not above: servers need neither this nor pictures

    found: Any = load_digits()
    images = torch.from_numpy(found.images.astype(np.float32) / 16)[:, None]
    return images, torch.from_numpy(found.target)


class Learner(GroupMember):
    """One of those that train; `GroupMember` lets its replicas send each other packets."""

    def __init__(self, peers: Any, servers: Any) -> None:
        super().__init__()
        torch.set_num_threads(1)
        self._peers, self._servers = peers, servers
        self._x, self._y = digits()

    @rw.concurrent(1)  # beside the packets of the others
    def train(self, number: int, exchange: str, model_name: str, steps: int, link: str | None) -> Run:
        rank = rw.current_node().replica
        # Groups follow each other, one for each run.
        group = self.group(self._peers, epoch=number, shaping=LinkEmulation(link) if link else None)
        model = copy.deepcopy(MODELS[model_name])
        optimizer = DistributedOptimizer(
            torch.optim.SGD(model.parameters(), RATE),
            EXCHANGES[exchange](self._servers),
            named_parameters=model.named_parameters(),
            group=group,
        )
        loss_of = nn.CrossEntropyLoss()
        order = torch.Generator().manual_seed(rank)
        mine = torch.arange(rank, len(self._x), LEARNERS)
        sent, seconds, losses = [], [], []
        gone_s = 0.0
        for step in range(steps):
            began = time.monotonic()
            batch = mine[torch.randint(len(mine), (BATCH,), generator=order)]
            optimizer.zero_grad()
            loss_of(model(self._x[batch]), self._y[batch]).backward()
            optimizer.step()
            gone_s += time.monotonic() - began
            if rank == 0 and (step % 5 == 4 or step == steps - 1):  # looking is not part of the time
                with torch.no_grad():
                    losses.append(float(loss_of(model(self._x), self._y)))
                sent.append(optimizer.report().sent_bytes)
                seconds.append(gone_s)
        optimizer.close()
        accuracy = float((model(self._x).argmax(1) == self._y).double().mean())
        return Run(exchange, sent, seconds, losses, accuracy)


def draw(runs: list[Run], path: Path, link: str | None) -> None:
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.5))
    for run in runs:
        axes.plot(run.seconds if link else [n / 1024 for n in run.sent_bytes], run.loss, label=run.exchange)
    axes.set(
        xscale="log",
        yscale="log",
        xlabel=f"seconds, with links of {link}" if link else "KiB that one learner sent",
        ylabel="loss over all digits",
        title="The same steps, exchanged in different ways",
    )
    axes.xaxis.set_major_formatter("{x:g}")  # 10, not a power of it
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("{x:g}")
    axes.grid(alpha=0.3, which="both")
    axes.legend(fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, bbox_inches="tight")
    pyplot.close(figure)


def main() -> list[Run]:
    parser = argparse.ArgumentParser(description="Exchange gradients in every way, and count the bytes.")
    parser.add_argument("--model", choices=list(MODELS), default="softmax")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument(
        "--link", metavar="RATE", help='of each learner, such as "1Mbit/s"; as fast as it goes by default'
    )
    parser.add_argument("--only", nargs="+", choices=list(EXCHANGES), default=list(EXCHANGES), metavar="EXCHANGE")
    parser.add_argument("--picture", type=Path, default=Path("gradient_exchange.svg"))
    options = parser.parse_args()

    program = rw.Program("gradient-exchange")
    peers = program.declare("learners")
    # All fork from one process that has imported these, instead of importing them each.
    servers = program.add(rw.Service(ParameterShard), name="servers", replicas=2, preload=MODULES)
    program.add(rw.Service(Learner, peers, servers), name="learners", replicas=LEARNERS, preload=MODULES)
    runs: list[Run] = []
    print(f"{options.model}, {LEARNERS} learners, {options.steps} steps, links {options.link or 'as they are'}")
    print(f"{'exchange':18} {'KiB sent':>9} {'of dense':>9} {'seconds':>8} {'loss':>8} {'accuracy':>9}")
    with program.launch() as running:
        learners = running.client("learners")
        for number, exchange in enumerate(options.only):
            run, *_ = learners.all.train(number, exchange, options.model, options.steps, options.link)
            runs.append(run)
            share = run.sent_bytes[-1] / runs[0].sent_bytes[-1]
            print(
                f"{exchange:18} {run.sent_bytes[-1] / 1024:9.1f} {share:9.1%} {run.seconds[-1]:8.2f} "
                f"{run.loss[-1]:8.4f} {run.accuracy:9.1%}",
                flush=True,
            )
    draw(runs, options.picture, options.link)
    print(f"loss against {'seconds' if options.link else 'bytes'}: {options.picture}")
    return runs


if __name__ == "__main__":
    main()
