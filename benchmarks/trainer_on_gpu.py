"""A transformer's steps on one GPU: a plain loop, and a trainer of one and of two stages beside it.

`python benchmarks/trainer_on_gpu.py`. Two stages share the GPU here, and what passes between them goes through the
memory of the CPU: the second line is what a trainer costs, the third what a cut costs where nothing is gained by it.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from ropewalk.pipeline.stages.training_options import TrainingOptions
from ropewalk.training.trainer import Trainer
from ropewalk.training.trainer_options import ProcessOptions

WIDTH, DEPTH, HEADS, LENGTH, SAMPLES, WORDS = 1024, 12, 16, 256, 64, 8192
MICRO_BATCHES, STEPS, ROUNDS = 4, 10, 5


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.heads, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide = nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.heads(self.norm(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        found = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(found.transpose(1, 2).flatten(2))
        return x + self.wide(x)


def model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Embedding(WORDS, WIDTH), *[Block() for _ in range(DEPTH)], nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS)
    )


def loss_of(scores: Tensor, words: Tensor) -> Tensor:
    return functional.cross_entropy(scores.flatten(0, 1), words.flatten())


def batch() -> tuple[Tensor, Tensor]:
    words = torch.randint(WORDS, (SAMPLES, LENGTH), generator=torch.Generator().manual_seed(2))
    return words, words.roll(-1, 1)


def plain() -> Callable[[], None]:
    network = model().cuda()
    optimizer = torch.optim.Adam(network.parameters(), 1e-4)
    x, y = (one.cuda() for one in batch())

    def steps() -> None:
        for _ in range(STEPS):
            optimizer.zero_grad()
            for part, target in zip(x.chunk(MICRO_BATCHES), y.chunk(MICRO_BATCHES), strict=True):
                with torch.autocast("cuda", torch.bfloat16):
                    loss = loss_of(network(part), target) / MICRO_BATCHES
                loss.backward()
            optimizer.step()
        torch.cuda.synchronize()

    return steps


def through(trainer: Trainer) -> Callable[[], None]:
    x, y = batch()

    def steps() -> None:
        handles = [trainer.step(x, y) for _ in range(STEPS)]
        handles[-1].metrics()

    return steps


def main() -> None:
    print(f"{torch.cuda.get_device_name()}, {sum(one.numel() for one in model().parameters()) / 1e6:.0f} M parameters,")
    print(f"{SAMPLES} x {LENGTH} tokens a step in {MICRO_BATCHES} micro-batches, bfloat16")
    make = functools.partial(
        Trainer,
        loss_fn=loss_of,
        optimizer=lambda parameters: torch.optim.Adam(parameters, 1e-4),
        micro_batches=MICRO_BATCHES,
        example_inputs=batch()[0],
        options=TrainingOptions(autocast=torch.bfloat16),
        processes=ProcessOptions(device="cuda", snapshots=None),
    )
    with make(model(), plan=1) as one, make(model(), plan=2) as two:
        rows = {"a plain loop": plain(), "one stage": through(one), "two stages": through(two)}
        for steps in rows.values():
            steps()
        taken: dict[str, list[float]] = {name: [] for name in rows}
        for _ in range(ROUNDS):
            for name, steps in rows.items():
                began = time.perf_counter()
                steps()
                taken[name].append((time.perf_counter() - began) / STEPS)
    floor = statistics.median(taken["a plain loop"])
    for name, seconds in taken.items():
        median = statistics.median(seconds)
        rate = SAMPLES * LENGTH / median
        print(f"{name:13} {1e3 * median:8.1f} ms a step  {rate:9,.0f} tokens/s  {floor / median:5.2f} x the loop")


if __name__ == "__main__":
    main()
