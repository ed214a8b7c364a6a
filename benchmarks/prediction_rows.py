"""What a plan says that a step will take, and what it takes."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

import torch
from emulated_rows import EVEN, UNEVEN
from pipeline_bench import Bench, Row
from pipeline_contenders import Loss, Ours
from pipeline_jobs import Job, cnn, emulated, mean_loss, mean_of, mlp, transformer
from pool_rows import Line, milliseconds

from ropewalk.pipeline.planning import plan

#: Bytes per second from process to process through shared memory.
BANDWIDTH = "8GBps"


def of_emulated(bench: Bench) -> Iterator[Line]:
    for name, shares in (("even", EVEN[4]), ("uneven", UNEVEN[4])):
        for schedule in ("one_f_one_b", "zb_h1"):
            job = emulated(schedule, 5.0, shares=shares, micro_batches=16)
            yield line(bench, f"4 emulated devices of 5 ms, {name}, {schedule}", job, mean_of, 0.10)


def of_models(bench: Bench) -> Iterator[Line]:
    jobs = {"MLP of 8 x Linear 1024": mlp("one_f_one_b"), "8 encoder layers": transformer("one_f_one_b"), "CNN": cnn()}
    for name, job in jobs.items():
        yield line(
            bench, f"{name}, 2 processes, 1F1B, cut by the planner", job, mean_loss, 0.10, concurrency=job.num_workers
        )


def line(bench: Bench, what: str, job: Job, loss_fn: Loss, reach: float, *, concurrency: int = 1) -> Line:
    """Profile, plan, run; again, and the medians."""
    torch.set_num_threads(1)
    predicted: list[float] = []
    measured: list[float] = []
    for _ in range(min(3, bench.rounds)):
        made = plan(
            job.profile(repeats=3 if bench.quick else 20, concurrency=concurrency),
            devices=f"{job.num_workers}@{BANDWIDTH}",
            schedule=job.schedule,
            micro_batches=job.micro_batches,
            num_stages=job.num_stages,
            recompute=False,
            optimizer_slots=0,
        )
        assert made.prediction is not None
        predicted.append(made.prediction.step_s)
        contender = Ours(job, loss_fn, plan=made, own_data=True)
        try:
            measured.append(bench.steps({"ropewalk": contender}, rounds=1)["ropewalk"].wall_s)
        finally:
            contender.close()
    ratio = statistics.median(predicted) / statistics.median(measured)
    return Line(
        f"{what}: step time predicted / measured",
        f"within {reach:.0%}",
        f"{ratio:.3f}",
        abs(ratio - 1) <= reach,
        {
            "ropewalk": milliseconds(statistics.median(measured)),
            "predicted": milliseconds(statistics.median(predicted)),
        },
    )


ROWS: dict[str, Row] = {"predicted-emulated": of_emulated, "predicted-models": of_models}
