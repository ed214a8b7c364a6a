"""A collector with its policy against the bare vector environment: which share of the CPU time is the environment's."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import numpy as np
from exchange_bench import Bench, Row
from pool_rows import Line
from rl_replay_rows import cpu_times

from ropewalk import rl
from ropewalk.rl.assembly import Assembly
from ropewalk.rl.environments.environment import EnvironmentFactory
from ropewalk.rl.variables import Variables

UNROLL = 20
STEPS = {8: 1500, 32: 500}
"""By number of environments, vector steps of a measurement."""
TARGETS = {8: 0.55, 32: 0.50}


def actor(bench: Bench) -> Iterator[Line]:
    """CartPole, an MLP of 64 x 64; random actions in the bare environment, whose episodes are the shorter."""
    for num_envs, usual in STEPS.items():
        num_steps = max(UNROLL, bench.count(usual) // UNROLL * UNROLL)
        native = functools.partial(native_cart_pole, num_envs)
        contenders = {
            "bare": stepping(gymnasium.make_vec("CartPole-v1", num_envs, "sync"), num_steps),
            "collector": collecting(rl.Gymnasium("CartPole-v1"), num_envs, num_steps),
            "bare native": stepping(native(0), num_steps),
            "native collector": collecting(native, num_envs, num_steps),
        }
        times = cpu_times(bench, contenders)
        for what, bare, collector, target in (
            ("gymnasium's SyncVectorEnv", "bare", "collector", TARGETS[num_envs]),
            ("the native CartPoleVectorEnv", "bare native", "native collector", None),
        ):
            share = times[bare] / times[collector]
            yield Line(
                f"actor, CartPole x {num_envs}, 64 x 64 MLP, against {what}: CPU time of a vector step",
                f">= {target:.0%} of the bare environment's rate" if target else "",
                f"{share:.0%}",
                share >= target if target else None,
                {
                    "ropewalk": f"{1e6 * times[collector] / num_steps:.0f} µs",
                    "bare": f"{1e6 * times[bare] / num_steps:.0f} µs",
                },
            )


def native_cart_pole(num_envs: int, seed: int) -> Any:
    del seed
    return gymnasium.make_vec("CartPole-v1", num_envs, "vector_entry_point")


def stepping(envs: Any, num_steps: int) -> Callable[[], None]:
    actions = np.random.default_rng(0).integers(0, 2, (num_steps, envs.num_envs))
    envs.reset(seed=0)

    def run() -> None:
        for action in actions:
            envs.step(action)

    return run


def collecting(environment: EnvironmentFactory, num_envs: int, num_steps: int) -> Callable[[], None]:
    config = rl.Experiment(rl.IMPALA(unroll=UNROLL, envs=num_envs), environment, rl.MLP((64, 64)))
    assembly = Assembly(config, 1)
    spec = assembly.spec()
    policy = assembly.policy(spec, 0)
    collector = assembly.collector(policy, 0)
    collector.load(Variables(0, 0.0, config.agent.make_learner(spec, config.network, seed=0).variables()))

    def run() -> None:
        for _ in range(num_steps // UNROLL):
            collector.collect(UNROLL)

    return run


ROWS: dict[str, Row] = {"actor": actor}
