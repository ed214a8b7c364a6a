"""What is kept for bad days, and what it costs: versions, snapshots, and the time after a stage was killed."""

from __future__ import annotations

import dataclasses
import os
import signal
import statistics
import time
from collections.abc import Iterator
from typing import Any

import torch
from pipeline_bench import Bench, Row
from pipeline_contenders import Ours
from pipeline_jobs import Job, mlp, tiny
from pool_rows import Line, milliseconds, seconds

from ropewalk.pipeline.versions import warm_up
from ropewalk.training.trainer_options import ProcessOptions, Snapshots

#: Steps between snapshots where a stage is killed.
EVERY = 10


def versions(bench: Bench) -> Iterator[Line]:
    """Four stages; what each held at most, and how many copies its updates made."""
    for schedule in ("gpipe", "one_f_one_b", "pipedream", "pipedream_2bw"):
        job = dataclasses.replace(tiny(8, schedule), cuts=(2, 4, 6), num_workers=4)
        plan = job.plan()
        bounds = [_most_versions(schedule, plan.workers_after(stage.id)) for stage in plan.stages]
        contender = Ours(job, plan=plan)
        try:
            contender.steps(20)
            report = contender.trainer.report()
        finally:
            contender.close()
        held = [stage.versions_held for stage in report.stages]
        copies = max(worker.copies_per_update for worker in report.workers)
        yield Line(
            f"versions of the weights held by 4 stages, {schedule}; copies per update",
            f"{bounds}; <= 1",
            f"{held}; {copies:.2f}",
            held == bounds and copies <= 1,
        )


def _most_versions(schedule: str, workers_after: int) -> int:
    if schedule == "pipedream":
        return warm_up(workers_after, 1) + 1
    # The last stage of 2BW has no forward in flight when it updates.
    return 2 if schedule == "pipedream_2bw" else 1


def snapshots(bench: Bench) -> Iterator[Line]:
    """Training with snapshots as they are by default, and without."""
    for what, job in (("tiny model", tiny(8, "one_f_one_b")), ("MLP of 8 x Linear 1024", mlp("one_f_one_b"))):
        contenders = {
            "ropewalk": Ours(job, optimizer=adam),
            "without": Ours(job, optimizer=adam, processes=ProcessOptions(snapshots=None)),
        }
        try:
            steps = bench.steps(contenders, of=statistics.fmean)
        finally:
            for one in contenders.values():
                one.close()
        cost = steps["ropewalk"].wall_s / steps["without"].wall_s - 1
        yield Line(
            f"snapshots of a {what}, 2 processes, Adam, 1F1B: more time",
            "<= 3 %",
            f"{cost:.1%}",
            cost <= 0.03,
            {"ropewalk": str(steps["ropewalk"]), "without": str(steps["without"])},
        )


def recovery(bench: Bench) -> Iterator[Line]:
    """A stage process is killed amid training; the same run without that, and the steps done again, are taken off."""
    jobs = {
        "tiny model, 1F1B": tiny(8, "one_f_one_b"),
        "tiny model, PipeDream": tiny(8, "pipedream"),
        "MLP of 8 x Linear 1024, 1F1B": mlp("one_f_one_b"),
    }
    for what, job in jobs.items():
        lost: list[float] = []
        for stage in range(job.num_workers):
            for _ in range(1 if bench.quick else 3):
                lost.append(_lost_s(job, stage))
        yield Line(
            f"{what}, 2 processes, Adam: a stage killed, until training is where it was, less the steps done again",
            "<= 2 s",
            f"{statistics.median(lost):.2f} s (worst of {len(lost)}: {max(lost):.2f} s)",
            max(lost) <= 2,
            {"ropewalk": seconds(statistics.median(lost))},
        )


def _lost_s(job: Job, stage: int) -> float:
    contender = Ours(job, optimizer=adam, processes=ProcessOptions(snapshots=Snapshots(EVERY)))
    try:
        contender.steps(3 * EVERY)
        contender.trainer.drain()
        pid = next(worker.pid for worker in contender.trainer.report().workers if stage in worker.stages)
        num = EVERY // 2
        whole = min(contender.steps(num).seconds for _ in range(4))  # ends where a snapshot is due
        begun = time.perf_counter()
        contender.steps(num, before_last=lambda: os.kill(pid, signal.SIGKILL))
        elapsed = time.perf_counter() - begun
        assert contender.trainer.events, "nobody was lost"
        # The newest snapshot is the one of before these steps, and all but the last of them are done again.
        return elapsed - whole - whole * (num - 1) / num
    finally:
        contender.close()


def adam(parameters: Any) -> torch.optim.Optimizer:
    """With as much state as optimizers commonly have."""
    return torch.optim.Adam(parameters, 1e-3)


def start(bench: Bench) -> Iterator[Line]:
    """From the call to the first step done."""
    job = tiny(8, "one_f_one_b")
    plan = job.plan()
    found: list[float] = []
    for _ in range(2 if bench.quick else 5):
        begun = time.perf_counter()
        contender = Ours(job, plan=plan)
        contender.steps(1)
        found.append(time.perf_counter() - begun)
        contender.close()
    yield Line(
        "a trainer of 2 processes: until its first step is done, the first one and the next ones of a program",
        "",
        f"{found[0]:.2f} s, {statistics.median(found[1:]):.2f} s",
        None,
        {"ropewalk": milliseconds(statistics.median(found[1:]))},
    )


ROWS: dict[str, Row] = {"versions": versions, "snapshots": snapshots, "recovery": recovery, "start": start}
