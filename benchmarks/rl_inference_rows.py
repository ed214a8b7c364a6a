"""Actions of an inference server against a policy in the caller, and against a service that does not batch."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator

import numpy as np
from exchange_bench import Bench, Row
from numpy.typing import NDArray
from pool_rows import Line, medians

import ropewalk as rw
from ropewalk import rl
from ropewalk.rl.assembly import Assembly
from ropewalk.rl.environments.spec import Array
from ropewalk.rl.variables import Variables

ENVS, CALLERS = 8, 4
ASSEMBLY = Assembly(rl.Experiment(rl.IMPALA(envs=ENVS), rl.Gymnasium("CartPole-v1"), rl.MLP((64, 64))), CALLERS)


class FixedWeights:
    """What a learner is to an inference server."""

    def __init__(self) -> None:
        self._variables = first_variables()

    @rw.concurrent(8)
    def newest_variables(self, have: int) -> Variables | None:
        return None if have == self._variables.version else self._variables


class PlainServer:
    """Answers one call after the other, with one call of the policy each."""

    def __init__(self) -> None:
        self._policy = loaded_policy()
        self._rng = np.random.default_rng(0)

    def act(self, observation: Array, first: NDArray[np.bool_]) -> tuple[Array, dict[str, Array]]:
        choice = self._policy.act(observation, first, {}, self._rng)
        return choice.action, dict(choice.extras)


class ActionCaller:
    """Asks for actions for as long as it is told to."""

    def __init__(self, server: rl.InferenceServer, plain: PlainServer) -> None:
        rng = np.random.default_rng(rw.current_node().replica)
        observation = rng.standard_normal((ENVS, 4)).astype(np.float32)
        first = np.zeros(ENVS, np.bool_)
        remote, local = rl.RemotePolicy(server, rw.current_node().replica), loaded_policy()
        self._ways: dict[str, Callable[[], object]] = {
            "ropewalk": lambda: remote.act(observation, first, {}, rng),
            "direct": lambda: local.act(observation, first, {}, rng),
            "plain": lambda: plain.act(observation, first),
        }

    def calls(self, way: str, duration_s: float) -> list[float]:
        """Durations of calls, one after the other."""
        call, clock, seen = self._ways[way], time.perf_counter, list[float]()
        end = clock() + duration_s
        while (began := clock()) < end:
            call()
            seen.append(clock() - began)
        return seen


def first_variables() -> Variables:
    experiment = ASSEMBLY.experiment
    learner = experiment.agent.make_learner(ASSEMBLY.spec(), experiment.network, seed=0)
    return Variables(0, 0.0, learner.variables())


def loaded_policy() -> rl.Policy:
    policy = ASSEMBLY.policy_of(0)
    policy.load(first_variables())
    return policy


def calls(bench: Bench) -> Iterator[Line]:
    program = rw.Program("inference")
    weights = program.add(rw.Service(FixedWeights), name="weights")
    server = program.add(rw.Service(rl.InferenceServer, ASSEMBLY.policy_of, weights), name="inference")
    plain = program.add(rw.Service(PlainServer), name="plain")
    program.add(rw.Service(ActionCaller, server, plain), name="callers", replicas=CALLERS)
    duration_s = 0.2 if bench.quick else 1.0
    lone: dict[str, list[float]] = {name: [] for name in ("direct", "plain", "ropewalk")}
    four: dict[str, list[float]] = {name: [] for name in ("plain", "ropewalk")}
    with program.launch() as running:
        callers = running.client("callers")
        for name in lone:
            callers.all.calls(name, 0.2)
        for turn in range(2 if bench.quick else 5):
            for name in list(lone)[:: -1 if turn % 2 else 1]:
                lone[name].append(statistics.median(callers[0].calls(name, duration_s)))
            for name in list(four)[:: -1 if turn % 2 else 1]:
                four[name].append(sum(map(len, callers.all.calls(name, duration_s))) / duration_s)
    each_s, rates = medians(lone), medians(four)
    ratio = each_s["ropewalk"] / each_s["direct"]
    yield Line(
        f"action for {ENVS} observations from an inference server, lone caller, median",
        "<= 3 x a policy in the caller",
        f"{ratio:.1f} x",
        ratio <= 3,
        {name: f"{1e6 * value:.0f} µs" for name, value in each_s.items()},
    )
    ratio = rates["ropewalk"] / rates["plain"]
    yield Line(
        f"the same, {CALLERS} callers, against a service that does not batch: calls per second",
        ">= 1 x",
        f"{ratio:.2f} x",
        ratio >= 1,
        {name: f"{value:,.0f}/s" for name, value in rates.items()},
    )


ROWS: dict[str, Row] = {"actions": calls}
