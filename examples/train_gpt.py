"""A character-level GPT learns English from the language reference that ships with Python, and writes some.

    python examples/train_gpt.py                            two stages, a process each
    python examples/train_gpt.py --schedule pipedream       weights that lag behind, and no waiting
    python examples/train_gpt.py --one-process              the same micro-batches here: to compare, or to debug
    python examples/train_gpt.py --steps 2000 --width 128   until it spells
    python examples/train_gpt.py --stages 1 --replicas 2 --exchange half       data-parallel, gradients in bfloat16

The decoder is that of Radford et al., "Language Models are Unsupervised Multitask Learners" (2019), and small: half
a minute teaches it the letters and some short words.
"""

from __future__ import annotations

import argparse
import time
from pydoc_data.topics import topics

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import ropewalk as rw
from ropewalk.training import Progress

TEXT = "\n".join(topics[name] for name in sorted(topics))
CHARACTERS = sorted(set(TEXT))
#: How many characters the model sees, samples in a step, and micro-batches that these are cut into.
POSITIONS, BATCH, MICRO_BATCHES = 64, 32, 4


class Layer(nn.Module):
    """Each position looks at those before it; then a perceptron for each."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.look, self.take = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.think = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.look(self.norm1(x)).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        found = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.take(found.transpose(1, 2).flatten(2))
        return x + self.think(self.norm2(x))


class GPT(nn.Module):
    """From characters, [samples, positions], to scores of the next, [samples, positions, characters]."""

    def __init__(self, width: int, num_layers: int = 4, num_heads: int = 4) -> None:
        super().__init__()
        self.characters = nn.Embedding(len(CHARACTERS), width)
        self.positions = nn.Parameter(torch.randn(POSITIONS, width) * 0.02)
        self.layers = nn.Sequential(*(Layer(width, num_heads) for _ in range(num_layers)))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, len(CHARACTERS)))

    def forward(self, numbers: Tensor) -> Tensor:
        return self.head(self.layers(self.characters(numbers) + self.positions[: numbers.shape[1]]))


def loss_of(scores: Tensor, wanted: Tensor) -> Tensor:
    return F.cross_entropy(scores.flatten(0, 1), wanted.flatten())


def some(text: Tensor) -> tuple[Tensor, Tensor]:
    """A mini-batch: pieces from anywhere in the text, and the same one character on."""
    starts = torch.randint(len(text) - POSITIONS - 1, (BATCH,)).tolist()
    pieces = torch.stack([text[start : start + POSITIONS + 1] for start in starts])
    return pieces[:, :-1], pieces[:, 1:]


def write(model: nn.Module, beginning: str, num: int) -> str:
    """Continue a text, character by character."""
    text = beginning
    model.eval()
    for _ in range(num):
        seen = torch.tensor([[CHARACTERS.index(character) for character in text[-POSITIONS:]]])
        with torch.no_grad():
            odds = F.softmax(model(seen)[0, -1] / 0.7, 0)
        text += CHARACTERS[int(torch.multinomial(odds, 1))]
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description="Teach a small GPT English.")
    parser.add_argument("--stages", type=int, default=2, help="processes in a row")
    parser.add_argument("--replicas", type=int, default=1, help="how many such rows")
    parser.add_argument("--schedule", default="one_f_one_b", help="gpipe, pipedream, zb_h1, ...: see docs/pipeline.md")
    parser.add_argument("--exchange", help='how replicas average gradients: "gd_sec", "half", "top_k", ...')
    parser.add_argument("--one-process", action="store_true")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--width", type=int, default=64)
    options = parser.parse_args()

    torch.set_num_threads(1)  # the model is measured as a stage will compute it: on one core
    torch.manual_seed(0)
    text = torch.tensor([CHARACTERS.index(character) for character in TEXT])
    train, test = text[: -len(text) // 10], text[-len(text) // 10 :]
    model = GPT(options.width)
    example = torch.zeros(BATCH // MICRO_BATCHES, POSITIONS, dtype=torch.long)
    schedule = rw.pipeline.make_schedule(options.schedule)
    plan = rw.pipeline.plan(
        model,
        example,
        devices=options.stages * options.replicas,
        num_stages=options.stages * schedule.stages_per_worker,  # "interleaved" and "zb_v" give each process two
        schedule=schedule,
        micro_batches=MICRO_BATCHES,
    )
    print(plan)

    with rw.Trainer(
        model,
        loss_of,
        lambda parameters: torch.optim.AdamW(parameters, 2e-3),
        plan,
        example_inputs=(example,),
        exchange=options.exchange,
        inline=options.one_process,
        progress=Progress(total_steps=options.steps),
    ) as trainer:
        began = time.monotonic()
        for _ in range(options.steps):
            x, y = some(train)
            trainer.step(x, y)  # hands it over, and does not wait for it
        trainer.drain()
        print(f"{options.steps * BATCH / (time.monotonic() - began):.0f} samples/s")
        print(f"loss {trainer.evaluate([some(test) for _ in range(8)]):.4f} on text that it has not seen")
        print(trainer.report())
        print(repr(write(trainer.to_module(), "The ", 80)))


if __name__ == "__main__":
    main()
