"""Measures planning on the profiles that PipeDream ships: time, objective, bound, and what a plan would gain.

    python benchmarks/planner.py                                    all profiles and devices, under a minute
    python benchmarks/planner.py --only resnet50 gnmt               some profiles
    python benchmarks/planner.py --profiles FOLDER                  where graph.txt files and objectives.json lie
    python benchmarks/planner.py --json FILE --markdown FILE

The first table says whether `pipedream` finds the objectives that PipeDream's own optimizer printed, and how much
sooner; the second compares its plans with those of `exact`. planner.md says how it is measured.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from pool_rows import Line
from table import machine, markdown, show

from ropewalk.errors import NoPlanFits, ProfileInvalid
from ropewalk.pipeline.graph_text import read_graph_text
from ropewalk.pipeline.partitioners.partitioner import PlanRequest
from ropewalk.pipeline.partitioners.pipedream import PipeDreamPartitioner
from ropewalk.pipeline.planning import plan
from ropewalk.pipeline.profiles import Profile
from ropewalk.pipeline.schedules import make_schedule
from ropewalk.pipeline.topology import Level, Topology

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "shared" / "profiles"
#: Flat, and the two clusters of PipeDream's paper, from the inside out.
DEVICES = ("4@1GBps", "8@1GBps", "16@1GBps", "4x4@12GBps,1.25GBps", "8x2@30GBps,3.125GBps")
PARTITIONERS = ("exact", "pipedream")


@dataclass(frozen=True)
class Planned:
    """What one partitioner made of one profile on some devices."""

    model: str
    devices: str
    partitioner: str
    planning_s: float | None = None
    objective_s: float | None = None
    lower_bound_s: float | None = None
    #: Of the least objective that was found, which may be another plan's than the one the simulator chose.
    gap: float | None = None
    simulated_s: float | None = None
    speedup_over_one: float | None = None
    speedup_over_data_parallel: float | None = None
    replicas: tuple[int, ...] = ()
    #: Of PipeDream's own optimizer on the same, and how many times longer that is.
    optimizer_s: float | None = None
    refusal: str = ""


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure planning on the profiles that PipeDream ships.")
    parser.add_argument("--only", nargs="+", metavar="PROFILE", help="names of profiles; all by default")
    parser.add_argument("--profiles", type=pathlib.Path, metavar="FOLDER", default=FOLDER, help="where they lie")
    parser.add_argument("--partitioners", nargs="+", choices=PARTITIONERS, default=PARTITIONERS, help="both by default")
    parser.add_argument(
        "--repeats", type=int, default=3, metavar="N", help="number of repetitions, of which the fastest counts"
    )
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write all numbers as JSON")
    parser.add_argument("--markdown", type=pathlib.Path, metavar="FILE", help="write the tables for planner.md")
    options = parser.parse_args()
    profiles = read_profiles(options.profiles, options.only)
    if not profiles:
        named = " or ".join(options.only or ["*"])
        print(
            f"there is no {named}.txt in {options.profiles}: the profiles are not part of this project. Take the "
            f"graph.txt files of msr-fiddle/pipedream (profiler/*/profiles), name each after its model, and give their "
            f"folder with --profiles",
            file=sys.stderr,
        )
        return 2
    found = options.profiles / "objectives.json"
    objectives = json.loads(found.read_text())["objectives"] if found.exists() else []
    objectives = [row for row in objectives if row["model"] in profiles]

    print(machine(), flush=True)
    lines = list(against_optimizer(profiles, objectives, options.repeats))
    rows: list[Planned] = []
    for model, profile in profiles.items():
        for devices in DEVICES:
            for partitioner in options.partitioners:
                rows.append(planned(model, profile, devices, partitioner, options.repeats, objectives))
                print(" ".join(cells(rows[-1])), file=sys.stderr, flush=True)
    lines += of_inception(rows)
    show(lines, ())
    print(plans_table(rows))
    if options.json:
        content = {
            "machine": machine(),
            "lines": [asdict(line) for line in lines],
            "plans": [asdict(row) for row in rows],
        }
        options.json.write_text(json.dumps(content, indent=1) + "\n")
    if options.markdown:
        options.markdown.write_text(f"{machine()}\n\n{markdown(lines, ())}\n{plans_table(rows)}")
    return int(any(line.holds is False for line in lines))


def read_profiles(folder: pathlib.Path, only: list[str] | None) -> dict[str, Profile]:
    profiles: dict[str, Profile] = {}
    for file in sorted(folder.glob("*.txt")):
        if not only or file.stem in only:
            try:
                profiles[file.stem] = read_graph_text(file.read_text())
            except ProfileInvalid as error:
                sys.exit(f"{file}: {error}")
    return profiles


def against_optimizer(profiles: dict[str, Profile], objectives: list[Any], repeats: int) -> Iterator[Line]:
    """What PipeDream's optimizer printed, in our words."""
    if not objectives:
        return
    equal, times = 0, dict[str, float]()
    for row in objectives:
        partitioner, request = asked(row, profiles[row["model"]])
        seconds: list[float] = []
        objective_s = 0.0
        for _ in range(repeats):
            begun = time.perf_counter()
            objective_s = partitioner.partition(request).objective_s
            seconds.append(time.perf_counter() - begun)
        equal += abs(objective_s / row["objective_s"] - 1) < 1e-9
        times[" ".join([row["model"], *row["arguments"]])] = min(seconds)
    num, total_s = len(objectives), sum(times.values())
    yield Line("objectives equal to those of PipeDream's optimizer", f"{num} to 1e-9", f"{equal}", equal == num)
    ratio = sum(row["optimizer_seconds"] for row in objectives) / total_s
    yield Line(
        "planning time of these together, against the optimizer's",
        ">= 100 x less",
        f"{ratio:.0f} x less: {total_s:.3f} s",
        ratio >= 100,
    )
    slowest = max(times, key=times.__getitem__)
    yield Line("the slowest of them", "< 0.8 s", f"{times[slowest]:.3f} s: {slowest}", times[slowest] < 0.8)


def asked(row: Any, profile: Profile) -> tuple[PipeDreamPartitioner, PlanRequest]:
    """The options of the repository's program, as ours."""
    given: dict[str, list[str]] = {}
    name = ""
    for word in row["arguments"]:
        if word.startswith("-"):
            given[name := word] = []
        else:
            given[name].append(word)
    counts = [int(count) for count in given["-n"]]
    speeds = [float(speed) for speed in given.get("-b", ["1e9"])]
    levels = tuple(Level(count, speed) for count, speed in zip(counts, speeds, strict=True))
    partitioner = PipeDreamPartitioner(
        free_transfers="--activation_compression_ratio" not in given,
        straight="--straight_pipeline" in given,
        fewer_machines="--use_fewer_machines" in given,
    )
    memory = int(given["-s"][0]) if "-s" in given else None
    return partitioner, PlanRequest(profile, Topology(levels), make_schedule("pipedream"), memory_bytes=memory)


def planned(
    model: str, profile: Profile, devices: str, partitioner: str, repeats: int, objectives: list[Any]
) -> Planned:
    try:
        made = [
            plan(profile, devices=devices, partitioner=partitioner, schedule="pipedream", micro_batches=1)
            for _ in range(repeats)
        ]
    except NoPlanFits as error:
        return Planned(model, devices, partitioner, refusal=str(error))
    predictions = [each.prediction for each in made if each.prediction is not None]
    seen = predictions[0]
    return Planned(
        model,
        devices,
        partitioner,
        min(prediction.planning_s for prediction in predictions),
        seen.objective_s,
        seen.lower_bound_s,
        seen.gap,
        seen.step_s,
        seen.speedup_over_one,
        seen.speedup_over_data_parallel,
        tuple(stage.replicas for stage in made[0].stages),
        optimizer_s(model, devices, objectives) if partitioner == "pipedream" else None,
    )


def optimizer_s(model: str, devices: str, objectives: list[Any]) -> float | None:
    """Seconds of PipeDream's optimizer, if it was run on these devices with transfers and no further options."""
    counts, speeds = devices.split("@")
    bandwidths = [str(int(float(speed.removesuffix("GBps")) * 1e9)) for speed in speeds.split(",")]
    options = [["-b", *bandwidths]] if bandwidths != ["1000000000"] else [[], ["-b", *bandwidths]]
    wanted = [["-n", *counts.split("x"), *more, "--activation_compression_ratio", "1"] for more in options]
    for row in objectives:
        if row["model"] == model and row["arguments"] in wanted:
            return row["optimizer_seconds"]
    return None


def of_inception(rows: list[Planned]) -> Iterator[Line]:
    """The graph that PipeDream's optimizer does not finish."""
    exact = [row for row in rows if row.model == "inception_v3" and row.partitioner == "exact" and row.planning_s]
    for row in exact:
        gap = row.gap
        yield Line(
            f"inception_v3 on {row.devices}: exact, gap to its bound",
            "< 10 s, <= 5 %",
            f"{row.planning_s:.1f} s, {'no bound' if gap is None else f'{gap:.1%}'}",
            gap is not None and gap <= 0.05 and (row.planning_s or 0) < 10,
        )


def cells(row: Planned) -> list[str]:
    if row.refusal:
        return [row.model, row.devices, row.partitioner, f"refuses: {row.refusal.split(', and')[0]}", *[""] * 8]
    gap = row.gap
    ratio = row.optimizer_s / row.planning_s if row.optimizer_s and row.planning_s else None
    return [
        row.model,
        row.devices,
        row.partitioner,
        f"{row.planning_s:.3f} s",
        f"{row.objective_s:.6f} s",
        f"{row.lower_bound_s:.6f} s" if row.lower_bound_s else "-",
        "-" if gap is None else f"{gap:.1%}",
        f"{row.simulated_s:.6f} s",
        f"{row.speedup_over_one:.2f} x",
        f"{row.speedup_over_data_parallel:.2f} x",
        "-".join(map(str, row.replicas)),
        f"{ratio:.0f} x" if ratio else "-",
    ]


def plans_table(rows: list[Planned]) -> str:
    head = ["profile", "devices", "partitioner", "planned in", "objective", "bound", "gap", "simulated"]
    head += ["over one", "over data parallel", "replicas", "sooner than the optimizer"]
    table = [head, ["---"] * len(head), *map(cells, rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in table) + "\n"


if __name__ == "__main__":
    sys.exit(main())
