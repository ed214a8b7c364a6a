"""One function for each row of the table: it measures all contenders side by side and judges ours.

Every row opens its pools first, warms them up, and then lets the contenders run
in turn, A B C, B C A, C A B, ..., so that whatever else the machine does falls
on all of them. A number is the median of the rounds; a ratio is one of medians.
Results are compared with the right ones in every round of every contender.
"""

from __future__ import annotations

import functools
import json
import math
import os
import pathlib
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import probes
import work
from contenders import Contender, opened, opener
from fresh import map_of_200

OURS = "ropewalk"
#: The libraries that ours is measured against, where they are installed. The first has to take part: goals are
#: ratios to it.
OTHERS = ("multiprocessing", "futures", "loky", "ray")
HERE = pathlib.Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the table."""

    what: str
    reach: str
    measured: str
    holds: bool | None
    """Whether the measured value reaches what it should; None for a line that only informs."""
    values: dict[str, str] = field(default_factory=dict[str, str])
    """The plain numbers behind the ratio, by contender."""


@dataclass(frozen=True, slots=True)
class Bench:
    """How thoroughly to measure, and against what else."""

    quick: bool = False
    floor: bool = False
    against: tuple[str, ...] = OTHERS

    def rounds(self, usual: int) -> int:
        return min(usual, 2) if self.quick else usual

    def tasks(self, usual: int) -> int:
        return usual // 10 if self.quick else usual

    @property
    def contenders(self) -> tuple[str, ...]:
        return (*self.against, OURS)

    def with_floor(self) -> tuple[str, ...]:
        return (*self.contenders, "bare") if self.floor else self.contenders


def wake(workers: int) -> Callable[[Contender], object]:
    """A warm-up: every worker runs a few tasks."""
    return lambda contender: contender.map(work.sleep, [0.002] * (workers * 20), 1)


def in_turn(
    contenders: dict[str, Contender], rounds: int, measure: Callable[[Contender], float]
) -> dict[str, list[float]]:
    """What `measure` returns for each contender in each round."""
    names = list(contenders)
    seen: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            time.sleep(0.05)  # lets the one before come to rest
            seen[name].append(measure(contenders[name]))
    return seen


def medians(seen: dict[str, list[float]]) -> dict[str, float]:
    return {name: statistics.median(values) for name, values in seen.items()}


def seconds_of(call: Callable[[], Any], expected: Any) -> float:
    start = time.perf_counter()
    result = call()
    elapsed = time.perf_counter() - start
    assert result == expected, "wrong results"
    return elapsed


def shown(values: dict[str, float], style: Callable[[float], str]) -> dict[str, str]:
    return {name: style(value) for name, value in values.items()}


def milliseconds(value: float) -> str:
    return f"{value * 1e3:.1f} ms" if value >= 0.01 else f"{value * 1e6:.0f} µs"


def per_second(value: float) -> str:
    return f"{value:,.0f}/s"


def seconds(value: float) -> str:
    return f"{value:.3f} s"


# ---------------------------------------------------------------- small tasks


def noop_rate(bench: Bench, count: int, chunksize: int | None, rounds: int) -> dict[str, float]:
    items = range(bench.tasks(count))
    expected = list(items)
    with opened(bench.with_floor(), 5, wake(5)) as contenders:
        seen = in_turn(
            contenders,
            bench.rounds(rounds),
            lambda contender: seconds_of(lambda: contender.map(work.noop, items, chunksize), expected),
        )
    return {name: len(items) / value for name, value in medians(seen).items()}


def noop(bench: Bench) -> Iterator[Line]:
    rate = noop_rate(bench, 20_000, 1, rounds=5)
    ratio = rate[OURS] / rate["multiprocessing"]
    yield Line(
        "no-op tasks, `chunksize=1`",
        ">= 1.2 x multiprocessing's tasks per second",
        f"{ratio:.2f} x",
        ratio >= 1.2,
        shown(rate, per_second),
    )


def noop_default(bench: Bench) -> Iterator[Line]:
    rate = noop_rate(bench, 100_000, None, rounds=7)
    ratio = rate[OURS] / rate["multiprocessing"]
    yield Line(
        "no-op tasks, default chunking",
        ">= 0.5 x multiprocessing's",
        f"{ratio:.2f} x",
        ratio >= 0.5,
        shown(rate, per_second),
    )


def round_trip(bench: Bench) -> Iterator[Line]:
    latencies: dict[int, list[float]] = {}

    def block(contender: Contender) -> float:
        mine = latencies.setdefault(id(contender), [])
        for number in range(200):
            mine.append(seconds_of(lambda number=number: contender.apply(work.noop, number), number))
        return 0.0

    with opened(bench.with_floor(), 5, wake(5)) as contenders:
        in_turn(contenders, bench.rounds(10), block)
        by_name = {name: latencies[id(contender)] for name, contender in contenders.items()}
    for percent, reach in ((50, 0.7), (99, 1.3)):
        value = {name: statistics.quantiles(values, n=100)[percent - 1] for name, values in by_name.items()}
        ratio = value[OURS] / min(value["multiprocessing"], value["futures"])
        yield Line(
            f"one task out and back, p{percent}",
            f"<= {reach} x the faster of multiprocessing and futures",
            f"{ratio:.2f} x",
            ratio <= reach,
            shown(value, milliseconds),
        )


# ---------------------------------------------------------------- tasks that last


def sleeps(bench: Bench) -> Iterator[Line]:
    count = bench.tasks(2_000)
    cpu: dict[int, list[float]] = {}

    def run(contender: Contender) -> float:
        pids = probes.family()
        before = probes.cpu_s(pids)
        start = time.perf_counter()
        slept = contender.map(work.sleep, [0.001] * count, 1)
        elapsed = time.perf_counter() - start
        cpu.setdefault(id(contender), []).append((probes.cpu_s(pids) - before) / count)
        assert len(slept) == count and min(slept) >= 0.001, "wrong results"
        return elapsed

    with opened(bench.contenders, 5, wake(5)) as contenders:
        wall = medians(in_turn(contenders, bench.rounds(7), run))
        cost = {name: statistics.median(cpu[id(contender)]) for name, contender in contenders.items()}
    ratio = wall[OURS] / min(wall["multiprocessing"], wall["futures"])
    yield Line(
        "1 ms sleeps, `chunksize=1`: time",
        "<= 1.03 x the faster of multiprocessing and futures",
        f"{ratio:.3f} x",
        ratio <= 1.03,
        shown(wall, seconds),
    )
    ratio = cost[OURS] / cost["multiprocessing"]
    yield Line(
        "1 ms sleeps, `chunksize=1`: CPU per task",
        "<= 0.7 x multiprocessing's",
        f"{ratio:.2f} x",
        ratio <= 0.7,
        shown(cost, milliseconds),
    )


def uneven(bench: Bench) -> Iterator[Line]:
    chance = random.Random(20030311)
    sigma, mean_s = 1.5, 0.005
    lognormal = [chance.lognormvariate(math.log(mean_s) - sigma * sigma / 2, sigma) for _ in range(1_000)]
    workers = 4
    for what, durations in (
        ("one 1 s task with 1,000 of 1 ms", [1.0] + [0.001] * 1_000),
        (f"1,000 lognormal durations ({sum(lognormal):.1f} s, longest {max(lognormal):.2f} s)", lognormal),
    ):

        def run(contender: Contender, durations: Sequence[float] = durations) -> float:
            start = time.perf_counter()
            slept = contender.map(work.sleep, durations)
            elapsed = time.perf_counter() - start
            assert len(slept) == len(durations), "wrong results"
            assert all(done >= asked for done, asked in zip(slept, durations, strict=True)), "wrong results"
            # No schedule is faster than the longest task, nor than all of them spread evenly.
            return elapsed / max(max(slept), sum(slept) / workers)

        with opened(bench.contenders, workers, wake(workers)) as contenders:
            ratio = medians(in_turn(contenders, bench.rounds(5), run))
        yield Line(
            f"{what}, 4 workers, default settings",
            "<= 1.10 x ideal",
            f"{ratio[OURS]:.3f} x",
            ratio[OURS] <= 1.10,
            shown(ratio, lambda value: f"{value:.2f} x ideal"),
        )


# ---------------------------------------------------------------- large values


def array(bench: Bench) -> Iterator[Line]:
    # Here and below: inside, because a forked worker inherits what this process has imported, and the rows of small
    # tasks should not carry numpy.
    import numpy as np

    size = 64_000_000 // (10 if bench.quick else 1)
    fresh = iter(range(1_000_000))

    def run(contender: Contender) -> float:
        sent = np.arange(size // 8, dtype=np.float64) + next(fresh)
        start = time.perf_counter()
        result = contender.apply(work.noop, sent)
        elapsed = time.perf_counter() - start
        assert result.flags.writeable, "the result is read-only"
        assert np.array_equal(result, sent), "wrong results"
        first = sent[0]
        result[:] = -1.0
        assert sent[0] == first and sent[-1] != -1.0, "the result is not independent of the argument"
        return elapsed

    with opened(
        bench.contenders, 5, lambda contender: contender.map(work.noop, [np.ones(1000)] * 100, 1)
    ) as contenders:
        in_turn(contenders, 1, run)
        rate = {
            name: 2 * size / value / 1e6 for name, value in medians(in_turn(contenders, bench.rounds(5), run)).items()
        }
    ratio = rate[OURS] / rate["multiprocessing"]
    yield Line(
        "64 MB array in and out",
        ">= 5 x multiprocessing's MB/s, writable, independent",
        f"{ratio:.1f} x",
        ratio >= 5,
        shown(rate, lambda value: f"{value:,.0f} MB/s"),
    )


def broadcast(bench: Bench) -> Iterator[Line]:
    import numpy as np

    fresh = iter(range(1_000_000))
    yield from broadcast_of(bench, "numpy array", lambda: np.arange(12_500_000, dtype=np.float64) + next(fresh))


def broadcast_torch(bench: Bench) -> Iterator[Line]:
    what = "100 MB constant (torch `state_dict`) needed by 16 tasks on 8 workers"
    try:
        import torch
    except ModuleNotFoundError:
        yield Line(what, "<= 0.06 x multiprocessing's time", "skipped: torch is not installed", None)
        return
    # Workers that inherit or start OpenMP threads would fight for two cores.
    torch.set_num_threads(1)
    fresh = iter(range(1_000_000))

    def state_dict() -> dict[str, Any]:
        shift = next(fresh)
        return {f"layers.{i}.weight": torch.full((1_250_000,), float(shift + i)) for i in range(20)}

    yield from broadcast_of(bench, "torch `state_dict`", state_dict)


def broadcast_of(bench: Bench, kind: str, make: Callable[[], Any]) -> Iterator[Line]:
    what = f"100 MB constant ({kind}) needed by 16 tasks on 8 workers"

    def run(contender: Contender) -> float:
        constant = make()  # new content each time, so that nobody can have kept it
        expected = [work.peek(constant, index) for index in range(16)]
        return seconds_of(lambda: contender.map(functools.partial(work.peek, constant), range(16), 1), expected)

    def warm_up(contender: Contender) -> None:
        small: Any = make()
        small = {name: part[:10] for name, part in small.items()} if isinstance(small, dict) else small[:10]
        contender.map(functools.partial(work.read_and_hold, small), range(8), 1)

    extra = {name: extra_bytes(name, make, warm_up) / 100e6 for name in ("multiprocessing", OURS)}
    yield Line(
        f"{what}: extra memory",
        "<= 1.3 x 100 MB",
        f"{extra[OURS]:.2f} x",
        extra[OURS] <= 1.3,
        shown(extra, lambda value: f"{value * 100:.0f} MB"),
    )

    with opened(bench.contenders, 8, warm_up) as contenders:
        wall = medians(in_turn(contenders, bench.rounds(3), run))
    ratio = wall[OURS] / wall["multiprocessing"]
    yield Line(f"{what}: time", "<= 0.06 x multiprocessing's", f"{ratio:.3f} x", ratio <= 0.06, shown(wall, seconds))


def extra_bytes(name: str, make: Callable[[], Any], warm_up: Callable[[Contender], None]) -> float:
    """By how much the memory of launcher and workers grows while 8 workers hold a constant the launcher has too."""
    with opened([name], 8, warm_up) as contenders:
        constant = make()
        before = most = probes.held_bytes(probes.family())
        answer = contenders[name].pool.map_async(functools.partial(work.read_and_hold, constant), range(16), 1)
        while not answer.ready():
            most = max(most, probes.held_bytes(probes.family()))
            time.sleep(0.02)
        assert len(set(answer.get())) == 1, "wrong results"
        return most - before


# ---------------------------------------------------------------- start and size


def fresh_interpreter(*arguments: str, limit_s: float = 60) -> dict[str, Any]:
    command = [sys.executable, str(HERE / "fresh.py"), *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        output, errors = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        # Its workers stand in this process's group and end with the row.
        process.kill()
        raise
    assert process.returncode == 0, f"fresh.py {' '.join(arguments)} failed:\n{errors}"
    # Some libraries print to standard output as they end.
    return json.loads(next(line for line in reversed(output.splitlines()) if line.startswith("{")))


def in_fresh_interpreters(
    rounds: int, names: Sequence[str], *arguments: str, limit_s: float = 60
) -> dict[str, dict[str, float]]:
    """Medians of what `fresh.py` says of each contender, asked in turn."""
    seen: dict[str, list[dict[str, float]]] = {name: [] for name in names if opener(name)}
    for _ in range(rounds):
        for name, answers in seen.items():
            answers.append(fresh_interpreter(arguments[0], name, *arguments[1:], limit_s=limit_s))
    return {
        name: {key: statistics.median(answer[key] for answer in answers) for key in answers[0]}
        for name, answers in seen.items()
    }


def first_result(bench: Bench) -> Iterator[Line]:
    seen = in_fresh_interpreters(bench.rounds(7), bench.contenders, "first-result")
    for what, key, reach in (("cold", "cold_s", 0.35), ("the next pool of the session", "next_s", 0.05)):
        value = {name: answer[key] for name, answer in seen.items()}
        yield Line(
            f"`Pool(4)` to first result, {what}",
            f"<= {reach} s",
            f"{value[OURS]:.3f} s",
            value[OURS] <= reach,
            shown(value, milliseconds),
        )


def many_workers(bench: Bench) -> Iterator[Line]:
    count = 128
    seen = in_fresh_interpreters(bench.rounds(3), ("multiprocessing", OURS), "many-workers", str(count))
    ours = seen[OURS]
    for what, reach, key, limit, unit in (
        ("all ready", "<= 1.5 s", "ready_s", 1.5, "s"),
        ("PSS of each (median)", "<= 5 MB", "pss_mb", 5.0, "MB"),
        ("PSS of agent and fork server", "<= 40 MB", "others_pss_mb", 40.0, "MB"),
    ):
        note = f" in {ours['others']:.0f} processes (RSS {ours['others_rss_mb']:.0f} MB)" if "agent" in what else ""
        yield Line(
            f"{count} workers: {what}",
            reach,
            f"{ours[key]:.2f} {unit}{note}",
            ours[key] <= limit,
            {name: f"{answer[key]:.2f} {unit}" for name, answer in seen.items()},
        )


def closing(bench: Bench) -> Iterator[Line]:
    for count, limit in ((100, 1.0), (1000, 3.0)):
        names = ("multiprocessing", OURS)
        seen = in_fresh_interpreters(bench.rounds(3), names, "closing", str(count), limit_s=200)
        ours = seen[OURS]["closed_s"]
        yield Line(
            f"{count:,} workers: `close()` and `join()`",
            f"<= {limit:g} s",
            f"{ours:.2f} s",
            ours <= limit,
            {name: f"{answer['closed_s']:.2f} s" for name, answer in seen.items()},
        )


def import_time(bench: Bench) -> Iterator[Line]:
    statements = {
        "bare": "pass",
        "multiprocessing": "import multiprocessing.pool",
        "futures": "import concurrent.futures.process",
        OURS: f"import {os.environ.get('BENCHMARK_POOL', OURS)}",
    }
    seen: dict[str, list[float]] = {name: [] for name in statements}
    for turn in range(1 + bench.rounds(10)):
        for name, statement in statements.items():
            start = time.perf_counter()
            subprocess.run([sys.executable, "-c", statement], check=True)
            if turn:  # the first round fills the file cache
                seen[name].append(time.perf_counter() - start)
    value = medians(seen)
    bare = value.pop("bare")
    value = {name: elapsed - bare for name, elapsed in value.items()}
    yield Line(
        "`import ropewalk`",
        "<= 100 ms",
        f"{value[OURS] * 1e3:.0f} ms",
        value[OURS] <= 0.1,
        shown(value, lambda elapsed: f"{elapsed * 1e3:.0f} ms"),
    )


# ---------------------------------------------------------------- programs and faults


def evolution(bench: Bench) -> Iterator[Line]:
    import numpy as np

    fresh = iter(range(1_000_000))
    iterations = bench.tasks(50)

    def run(contender: Contender) -> float:
        start = time.perf_counter()
        for _ in range(iterations):
            parameters = np.arange(250_000, dtype=np.float32) + next(fresh)
            fitness = contender.map(functools.partial(work.evaluate, parameters), range(64))
            assert fitness == [(seed, float(parameters[seed])) for seed in range(64)], "wrong results"
        return time.perf_counter() - start

    def warm_up(contender: Contender) -> None:
        contender.map(functools.partial(work.evaluate, np.arange(64)), range(64), 1)

    with opened(bench.contenders, 32, warm_up) as contenders:
        wall = medians(in_turn(contenders, bench.rounds(3), run))
    ratio = wall[OURS] / wall["multiprocessing"]
    yield Line(
        f"{iterations} ES iterations, 32 workers, 1 MB parameters, 64 tasks of 20 ms",
        "<= 0.5 x multiprocessing's time",
        f"{ratio:.2f} x",
        ratio <= 0.5,
        shown(wall, seconds) | {"ideal": seconds(iterations * 0.020 * 64 / 32)},
    )


def killed(bench: Bench) -> Iterator[Line]:
    with opened([OURS], 4, wake(4)) as contenders:
        ours = contenders[OURS]
        times = [(map_of_200(ours, kill=False), map_of_200(ours, kill=True)) for _ in range(bench.rounds(7))]
    whole, hurt = (statistics.median(column) for column in zip(*times, strict=True))
    yield Line(
        "a worker killed in mid-map of 200 tasks of 10 ms, 4 workers",
        "right answer, < 0.2 s lost",
        f"{hurt - whole:.3f} s lost",
        hurt - whole < 0.2,
        {OURS: f"{whole:.3f} s, killed {hurt:.3f} s"} | {name: fate(name) for name in bench.against if opener(name)},
    )


def fate(name: str) -> str:
    """What happens to another library's map when a worker is killed."""
    try:
        return fresh_interpreter("killed", name, limit_s=8)["outcome"]
    except subprocess.TimeoutExpired:
        return "hangs"


ROWS: dict[str, Callable[[Bench], Iterator[Line]]] = {
    "noop": noop,
    "noop-default": noop_default,
    "round-trip": round_trip,
    "sleeps": sleeps,
    "uneven": uneven,
    "array": array,
    "broadcast": broadcast,
    "broadcast-torch": broadcast_torch,
    "first-result": first_result,
    "many-workers": many_workers,
    "closing": closing,
    "evolution": evolution,
    "killed": killed,
    "import": import_time,
}
