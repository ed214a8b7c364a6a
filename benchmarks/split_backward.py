"""What a split backward costs against a whole one: `python -m benchmarks.split_backward`.

One thread and its own time (what else the machine does is left out), minima and medians of interleaved repeats.
Forwards are not counted. The allocator keeps its memory (see `steady_memory`). Small nets pay for reading inputs and
gradients again when they have left the cache: some 80 us for a MiB. Allowed are 1.08 for an MLP, 1.15 for a
transformer and a convolutional net.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from benchmarks.steady_memory import restart_steady
from tests.pipeline.models import RealModel, mlp, resnet, transformer, unet

from ropewalk.pipeline.tracing.split_backward import WeightQueue, deferred_weights

CASES: dict[str, tuple[Callable[[], RealModel], float]] = {
    "mlp 512": (lambda: mlp(width=512, batch=256, depth=6), 1.08),
    "mlp 1024": (lambda: mlp(width=1024, batch=64, depth=6), 1.08),
    "transformer 128": (lambda: transformer(width=128, batch=8, length=64, depth=4), 1.15),
    "transformer 256": (lambda: transformer(width=256, batch=4, length=128, depth=2), 1.15),
    "resnet 32": (lambda: resnet(width=32, batch=8, size=32), 1.15),
    "resnet 64": (lambda: resnet(width=64, batch=16, size=32), 1.15),
    "unet 16": (lambda: unet(width=16, batch=4, size=48), 1.15),
    "unet 32": (lambda: unet(width=32, batch=2, size=64), 1.15),
}


def timed(work: Callable[[], object]) -> float:
    start = time.thread_time()
    work()
    return time.thread_time() - start


def measure(case: RealModel, repeats: int) -> tuple[list[float], list[float], list[float]]:
    """Seconds of whole backwards, of I and of W."""
    model, inputs, targets, loss = case
    inputs = tuple(tensor.requires_grad_() if tensor.is_floating_point() else tensor for tensor in inputs)
    leaves = [tensor for tensor in (*inputs, *model.parameters()) if tensor.requires_grad]
    whole: list[float] = []
    input_gradient: list[float] = []
    weight_gradient: list[float] = []
    for _ in range(repeats + 3):
        value = loss(model(*inputs), targets)
        whole.append(timed(lambda value=value: torch.autograd.grad(value, leaves, allow_unused=True)))
        queue = WeightQueue()
        with deferred_weights(queue):
            value = loss(model(*inputs), targets)
        input_gradient.append(timed(lambda value=value, queue=queue: queue.input_gradients([value], leaves, [None])))
        weight_gradient.append(timed(lambda queue=queue: queue.gradients(leaves)))
    return whole[3:], input_gradient[3:], weight_gradient[3:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=30)
    repeats = parser.parse_args().repeats
    restart_steady("benchmarks.split_backward")
    torch.set_num_threads(1)
    print(f"{'model':16} {'whole ms':>9} {'I ms':>9} {'W ms':>9} {'of minima':>10} {'of medians':>11} {'allowed':>8}")
    for name, (make, allowed) in CASES.items():
        whole, first, second = measure(make(), repeats)
        ratio = (min(first) + min(second)) / min(whole)
        medians = statistics.median(i + w for i, w in zip(first, second, strict=True)) / statistics.median(whole)
        row = " ".join(f"{1e3 * min(times):9.2f}" for times in (whole, first, second))
        print(f"{name:16} {row} {ratio:10.3f} {medians:11.3f} {allowed:8.2f}")


if __name__ == "__main__":
    main()
