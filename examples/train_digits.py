"""A convolutional network learns scikit-learn's digits: as a pipeline, data-parallel, or on one process.

    python examples/train_digits.py                                   two processes, used as is quickest
    python examples/train_digits.py --stages 2                        a pipeline: two stages, a process each
    python examples/train_digits.py --stages 2 --schedule pipedream   ... that never waits until it is empty
    python examples/train_digits.py --stages 1                        data parallelism: the whole model twice
    python examples/train_digits.py --stages 1 --gd-sec               ... which sends an eighth of the bytes
    python examples/train_digits.py --inline                          no other process: for comparison, and to debug

What is quickest, and where the model is cut, follows from a measurement of its layers: of one as small as this,
two copies. Nothing in the model knows of any of this.
"""

from __future__ import annotations

import argparse
import functools
import time
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

import ropewalk as rw
from ropewalk.exchange import GDSEC, AllGather

#: How replicas average gradients: only what matters is sent (Chen, Blum, Takac, Sadler, arXiv 2202.02491). Always so:
#: "auto" would notice that links within a machine are quick, and send everything.
GD_SEC = functools.partial(AllGather, GDSEC(c=100), mode="sparse")

BATCH, MICRO_BATCHES, RATE = 128, 4, 3e-3


class DigitsNet(nn.Sequential):
    """Four convolutions and two layers more, for pictures of 8 x 8 pixels."""

    def __init__(self, width: int = 16) -> None:
        super().__init__(
            *self.block(1, width), *self.block(width, width), nn.MaxPool2d(2),
            *self.block(width, 2 * width), *self.block(2 * width, 2 * width), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(8 * width, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 10),
        )  # fmt: skip

    @staticmethod
    def block(num_in: int, num_out: int) -> tuple[nn.Module, ...]:
        return nn.Conv2d(num_in, num_out, 3, padding=1, bias=False), nn.BatchNorm2d(num_out), nn.ReLU()


def digits() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Pictures and what they show, to train and to test with; every fifth is for tests."""
    found: Any = load_digits()
    x = torch.tensor(found.images, dtype=torch.float32)[:, None] / 8 - 1
    y = torch.tensor(found.target)
    is_test = torch.arange(len(y)) % 5 == 0
    return x[~is_test], y[~is_test], x[is_test], y[is_test]


def main() -> float:
    parser = argparse.ArgumentParser(description="Learn to read digits.")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--stages", type=int, help="into which the model is cut; as many as are quickest if not given")
    parser.add_argument(
        "--schedule", default="one_f_one_b", help="gpipe, pipedream, zb_h1, ..., as docs/pipeline.md lists"
    )
    parser.add_argument("--gd-sec", action="store_true", help="send only what matters of gradients")
    parser.add_argument("--inline", action="store_true", help="train in this process")
    parser.add_argument("--epochs", type=int, default=6)
    options = parser.parse_args()

    torch.set_num_threads(1)  # the model is measured as a stage will compute it: on one core
    torch.manual_seed(0)
    train_x, train_y, test_x, test_y = digits()
    model = DigitsNet()
    schedule = rw.pipeline.make_schedule(options.schedule)
    plan = rw.pipeline.plan(
        model,
        train_x[: BATCH // MICRO_BATCHES],
        devices=options.processes,
        num_stages=options.stages,
        schedule=schedule,
        micro_batches=MICRO_BATCHES,
    )
    print(plan)

    accuracy = 0.0
    with rw.Trainer(
        model,
        F.cross_entropy,
        lambda parameters: torch.optim.Adam(parameters, RATE),
        plan,
        example_inputs=(train_x[: BATCH // MICRO_BATCHES],),
        exchange=GD_SEC if options.gd_sec else None,
        inline=options.inline,
    ) as trainer:
        for epoch in range(options.epochs):
            began = time.monotonic()
            steps = [trainer.step(train_x[some], train_y[some]) for some in torch.randperm(len(train_x)).split(BATCH)]
            trainer.drain()  # steps were handed over; now they are done
            speed = len(train_x) / (time.monotonic() - began)
            loss = sum(float(step.metrics().loss) for step in steps) / len(steps)
            accuracy = float((trainer.predict(test_x).argmax(1) == test_y).float().mean())
            print(f"epoch {epoch}: loss {loss:.4f}, {accuracy:.1%} of the test right, {speed:,.0f} samples/s")
        print(trainer.report())
    return accuracy


if __name__ == "__main__":
    main()
