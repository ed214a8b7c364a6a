"""What rows of the table of reinforcement learning share: rates of training, read while it goes on, in turn."""

from __future__ import annotations

import contextlib
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import probes

from ropewalk import rl
from ropewalk.rl.logs.logger import LogRow

_READ_S = 0.25
"""Seconds between two readings of the clocks of all processes."""


@dataclass(frozen=True, slots=True)
class Rate:
    """Environment steps by time; a step that only begins an episode is none."""

    steps: float
    wall_s: float
    cpu_s: float

    @property
    def per_wall_s(self) -> float:
        return self.steps / self.wall_s

    @property
    def per_cpu_s(self) -> float:
        return self.steps / self.cpu_s

    def __str__(self) -> str:
        return f"{self.per_cpu_s:,.0f}/CPU-s, {self.per_wall_s:,.0f}/s"


@dataclass(slots=True)
class Readings:
    """A logger that reads the clocks of all processes with the steps, once `warm_up` steps are done.

    What comes before is not measured: starts of processes, imports, steps before the first update.
    """

    warm_up: int
    _seen: list[tuple[int, float, dict[int, float]]] = field(default_factory=list[tuple[int, float, dict[int, float]]])
    _pids: list[int] = field(default_factory=list[int])

    def __call__(self, label: str, row: LogRow) -> None:
        steps = row["steps"]
        assert isinstance(steps, int)
        # The last row of a program is noticed some time after its learner has stopped.
        if label != "progress" or steps < self.warm_up:
            return
        if not self._seen:
            self._pids = probes.family()
        elif time.perf_counter() - self._seen[-1][1] < _READ_S:
            return
        self._seen.append((steps, time.perf_counter(), cpu_times(self._pids)))

    @property
    def rate(self) -> Rate:
        if len(self._seen) < 2:
            raise RuntimeError(f"training ended within {_READ_S} s after its first {self.warm_up:,} steps")
        first, last = self._seen[0], self._seen[-1]
        cpu_s = sum(after - first[2][pid] for pid, after in last[2].items())
        return Rate(last[0] - first[0], last[1] - first[1], cpu_s)


def cpu_times(pids: Sequence[int]) -> dict[int, float]:
    """Processor time by process, of those that have not ended: some only helped to start others."""
    times: dict[int, float] = {}
    for pid in pids:
        with contextlib.suppress(OSError):
            times[pid] = probes.cpu_s([pid])
    return times


Training = Callable[[], Rate]


def experiment(
    agent: rl.Agent, network: rl.MLP, steps: int, *, environment: str = "CartPole-v1", groups: int | None = None
) -> rl.Experiment:
    return rl.Experiment(agent, rl.Gymnasium(environment), network, steps=steps, groups=groups)


def ours(config: rl.Experiment, warm_up: int, *, actors: int = 0, inference: int = 0) -> Training:
    """Training by ropewalk, in this process or as a program."""

    def run() -> Rate:
        readings = Readings(warm_up)
        config.run(actors=actors, inference=inference, log=readings)
        return readings.rate

    return run


def measured_here(work: Callable[[], float]) -> Rate:
    """The rate of something in this process alone; `work` returns the steps that it did."""
    pids = [os.getpid()]
    wall_s, cpu_s = time.perf_counter(), probes.cpu_s(pids)
    steps = work()
    return Rate(steps, time.perf_counter() - wall_s, probes.cpu_s(pids) - cpu_s)


def in_turn(contenders: Mapping[str, Training], rounds: int) -> dict[str, list[Rate]]:
    """The rates of each contender: A B C, B C A, ..."""
    seen: dict[str, list[Rate]] = {name: [] for name in contenders}
    names = list(contenders)
    for turn in range(rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            seen[name].append(contenders[name]())
    return seen


def middle(rates: Sequence[Rate]) -> Rate:
    """The medians by wall time and by CPU time, as a rate of one step."""
    per_wall_s = statistics.median(rate.per_wall_s for rate in rates)
    per_cpu_s = statistics.median(rate.per_cpu_s for rate in rates)
    return Rate(1, 1 / per_wall_s, 1 / per_cpu_s)


def shown_rates(rates: Mapping[str, Rate]) -> dict[str, str]:
    return {name: str(rate) for name, rate in rates.items()}
