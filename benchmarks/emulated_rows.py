"""Emulated devices: stages that sleep for their cost, against the simulator with links that cost nothing.

More devices than cores, and each takes exactly its time (see `sleeping`), so what is missing to the ideal is what the
trainer adds: sending, waking, and the controller.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pipeline_bench import Bench, Row
from pipeline_contenders import Ours, opened
from pipeline_jobs import Job, emulated, emulated_profile, mean_of
from pool_rows import Line, milliseconds

from ropewalk.pipeline.simulation.simulator import simulate
from ropewalk.pipeline.topology import Level, Topology

EVEN = {4: (1.0,) * 4, 8: (1.0,) * 8}
#: The slowest stage takes the milliseconds of the line.
UNEVEN = {4: (0.7, 1.0, 0.5, 0.9), 8: (0.7, 1.0, 0.5, 0.9, 0.6, 1.0, 0.8, 0.4)}


def ideal_s(job: Job) -> float:
    """A step in the simulator, with links that cost nothing."""
    profile = emulated_profile(job)
    topology = Topology((Level(job.num_workers, float("inf")),))
    return simulate(job.plan(profile), profile, topology, schedule=job.schedule).step_s


def of(milliseconds_each: float, reach: float) -> Row:
    def row(bench: Bench) -> Iterator[Line]:
        for num in (4, 8):
            for kind, shares in (("even", EVEN[num]), ("uneven", UNEVEN[num])):
                for schedule in ("one_f_one_b", "zb_h1"):
                    yield line(bench, milliseconds_each, reach, kind, shares, schedule)

    return row


def line(
    bench: Bench, milliseconds_each: float, reach: float, kind: str, shares: Sequence[float], schedule: str
) -> Line:
    job = emulated(schedule, milliseconds_each, shares=shares, micro_batches=32)
    profile = emulated_profile(job)
    contender = Ours(job, mean_of, plan=job.plan(profile), own_data=True)
    try:
        # Blocks of seconds each: other contenders would only make the machine busier.
        steps = bench.steps({"ropewalk": contender}, rounds=1 if milliseconds_each > 5 else 3)["ropewalk"]
    finally:
        contender.close()
    share = ideal_s(job) / steps.wall_s
    return Line(
        f"{len(shares)} emulated devices, {kind}, {milliseconds_each:g} ms each of F, I and W, 32 micro-batches of "
        f"1 MB, {schedule}: share of the ideal",
        f">= {reach:.2f}",
        f"{share:.3f}",
        share >= reach,
        {"ropewalk": str(steps), "ideal": milliseconds(ideal_s(job))},
    )


def against_torch(bench: Bench) -> Iterator[Line]:
    """What torch makes of the same devices."""
    for milliseconds_each in (1.0, 10.0):
        job = emulated("one_f_one_b", milliseconds_each, shares=EVEN[4], micro_batches=32)
        with opened({"ropewalk": ("own data", job), "torch": ("torch", job)}, mean_of) as contenders:
            steps = bench.steps(contenders, rounds=1 if milliseconds_each > 5 else 3)
        best_s = ideal_s(job)
        yield Line(
            f"4 emulated devices, {milliseconds_each:g} ms each of F, I and W, 1F1B: share of the ideal, torch's",
            "",
            f"{best_s / steps['torch'].wall_s:.3f} (ours {best_s / steps['ropewalk'].wall_s:.3f})",
            None,
            {kind: str(value) for kind, value in steps.items()} | {"ideal": milliseconds(best_s)},
        )


def pipedream(bench: Bench) -> Iterator[Line]:
    """Without a flush there is no time to fill and drain."""
    jobs = {
        name: emulated(name, 10.0, shares=EVEN[4], micro_batches=8) for name in ("gpipe", "pipedream", "pipedream_2bw")
    }
    with opened({name: ("own data", job) for name, job in jobs.items()}, mean_of) as contenders:
        steps = bench.steps(contenders, rounds=1)
    ideal = {name: ideal_s(jobs["gpipe"]) if name == "gpipe" else 8 * 0.030 for name in jobs}
    for name, reach in (("pipedream", 1.3), ("pipedream_2bw", None)):
        gain = steps["gpipe"].wall_s / steps[name].wall_s
        yield Line(
            f"{name} against GPipe on 4 emulated devices, 10 ms each of F, I and W, 8 micro-batches "
            f"(ideal {ideal['gpipe'] / ideal[name]:.3f})",
            f">= {reach} x" if reach else "",
            f"{gain:.3f} x",
            gain >= reach if reach else None,
            {"ropewalk": f"{steps[name]} against {steps['gpipe']}", "ideal": milliseconds(ideal[name])},
        )


ROWS: dict[str, Row] = {
    "emulated-1ms": of(1.0, 0.85),
    "emulated-10ms": of(10.0, 0.95),
    "emulated-torch": against_torch,
    "pipedream": pipedream,
}
