"""What a micro-batch costs beyond its computing: the slope of step time over micro-batches on a tiny model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from pipeline_bench import Bench, Row, slope
from pipeline_contenders import opened
from pipeline_jobs import Job, tiny
from pool_rows import Line, milliseconds

COUNTS = (8, 16, 32)
KINDS = ("ropewalk", "torch", "single")
#: What the reference asks for.
REACH = 0.25


def slope_gpipe(bench: Bench) -> Iterator[Line]:
    yield from lines(bench, "gpipe", tiny(schedule="gpipe"))


def slope_one_f_one_b(bench: Bench) -> Iterator[Line]:
    yield from lines(bench, "1F1B", tiny(schedule="one_f_one_b"))


def slope_interleaved(bench: Bench) -> Iterator[Line]:
    yield from lines(bench, "interleaved, 2 stages each", replace(tiny(schedule="interleaved"), cuts=(2, 4, 6)))


def lines(bench: Bench, what: str, job: Job) -> Iterator[Line]:
    jobs = {f"{kind} {num}": (kind, _with(job, num)) for kind in KINDS for num in COUNTS}
    with opened(jobs) as contenders:
        steps = bench.steps(contenders)
    for clock, reach in (("wall", REACH), ("CPU", None)):
        found = {
            kind: slope({num: getattr(steps[f"{kind} {num}"], f"{clock.lower()}_s") for num in COUNTS})
            for kind in KINDS
        }
        # In the time of a step each process passes its share; the processor time of a step is everybody's.
        computing_s = found["single"] / (job.num_workers if clock == "wall" else 1)
        beyond = {kind: found[kind] - computing_s for kind in ("ropewalk", "torch")}
        ratio = beyond["ropewalk"] / beyond["torch"]
        yield Line(
            f"a micro-batch more on a tiny model, 2 processes, {what}: {clock} time beyond its computing",
            f"<= {reach} x torch's" if reach else "",
            f"{ratio:.2f} x: {beyond['ropewalk'] * 1e6:.0f} µs against {beyond['torch'] * 1e6:.0f}",
            ratio <= reach if reach else None,
            {kind: milliseconds(value) for kind, value in found.items()},
        )


def _with(job: Job, num: int) -> Job:
    return replace(tiny(num, job.schedule), cuts=job.cuts)


ROWS: dict[str, Row] = {
    "slope-gpipe": slope_gpipe,
    "slope-1f1b": slope_one_f_one_b,
    "slope-interleaved": slope_interleaved,
}
