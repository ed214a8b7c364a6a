"""Training as a program against one process, with central inference, and against RLlib. CartPole, MLP of 64 x 64."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
from collections.abc import Iterator

from exchange_bench import Bench, Row
from pool_rows import Line
from rl_bench import Rate, experiment, in_turn, middle, ours, shown_rates

from ropewalk import rl

ACTORS = 4
IMPALA = rl.IMPALA(unroll=20, envs=8, batch_size=4)
STEPS, WARM_UP = 100_000, 20_000
ROUNDS = 3


def sizes(bench: Bench) -> tuple[int, int, int]:
    """Steps, the number of the first ones that are not measured, and rounds."""
    return (24_000, 4_000, 1) if bench.quick else (STEPS, WARM_UP, ROUNDS)


def distributed(bench: Bench) -> Iterator[Line]:
    steps, warm_up, rounds = sizes(bench)
    contenders = {
        "ropewalk": ours(experiment(IMPALA, rl.MLP((64, 64)), steps), warm_up, actors=ACTORS),
        "one process": ours(experiment(IMPALA, rl.MLP((64, 64)), steps, groups=ACTORS), warm_up),
    }
    rates = {name: middle(seen) for name, seen in in_turn(contenders, rounds).items()}
    per_cpu_s = rates["ropewalk"].per_cpu_s / rates["one process"].per_cpu_s
    per_wall_s = rates["ropewalk"].per_wall_s / rates["one process"].per_wall_s
    what = f"IMPALA with {ACTORS} actors x 8 environments against the same in one process"
    values = shown_rates(rates)
    yield Line(f"{what}: steps per CPU second", ">= 90 %", f"{per_cpu_s:.0%}", per_cpu_s >= 0.9, values)
    yield Line(f"{what}: steps per second", ">= 1.6 x", f"{per_wall_s:.2f} x", per_wall_s >= 1.6, values)


def inference(bench: Bench) -> Iterator[Line]:
    """Actors without a network, against actors with one; both small, and of a million parameters."""
    steps, warm_up, rounds = sizes(bench)
    for layers, target, divisor in (((64, 64), 0.8, 1), ((1000, 1000), 1.0, 8)):
        config = experiment(IMPALA, rl.MLP(layers), steps // divisor)
        contenders = {
            "ropewalk": ours(config, warm_up // divisor, actors=ACTORS, inference=1),
            "own policies": ours(config, warm_up // divisor, actors=ACTORS),
        }
        rates = {name: middle(seen) for name, seen in in_turn(contenders, rounds).items()}
        ratio = rates["ropewalk"].per_wall_s / rates["own policies"].per_wall_s
        yield Line(
            f"IMPALA, {ACTORS} actors x 8 environments, {layers[0]} x {layers[1]} MLP: central inference against "
            "policies in the actors, steps per second",
            f">= {target:.0%}",
            f"{ratio:.0%}",
            ratio >= target,
            shown_rates(rates),
        )


def rllib(bench: Bench) -> Iterator[Line]:
    """IMPALA of RLlib in an environment of its own: before and after it, ours."""
    what = f"IMPALA with {ACTORS} actors x 8 environments against RLlib's"
    python = os.environ.get("BENCHMARK_RLLIB_PYTHON")
    if not python:
        yield Line(what, ">= 10 x", "left out: BENCHMARK_RLLIB_PYTHON names no Python that has it", None)
        return
    steps, warm_up, _ = sizes(bench)
    training = ours(experiment(IMPALA, rl.MLP((64, 64)), steps), warm_up, actors=ACTORS)
    script = pathlib.Path(__file__).with_name("rl_rllib.py")
    before = training()
    answer = subprocess.run(
        [python, str(script), "5" if bench.quick else "20"], check=True, stdout=subprocess.PIPE, text=True
    )
    theirs = Rate(**json.loads(answer.stdout.strip().splitlines()[-1]))
    mine = middle([before, training()])
    values = shown_rates({"ropewalk": mine, "RLlib": theirs})
    wall, cpu = mine.per_wall_s / theirs.per_wall_s, mine.per_cpu_s / theirs.per_cpu_s
    yield Line(f"{what}: steps per second", ">= 10 x", f"{wall:.1f} x", wall >= 10, values)
    yield Line(f"{what}: steps per CPU second", ">= 5 x", f"{cpu:.1f} x", cpu >= 5, values)


ROWS: dict[str, Row] = {"distributed": distributed, "inference": inference, "rllib": rllib}
