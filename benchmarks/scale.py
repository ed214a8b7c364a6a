"""What each worker, host, task and byte costs the launcher, and the model that follows, checked at three other sizes.

    python benchmarks/scale.py                                # the table of benchmarks/scale.md
    python benchmarks/scale.py --fit 256,512 --check 1024     # smaller
    python benchmarks/scale.py --only fan-out                 # the model of fan-outs, without the workers

Workers are simulated (`population_crowd`): the launcher is the real one, with one real link for each worker, and the
workers are objects in a few processes. CPU and memory are the launcher's, in an interpreter of its own for each size.
`scale_network.py` measures a fan-out between real agents.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import psutil
from population_crowd import crowd
from population_work import rest

import ropewalk as rw

IDLE_S = 30.0
TASK_S = 1.0
TASKS_EACH = 3
GIGABIT = 125e6


@dataclass(frozen=True)
class Costs:
    """What the launcher spent on a pool of one size."""

    num_workers: int
    num_hosts: int
    start_cpu_s: float
    """From the first request to the last worker that is ready."""
    memory_bytes: float
    """Resident memory that came with the workers."""
    task_cpu_s: float
    """For `TASKS_EACH` tasks of `TASK_S` for each worker, each sent alone."""
    task_wall_s: float
    idle_cpu_s: float
    """In one second in which nothing happens; mean of `IDLE_S` seconds. Workers say nothing then, only hosts."""


def measure(num_workers: int, num_hosts: int) -> Costs:
    """Measure a pool in this process."""
    me = psutil.Process()
    with crowd(num_workers, num_hosts) as session:
        session.lease()
        until(lambda: len(session.hosts()) == num_hosts)
        memory, cpu = me.memory_info().rss, time.process_time()
        with rw.Pool(num_workers, session=session) as pool:
            pool.wait_until_ready(600)
            start_cpu_s, memory_bytes = time.process_time() - cpu, me.memory_info().rss - memory
            pool.map(rest, [0.0] * num_workers, chunksize=1)
            cpu, start = time.process_time(), time.monotonic()
            pool.map(rest, [TASK_S] * num_workers * TASKS_EACH, chunksize=1)
            task_cpu_s, task_wall_s = time.process_time() - cpu, time.monotonic() - start
            time.sleep(1.0)
            cpu = time.process_time()
            time.sleep(IDLE_S)
            idle_cpu_s = (time.process_time() - cpu) / IDLE_S
        session.release()
    return Costs(num_workers, num_hosts, start_cpu_s, memory_bytes, task_cpu_s, task_wall_s, idle_cpu_s)


def until(condition: Callable[[], bool], timeout_s: float = 300.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {timeout_s:g} s in vain")
        time.sleep(0.01)


def measured_alone(num_workers: int, num_hosts: int) -> Costs:
    """Measure a pool in an interpreter of its own."""
    command = [sys.executable, "-P", __file__, "--here", f"{num_workers},{num_hosts}"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    return Costs(**json.loads(done.stdout.splitlines()[-1]))


# --- the model ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LauncherModel:
    """What one more worker costs, from the difference between two sizes with the same number of hosts."""

    start_s: float
    memory_bytes: float
    task_s: float

    @classmethod
    def of(cls, few: Costs, many: Costs) -> LauncherModel:
        more = many.num_workers - few.num_workers

        def each(name: str) -> float:
            return (getattr(many, name) - getattr(few, name)) / more

        return cls(each("start_cpu_s"), each("memory_bytes"), each("task_cpu_s") / TASKS_EACH)

    def predicted(self, base: Costs, num_workers: int) -> dict[str, float]:
        """The costs of another size, from those of a measured one."""
        more = num_workers - base.num_workers
        return {
            "start_cpu_s": base.start_cpu_s + more * self.start_s,
            "memory_bytes": base.memory_bytes + more * self.memory_bytes,
            "task_cpu_s": base.task_cpu_s + more * self.task_s * TASKS_EACH,
        }


NAMES = {
    "start_cpu_s": ("CPU to start all workers", 1.0, "s"),
    "memory_bytes": ("memory with them", 1e-6, "MB"),
    "task_cpu_s": (f"CPU for {TASKS_EACH} tasks each", 1.0, "s"),
}


def model_lines(fit: Sequence[Costs], checks: Sequence[Costs]) -> list[str]:
    """The costs of one worker, and the predictions beside what was measured."""
    few, many = fit
    model = LauncherModel.of(few, many)
    lines = [
        f"one more worker: start {1e6 * model.start_s:.0f} µs, memory {model.memory_bytes / 1e3:.1f} kB, "
        f"one task out and back {1e6 * model.task_s:.0f} µs "
        f"(from {few.num_workers:,} and {many.num_workers:,} workers on {few.num_hosts} hosts)",
        "",
        "| workers | what | predicted | measured | error |",
        "| --- | --- | --- | --- | --- |",
    ]
    for costs in checks:
        found = model.predicted(many, costs.num_workers)
        for name, (words, scale, unit) in NAMES.items():
            predicted, measured = found[name] * scale, getattr(costs, name) * scale
            error = f"{predicted / measured - 1:+.0%}" if measured else "-"
            lines.append(
                f"| {costs.num_workers:,} | {words} | {predicted:.3g} {unit} | {measured:.3g} {unit} | {error} |"
            )
    return lines


# --- fan-outs in simulated time -------------------------------------------------------------------------------------


def fan_out_lines() -> list[str]:
    """Times of fan-outs by the decider that sessions use, between links of 1 Gbit/s."""
    from tests.processes.simulated_hosts import SimulatedHosts, hosts_of

    lines = [
        "| hosts | blob | one link | star | fan-out | x one link | copies of the launcher |",
        "|---|---|---|---|---|---|---|",
    ]
    for num_hosts in (2, 8, 64, 200, 800):
        for size_bytes in (1_000_000, 10_000_000, 100_000_000):
            hosts = SimulatedHosts(hosts_of(num_hosts), size_bytes)
            took, one = hosts.run(), size_bytes / GIGABIT
            copies = hosts.sent_by_launcher / size_bytes
            lines.append(
                f"| {num_hosts} | {size_bytes / 1e6:g} MB | {one:.3f} s | {num_hosts * one:.3g} s | {took:.3f} s "
                f"| {took / one:.2f} | {copies:.2f} |"
            )
    return lines


def numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--fit", type=numbers, default=[512, 2048], help="two sizes that the model is made from")
    parser.add_argument("--check", type=numbers, default=[1024, 4096, 8192], help="sizes that it is checked at")
    parser.add_argument("--hosts", type=int, default=8, help="processes that simulate the workers")
    parser.add_argument("--only", choices=["workers", "fan-out"])
    parser.add_argument("--here", type=numbers, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.here:
        print(json.dumps(asdict(measure(*arguments.here))))
        return
    print(f"{os.cpu_count()} cores, Linux {platform.release()}, Python {platform.python_version()}\n")
    if arguments.only != "fan-out":
        found: dict[int, Costs] = {}
        for size in dict.fromkeys([*arguments.fit, *arguments.check]):
            found[size] = measured_alone(size, arguments.hosts)
            print(asdict(found[size]), flush=True)
        print("", *model_lines([found[n] for n in arguments.fit], [found[n] for n in arguments.check]), sep="\n")
    if arguments.only != "workers":
        print("", *fan_out_lines(), sep="\n")


if __name__ == "__main__":
    main()
