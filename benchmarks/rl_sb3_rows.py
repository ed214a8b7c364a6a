"""Training in one process against Stable-Baselines3, by CPU time: equal environments, networks, batches and updates."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterator
from typing import Any

from exchange_bench import Bench, Row
from pool_rows import Line
from rl_bench import Training, experiment, in_turn, middle, ours, shown_rates

from ropewalk import rl

ROUNDS = 3
MLP = rl.MLP((64, 64))


def a2c(bench: Bench) -> Iterator[Line]:
    steps, warm_up = (8_000, 2_000) if bench.quick else (75_000, 15_000)
    impala = rl.IMPALA(unroll=20, envs=16, batch_size=1)
    yield from compared(
        bench,
        "IMPALA against A2C (n_steps 20), CartPole x 16",
        ours(experiment(impala, MLP, steps), warm_up),
        lambda sb3: sb3.trained(lambda: sb3.a2c(20), warm_up, steps),
        1.5,
    )
    short = rl.A2C(unroll=5, envs=16)
    yield from compared(
        bench,
        "A2C against A2C (n_steps 5), CartPole x 16",
        ours(experiment(short, MLP, steps // 2), warm_up // 2),
        lambda sb3: sb3.trained(lambda: sb3.a2c(5), warm_up // 2, steps // 2),
        1.5,
    )


def ppo(bench: Bench) -> Iterator[Line]:
    steps, warm_up = (8_192, 2_048) if bench.quick else (50_000, 10_000)
    yield from compared(
        bench,
        "PPO against PPO (4 epochs of 4 minibatches), CartPole x 8",
        ours(experiment(rl.PPO(), MLP, steps), warm_up),
        lambda sb3: sb3.trained(sb3.ppo, warm_up, steps),
    )


def dqn(bench: Bench) -> Iterator[Line]:
    steps, warm_up = (4_000, 2_000) if bench.quick else (16_000, 4_000)
    agent = rl.DQN(unroll=16, envs=4, batch_size=64, samples_per_insert=16, double=False, target=rl.TargetCopy(100))
    yield from compared(
        bench,
        "DQN against DQN (an update for 4 steps, batches of 64), CartPole x 4",
        ours(experiment(agent, rl.MLP((64, 64), "relu"), steps), warm_up),
        lambda sb3: sb3.trained(sb3.dqn, warm_up, steps),
    )


def sac(bench: Bench) -> Iterator[Line]:
    steps, warm_up = (1_300, 1_100) if bench.quick else (1_600, 1_100)
    network = rl.MLP((256, 256), "relu")
    yield from compared(
        bench,
        "SAC against SAC (an update a step, batches of 256, networks of 256 x 256), Pendulum",
        ours(experiment(rl.SAC(), network, steps, environment="Pendulum-v1"), warm_up),
        lambda sb3: sb3.trained(sb3.sac, warm_up, steps),
    )


def compared(
    bench: Bench, what: str, mine: Training, theirs: Callable[[Any], Training], target: float | None = None
) -> Iterator[Line]:
    reach = f">= {target} x" if target else ""
    what = f"{what}: steps per CPU second"
    if not importlib.util.find_spec("stable_baselines3"):
        yield Line(what, reach, "left out: Stable-Baselines3 is not installed", None)
        return
    contenders = {"ropewalk": mine, "SB3": theirs(importlib.import_module("rl_sb3"))}
    rates = {name: middle(seen) for name, seen in in_turn(contenders, 1 if bench.quick else ROUNDS).items()}
    ratio = rates["ropewalk"].per_cpu_s / rates["SB3"].per_cpu_s
    yield Line(what, reach, f"{ratio:.2f} x", ratio >= target if target else None, shown_rates(rates))


ROWS: dict[str, Row] = {"a2c": a2c, "ppo": ppo, "dqn": dqn, "sac": sac}
