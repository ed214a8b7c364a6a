"""A U-Net takes the noise off handwritten digits, in a pipeline whose long skips pass by the stages between.

    python examples/train_unet.py                         three stages, a process each; draws the last step: unet.svg
    python examples/train_unet.py --schedule zb_h1        fills gaps with the gradients of weights
    python examples/train_unet.py --inline                the same micro-batches in this process: to compare
    python examples/train_unet.py --drawn run.json        the last step for ui.perfetto.dev

    stage 0   down1 ── down2 ─────────┐
                │        │            ▼
    stage 1     │        │         bottom ── up2 ...      skips go straight from the stage that makes them
                │        └──────────────────▶ │           to the stage that reads them
    stage 2     └───────────────────────────────▶ ... up1 ── head

After Ronneberger, Fischer and Brox, "U-Net: Convolutional Networks for Biomedical Image Segmentation" (2015), on the
1797 digits of scikit-learn, four times as large.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

import ropewalk as rw
from ropewalk.training import Progress

BATCH, MICRO_BATCHES, NOISE = 64, 8, 0.5


def block(num_in: int, num_out: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(num_in, num_out, 3, padding=1), nn.GroupNorm(4, num_out), nn.ReLU())


class UNet(nn.Module):
    """Two levels down and up again, with a skip across each; gives the noise, which is then taken off."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.down1, self.down2 = block(1, width), block(width, 2 * width)
        self.bottom = block(2 * width, 4 * width)
        self.up2, self.up1 = block(6 * width, 2 * width), block(3 * width, width)
        self.head = nn.Conv2d(width, 1, 1)

    def forward(self, noisy: Tensor) -> Tensor:
        skip1 = self.down1(noisy)
        skip2 = self.down2(F.max_pool2d(skip1, 2))
        x = self.bottom(F.max_pool2d(skip2, 2))
        x = self.up2(torch.cat([F.interpolate(x, scale_factor=2), skip2], 1))
        x = self.up1(torch.cat([F.interpolate(x, scale_factor=2), skip1], 1))
        return noisy - self.head(x)


def pictures() -> Tensor:
    """Digits from 0 to 1, of shape [samples, 1, 32, 32]."""
    found: Any = load_digits()
    small = torch.tensor(found.images, dtype=torch.float32)[:, None] / 16
    return F.interpolate(small, scale_factor=4, mode="bilinear")


def main() -> float:
    parser = argparse.ArgumentParser(description="Take the noise off digits.")
    parser.add_argument("--stages", type=int, default=3, help="processes in a row")
    parser.add_argument("--schedule", default="one_f_one_b", help="gpipe, pipedream, zb_h1, ...: see docs/pipeline.md")
    parser.add_argument("--inline", action="store_true", help="train in this process")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument(
        "--drawn",
        type=Path,
        default=Path("unet.svg"),
        help="where to write the timeline: .svg, or .json for ui.perfetto.dev",
    )
    options = parser.parse_args()

    torch.set_num_threads(1)  # the model is measured as a stage will compute it: on one core
    torch.manual_seed(0)
    clean = pictures()
    train, test = clean[:-97], clean[-97:]
    noisy_test = test + NOISE * torch.randn(test.shape)
    model = UNet()
    example = train[: BATCH // MICRO_BATCHES]
    schedule = rw.pipeline.make_schedule(options.schedule)
    plan = rw.pipeline.plan(
        model,
        example,
        devices=options.stages,
        num_stages=options.stages * schedule.stages_per_worker,  # "interleaved" and "zb_v" give each process two
        schedule=schedule,
        micro_batches=MICRO_BATCHES,
    )
    print(plan)

    with rw.Trainer(
        model,
        F.mse_loss,
        lambda parameters: torch.optim.Adam(parameters, 3e-3),
        plan,
        example_inputs=(example,),
        inline=options.inline,
        progress=Progress(total_steps=options.steps),
    ) as trainer:
        began = time.monotonic()
        for _ in range(options.steps):
            wanted = train[torch.randint(len(train), (BATCH,))]
            trainer.step(wanted + NOISE * torch.randn(wanted.shape), wanted)
        left = trainer.evaluate([(noisy_test, test)])
        print(f"{options.steps * BATCH / (time.monotonic() - began):.0f} samples/s")
        print(f"squared error of test pictures: {F.mse_loss(noisy_test, test):.4f} with noise, {left:.4f} without")
        print(trainer.report())
        options.drawn.parent.mkdir(parents=True, exist_ok=True)
        trainer.timeline(options.drawn)
    print(f"the last step: {options.drawn}")
    return left


if __name__ == "__main__":
    main()
