"""Real models on two processes: against what a pipeline can reach at all, and against torch.distributed.pipelining.

Everybody's processes have inputs and labels already: ours read them by themselves, and the launcher sends no tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from pipeline_bench import Bench, Row, Steps
from pipeline_contenders import opened
from pipeline_jobs import Job, mlp, pointwise, transformer
from pool_rows import Line

OURS_AND_TORCHS = {"ropewalk": "own data", "torch": "torch"}


def realistic(what: str, job: Job) -> Row:
    """Equal stages: the bound is the single process's time, split evenly, and the time to fill and drain."""

    def row(bench: Bench) -> Iterator[Line]:
        jobs = {
            f"{name} {schedule}": (kind, replace(job, schedule=schedule))
            for schedule in ("gpipe", "one_f_one_b")
            for name, kind in OURS_AND_TORCHS.items()
        }
        with opened({**jobs, "single": ("single", job)}) as contenders:
            steps = bench.steps(contenders, rounds=min(3, bench.rounds))
        for schedule in ("gpipe", "one_f_one_b"):
            found = {kind: steps[f"{kind} {schedule}"] for kind in ("ropewalk", "torch")} | {"single": steps["single"]}
            num, size = job.micro_batches, job.num_workers
            bound_s = found["single"].wall_s * (num + size - 1) / (num * size)
            share = bound_s / found["ropewalk"].wall_s
            yield Line(
                f"{what}, 2 processes, {schedule}, {num} micro-batches: share of the bound (torch's is "
                f"{bound_s / found['torch'].wall_s:.2f})",
                ">= 0.93",
                f"{share:.3f}",
                share >= 0.93,
                {kind: str(value) for kind, value in found.items()},
            )
            yield from against_torch(f"{what}, 2 processes, {schedule}, {num} micro-batches", found, 1.0)

    return row


def with_room(what: str, make: Callable[[], Job]) -> Row:
    """Where the bound leaves room over torch's."""

    def row(bench: Bench) -> Iterator[Line]:
        job = make()
        with opened(
            {name: (kind, job) for name, kind in [*OURS_AND_TORCHS.items(), ("single", "single")]}
        ) as contenders:
            steps = bench.steps(contenders)
        yield from against_torch(what, steps, 1.15)

    return row


def against_torch(what: str, steps: dict[str, Steps], reach: float) -> Iterator[Line]:
    rate = steps["torch"].wall_s / steps["ropewalk"].wall_s
    yield Line(
        f"{what}: samples per second",
        f">= {reach} x torch's",
        f"{rate:.2f} x",
        rate >= reach,
        {kind: str(value) for kind, value in steps.items()},
    )


ROWS: dict[str, Row] = {
    "mlp": realistic("MLP of 8 x Linear 1024, 256 samples", mlp()),
    "transformer": realistic("8 encoder layers, width 256, 512 tokens", transformer()),
    "small-micro-batches": with_room(
        "MLP of 8 x Linear 256, 32 micro-batches of 8 samples, 1F1B",
        lambda: mlp("one_f_one_b", width=256, micro_batches=32),
    ),
    "large-tensors": with_room(
        "8 pointwise layers, 4 MB activations, 8 micro-batches, 1F1B", lambda: pointwise("one_f_one_b")
    ),
    "uneven": with_room(
        "MLP of 8 x Linear 512, 3 layers and 5, 16 micro-batches of 16 samples, 1F1B",
        lambda: mlp("one_f_one_b", width=512, micro_batches=16, cuts=(3,)),
    ),
    "interleaved": with_room(
        "MLP of 8 x Linear 512, 2 stages on each process, 16 micro-batches of 16 samples, interleaved",
        lambda: mlp("interleaved", width=512, micro_batches=16, cuts=(2, 4, 6)),
    ),
}
