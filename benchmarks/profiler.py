"""How well a profile foretells stages: `python -m benchmarks.profiler [--rounds 5] [--only resnet]`.

For each model three random legal cuts into 2, 3 and 4 stages. Each stage runs alone, and its times are compared with
the sums over its operators in the profile, without any factor. Profiles and stages take turns, a line shows medians
over the rounds. Promised: times within 20 %, saved bytes within 10 %; a line that misses ends the program with 1.

One thread, and its own time: what else the machine does is left out. The allocator keeps its memory (see
`steady_memory`).
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable

import torch
from benchmarks.steady_memory import restart_steady
from tests.pipeline.models import RealModel, mlp, resnet, transformer, two_branches, unet
from tests.pipeline.stages_alone import CLOCK, alone, medians, random_cut_by_time

from ropewalk.pipeline.operator_costs import OperatorCosts
from ropewalk.pipeline.profiler import profile
from ropewalk.pipeline.tracing.tracer import trace

#: Some milliseconds in each stage, and no tensor that is a mapping of its own for the allocator.
MODELS: dict[str, Callable[[], RealModel]] = {
    "mlp": lambda: mlp(width=1024, batch=128, depth=8),
    "transformer": lambda: transformer(width=256, batch=8, length=64, depth=4),
    "resnet": lambda: resnet(width=64, batch=16, size=32),
    "unet": lambda: unet(width=32, batch=2, size=64),
    "two_branches": lambda: two_branches(width=128, batch=32, size=32),
}


def rows(name: str, rounds: int) -> list[tuple[str, float, list[float], float]]:
    """For each stage of each cut: name, seconds, and predicted over measured: three times (medians), bytes."""
    model, inputs, *_ = MODELS[name]()
    graph = trace(model, inputs)
    first = profile(graph, inputs, repeats=5, clock=CLOCK)
    cuts = [random_cut_by_time(first, num_stages, seed) for seed, num_stages in enumerate((2, 3, 4))]
    stages = [stage for cut in cuts for stage in alone(graph, cut, inputs)]
    ratios: list[list[tuple[float, ...]]] = [[] for _ in stages]
    for _ in range(rounds):
        whole = OperatorCosts(profile(graph, inputs, repeats=10, clock=CLOCK))
        split = OperatorCosts(whole.profile, splits_backward=True)
        for stage, seconds, found in zip(stages, medians(stages, 5), ratios, strict=True):
            predicted = whole.stage(stage.operators)
            both = split.stage(stage.operators).backward_s
            found.append(
                tuple(a / b for a, b in zip((predicted.forward_s, predicted.backward_s, both), seconds, strict=True))
            )
    bytes_of = OperatorCosts(first)
    alone_s = [forward + backward for forward, backward, _ in medians(stages, 5)]
    return [
        (
            f"{name} {stage.operators[0]} .. {stage.operators[-1]}",
            seconds,
            [statistics.median(column) for column in zip(*found, strict=True)],
            bytes_of.stage(stage.operators).saved_bytes / max(1, stage.saved_bytes()),
        )
        for stage, found, seconds in zip(stages, ratios, alone_s, strict=True)
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="*", default=list(MODELS))
    options = parser.parse_args()
    restart_steady("benchmarks.profiler")
    torch.set_num_threads(1)
    print(f"{'predicted / measured':70} {'ms':>6} {'forward':>8} {'backward':>9} {'I + W':>7} {'saved':>7}")
    is_short = False
    for name in options.only:
        for title, seconds, times, saved in rows(name, options.rounds):
            misses = max(abs(time - 1) for time in times) > 0.2 or abs(saved - 1) > 0.1
            is_short |= misses
            forward, backward, both = times
            mark = "  misses" if misses else ""
            print(
                f"{title:70} {1e3 * seconds:6.1f} {forward:8.3f} {backward:9.3f} {both:7.3f} {saved:7.3f}{mark}",
                flush=True,
            )
    return int(is_short)


if __name__ == "__main__":
    sys.exit(main())
