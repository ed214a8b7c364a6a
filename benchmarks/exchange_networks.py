"""Networks on mini-batches with 4 workers: steps to a fixed training loss, and the bits that they took.

    python benchmarks/exchange_networks.py                                   both networks, 5 seeds, every method
    python benchmarks/exchange_networks.py --networks cnn --seeds 2 --methods dense gd_sec
    python benchmarks/exchange_networks.py --json FILE --markdown FILE

The workers are simulated in one process, one after the other, through the encoder of each and one decoder, and what
is counted are the bytes of their messages: what the uplink of each would carry. Digits of scikit-learn, dealt out to
the workers anew for each seed; plain SGD at a constant rate; the same settings for all seeds.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from pool_rows import Line
from sklearn import datasets
from table import machine, markdown, show
from torch import Tensor, nn

from ropewalk.exchange.buckets import BucketEntry, plan_buckets
from ropewalk.exchange.compressors.compressor import Compressor, Round
from ropewalk.exchange.compressors.error_feedback import ErrorFeedback
from ropewalk.exchange.compressors.gd_sec import GDSEC
from ropewalk.exchange.compressors.half import Half
from ropewalk.exchange.compressors.none import NoCompression
from ropewalk.exchange.compressors.top_k import TopK
from ropewalk.exchange.presets import cgd, no_error_correction

NUM_WORKERS = 4
BATCH = 32
#: Steps between two looks at the training loss; a number of steps is a multiple of it.
EVERY = 5


@dataclass(frozen=True)
class Network:
    """A network, and how it is trained."""

    make: Callable[[], nn.Module]
    lr: float
    #: Over all training data, and every method reaches it.
    loss: float
    max_steps: int


def cnn() -> nn.Module:
    """5,050 parameters."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(256, 10),
    )


def mlp() -> nn.Module:
    """1,126,410 parameters."""
    return nn.Sequential(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))


NETWORKS = {
    "cnn": Network(cnn, lr=0.2, loss=0.08, max_steps=600),
    "mlp": Network(mlp, lr=0.3, loss=0.1, max_steps=300),
}

METHODS: dict[str, Compressor] = {
    "dense": NoCompression(),
    "bfloat16": Half("bfloat16"),
    "top-k 1 %, error feedback": ErrorFeedback(TopK(0.01)),
    "GD-SEC, c = 100, beta = 0.01": GDSEC(c=100, beta=0.01),
    "GD-SEC, 7 levels": GDSEC(c=100, beta=0.01, values="levels(7)"),
    "without error correction": no_error_correction(c=1, beta=1),
    "CGD, c = 1": cgd(c=1),
}


@dataclass(frozen=True)
class Trained:
    """One training."""

    network: str
    method: str
    seed: int
    #: None: not within `max_steps`.
    steps: int | None
    bits_per_worker: float
    #: What those steps, or `max_steps`, would have taken without compression.
    dense_bits_per_step: float
    loss: float
    accuracy: float
    seconds: float


def train(name: str, network: Network, method: str, compressor: Compressor, seed: int) -> Trained:
    began = time.perf_counter()
    torch.manual_seed(seed)
    train_x, train_y, test_x, test_y = digits(seed)
    model = network.make()
    named = dict(model.named_parameters())
    layouts = plan_buckets(BucketEntry.of(key, parameter) for key, parameter in named.items())
    encoders = [[compressor.encoder(layout) for _ in range(NUM_WORKERS)] for layout in layouts]
    decoders = [compressor.decoder(layout) for layout in layouts]
    applied: list[Tensor | None] = [None for _ in layouts]
    shards = torch.arange(len(train_x)).tensor_split(NUM_WORKERS)
    made = torch.Generator().manual_seed(seed)
    num_bits, loss, reached = 0, float("inf"), None
    for step in range(network.max_steps):
        messages: list[dict[int, memoryview]] = [{} for _ in layouts]
        for rank, shard in enumerate(shards):
            rows = shard[torch.randint(len(shard), (BATCH,), generator=made)]
            model.zero_grad()
            nn.functional.cross_entropy(model(train_x[rows]), train_y[rows]).backward()
            for at, layout in enumerate(layouts):
                flat = torch.cat([gradient_of(named[key]).reshape(-1) for key in layout.names])
                said = encoders[at][rank].encode(flat, Round(step, rank, NUM_WORKERS, applied=applied[at]))
                num_bits += said.bits
                messages[at][rank] = said.data.data
        with torch.no_grad():
            for at, layout in enumerate(layouts):
                total = torch.empty(layout.numel)
                decoders[at].decode(messages[at], total)
                for half in (*encoders[at], decoders[at]):
                    half.commit()
                applied[at] = total
                for key, part in layout.views(total):
                    named[key].sub_(part, alpha=network.lr / NUM_WORKERS)
            if (step + 1) % EVERY == 0:
                loss = float(nn.functional.cross_entropy(model(train_x), train_y))
                if loss <= network.loss:
                    reached = step + 1
                    break
    with torch.no_grad():
        accuracy = float((model(test_x).argmax(1) == test_y).float().mean())
    dense_bits = 32.0 * sum(layout.numel for layout in layouts)
    seconds = time.perf_counter() - began
    return Trained(name, method, seed, reached, num_bits / NUM_WORKERS, dense_bits, loss, accuracy, seconds)


def gradient_of(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


def digits(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """1437 digits to train with, and 360 to test, another choice for each seed."""
    features, labels = datasets.load_digits(return_X_y=True)
    order = torch.randperm(len(features), generator=torch.Generator().manual_seed(seed))
    rows, classes = torch.tensor(features / 16, dtype=torch.float32)[order], torch.tensor(labels)[order]
    return rows[:1437], classes[:1437], rows[1437:], classes[1437:]


def judged(trained: list[Trained]) -> Iterator[Line]:
    """One line for each network and method; bits are those to the loss, against dense's to the same loss."""
    for name in dict.fromkeys(one.network for one in trained):
        of = {
            method: [one for one in trained if (one.network, one.method) == (name, method)]
            for method in dict.fromkeys(one.method for one in trained)
        }
        dense_steps = [one.steps for one in of.get("dense", []) if one.steps]
        dense = statistics.median(dense_steps) if dense_steps else float("nan")
        for method, runs in of.items():
            steps = [one.steps or NETWORKS[name].max_steps for one in runs]
            missed = sum(one.steps is None for one in runs)
            bits = statistics.median(one.bits_per_worker / (dense * one.dense_bits_per_step) for one in runs)
            ratio = statistics.median(steps) / dense
            accuracy = statistics.median(one.accuracy for one in runs)
            is_judged = method in OURS
            yield Line(
                f"{name}: {method}, to a training loss of {NETWORKS[name].loss}",
                "<= 1.05 x the steps, <= 12 % of the bits" if is_judged else "",
                f"{statistics.median(steps):.0f} steps ({ratio:.3f} x), {bits:.2%} of the bits, "
                f"test accuracy {accuracy:.1%}" + (f"; {missed} of {len(runs)} do not reach it" if missed else ""),
                not missed and ratio <= 1.05 and bits <= 0.12 if is_judged else None,
                {f"seed {one.seed}": f"{one.steps or 'never'}" for one in runs},
            )


#: Whose steps and bits are judged.
OURS = ("GD-SEC, c = 100, beta = 0.01",)


def main() -> int:
    parser = argparse.ArgumentParser(description="Steps and bits of networks on mini-batches, by compressor.")
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS), help="both by default")
    parser.add_argument("--methods", nargs="+", metavar="WORD", help="those whose name has one of these in it")
    parser.add_argument("--seeds", type=int, default=5, metavar="N", help="0 to N - 1")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write all trainings as JSON")
    parser.add_argument("--markdown", type=pathlib.Path, metavar="FILE", help="write the table for gd_sec.md")
    options = parser.parse_args()
    torch.set_num_threads(1)
    words = options.methods or [""]
    chosen = {name: one for name, one in METHODS.items() if any(word.lower() in name.lower() for word in words)}
    trained: list[Trained] = []
    print(machine(), flush=True)
    for name in options.networks:
        for seed in range(options.seeds):
            for method, compressor in chosen.items():
                trained.append(train(name, NETWORKS[name], method, compressor, seed))
                one = trained[-1]
                share = one.bits_per_worker / (one.dense_bits_per_step * (one.steps or NETWORKS[name].max_steps))
                print(
                    f"{name} {method} seed {seed}: {one.steps} steps, loss {one.loss:.4f}, {share:.2%} per step, "
                    f"accuracy {one.accuracy:.1%}, {one.seconds:.1f} s",
                    file=sys.stderr,
                    flush=True,
                )
    lines = list(judged(trained))
    contenders = [f"seed {seed}" for seed in range(options.seeds)]
    show(lines, contenders)
    if options.json:
        content: dict[str, Any] = {"machine": machine(), "trained": [asdict(one) for one in trained]}
        options.json.write_text(json.dumps(content, indent=1) + "\n")
    if options.markdown:
        options.markdown.write_text(f"{machine()}\n\n{markdown(lines, contenders)}")
    return int(any(line.holds is False for line in lines))


if __name__ == "__main__":
    sys.exit(main())
