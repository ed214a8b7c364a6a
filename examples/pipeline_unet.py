"""A U-Net in four pipeline stages: profiled, planned, proved, drawn, and played in one process.

    python examples/pipeline_unet.py [--pictures FOLDER]

Its skip connections go straight from the stage that makes them to the stage that reads
them. The executor trains it stage by stage, micro-batch by micro-batch; one plain process
that runs the same micro-batches ends with the same weights, bit for bit.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import ropewalk as rw

STEPS, BATCH, MICRO_BATCHES = 3, 16, 8


def block(channels_in: int, channels_out: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels_in, channels_out, 3, padding=1), nn.GroupNorm(4, channels_out), nn.ReLU(inplace=True)
    )


class UNet(nn.Module):
    """Two levels down and up again, with a skip across each."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.down1, self.down2 = block(1, width), block(width, 2 * width)
        self.bottom = block(2 * width, 4 * width)
        self.up2, self.up1 = block(6 * width, 2 * width), block(3 * width, width)
        self.head = nn.Conv2d(width, 1, 1)

    def forward(self, image: Tensor) -> Tensor:
        skip1 = self.down1(image)
        skip2 = self.down2(F.max_pool2d(skip1, 2))
        x = self.bottom(F.max_pool2d(skip2, 2))
        x = self.up2(torch.cat([F.interpolate(x, scale_factor=2), skip2], 1))
        x = self.up1(torch.cat([F.interpolate(x, scale_factor=2), skip1], 1))
        return self.head(x)


def batches() -> list[tuple[Tensor, Tensor]]:
    """Noisy discs, and the discs without noise."""
    generator = torch.Generator().manual_seed(1)
    grid = torch.stack(torch.meshgrid(torch.linspace(-1, 1, 32), torch.linspace(-1, 1, 32), indexing="ij"))
    found: list[tuple[Tensor, Tensor]] = []
    for _ in range(STEPS):
        centres = torch.rand(BATCH, 2, 1, 1, generator=generator) - 0.5
        discs = ((grid - centres).square().sum(1, keepdim=True) < 0.2).float()
        found.append((discs + 0.5 * torch.randn(discs.shape, generator=generator), discs))
    return found


def in_one_piece(model: nn.Module) -> None:
    """The same training without stages: micro-batch by micro-batch, one update per step."""
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for images, discs in batches():
        optimizer.zero_grad()
        for x, y in zip(images.chunk(MICRO_BATCHES), discs.chunk(MICRO_BATCHES), strict=True):
            (F.mse_loss(model(x), y) * len(x) / len(images)).backward()
        optimizer.step()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pictures", type=Path, help="write plan.svg and timeline.svg into this folder")
    pictures: Path | None = parser.parse_args().pictures
    torch.set_num_threads(1)  # what is summed by two threads may differ in the last bit from run to run

    torch.manual_seed(0)
    model = UNet()
    graph = rw.pipeline.trace(model, torch.randn(BATCH // MICRO_BATCHES, 1, 32, 32))
    profile = rw.pipeline.profile(graph, torch.randn(BATCH // MICRO_BATCHES, 1, 32, 32), repeats=3)
    devices = rw.pipeline.parse_topology("4@12GBps")
    plan = rw.pipeline.plan(profile, devices=devices, num_stages=4, micro_batches=MICRO_BATCHES)
    print(plan)

    schedule = rw.pipeline.make_schedule(plan.schedule)
    actions = schedule.actions(plan)
    rw.pipeline.verify(plan, actions, schedule)
    if pictures:
        pictures.mkdir(parents=True, exist_ok=True)
        (pictures / "plan.svg").write_text(plan.svg())
        timeline = rw.pipeline.simulate(plan, profile, devices, actions)
        (pictures / "timeline.svg").write_text(timeline.svg())

    executor = rw.pipeline.LocalExecutor(graph, F.mse_loss, lambda parameters: torch.optim.Adam(parameters, 1e-3), plan)
    for step, (images, discs) in enumerate(batches()):
        print(f"step {step}: loss {executor.step(images, discs).loss:.4f}")
    in_one_piece(model)
    trained = dict(executor.to_module().named_parameters())
    same = all(torch.equal(parameter, trained[name]) for name, parameter in model.named_parameters())
    print("weights equal to those of one process, bit for bit:", same)


if __name__ == "__main__":
    main()
