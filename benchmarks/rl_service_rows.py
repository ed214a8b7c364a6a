"""Replay as a service: rows in and out against Reverb, and calls while it is saved. Rows are random bytes."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import statistics
import subprocess
import time
from collections.abc import Generator, Iterator
from typing import Any, Protocol

import numpy as np
import probes
from exchange_bench import Bench, Row
from pool_rows import Line
from rl_bench import Rate, middle

import ropewalk as rw
from ropewalk import rl
from ropewalk.rl.replay.insertion import NewItems, RowsOf


@dataclasses.dataclass(frozen=True, slots=True)
class Shape:
    """Of one table: how many rows it keeps, how many come in one message, and how many are measured."""

    row_bytes: int
    max_size: int
    at_once: int
    inserts: int
    samples: int


SHAPES = (
    Shape(40, 16_000, 160, 64_000, 32_000),
    Shape(28_224, 2_000, 16, 6_000, 12_000),
    Shape(141_120, 500, 4, 2_000, 4_000),
    Shape(1 << 20, 100, 1, 400, 800),
)
BATCH = 32
SAVED = Shape(28_224, 7_100, 16, 0, 0)
"""Of 200 MB."""


class ReplayUser:
    """Fills and samples tables from a process of its own."""

    def __init__(self, replay: rl.ReplayServer) -> None:
        self._replay = replay
        self._streams: dict[int, Stream] = {}

    def insert(self, shape: Shape, num_rows: int, *, ahead: int = 4) -> float:
        """Insert rows, each of which is an item, and return the seconds that it took."""
        stream = self._stream(shape)
        inserter = rl.Inserter(self._replay, ahead)
        stream.begin()
        began = time.perf_counter()
        for _ in range(0, num_rows, shape.at_once):
            inserter.insert(stream.next())
        inserter.flush()
        seconds = time.perf_counter() - began
        inserter.close()
        return seconds

    def write(self, shape: Shape, num_rows: int) -> float:
        """The same row by row."""
        rows, table = self._stream(shape).rows, str(shape.row_bytes)
        with rl.TrajectoryWriter(self._replay, keep=1, num_items=shape.at_once) as writer:
            began = time.perf_counter()
            for number in range(num_rows):
                writer.append({table: rows[number % len(rows)]})
                writer.create_item(table, {"x": writer.history[table][-1]})
            writer.flush()
            return time.perf_counter() - began

    def sample(self, shape: Shape, num_rows: int) -> float:
        """Sample in batches, and look at each; returns seconds."""
        with rl.Sampler(self._replay, str(shape.row_bytes), BATCH) as sampler:
            next(sampler)
            began = time.perf_counter()
            for _ in range(0, num_rows, BATCH):
                batch = next(sampler)
                assert batch.columns["x"].shape == (BATCH, shape.row_bytes)
                del batch
            return time.perf_counter() - began

    def copy(self, shape: Shape, num_rows: int) -> float:
        """Copy batches from memory into memory that is there."""
        rows = np.ones((max(shape.max_size, BATCH), shape.row_bytes), np.uint8)
        target = np.ones((BATCH, shape.row_bytes), np.uint8)
        places = range(0, len(rows) - BATCH + 1, BATCH)
        began = time.perf_counter()
        for number in range(num_rows // BATCH):
            place = places[number % len(places)]
            np.copyto(target, rows[place : place + BATCH])
        return time.perf_counter() - began

    def durations(self, shape: Shape, duration_s: float) -> dict[str, list[float]]:
        """Insert and sample in turn; the duration of each call."""
        stream, table = self._stream(shape), str(shape.row_bytes)
        inserter = rl.Inserter(self._replay, 1)
        stream.begin()
        seen: dict[str, list[float]] = {"insert": [], "sample": []}
        end = time.perf_counter() + duration_s
        with rl.Sampler(self._replay, table, BATCH, ahead=1) as sampler:
            while (began := time.perf_counter()) < end:
                inserter.insert(stream.next())
                inserter.flush()
                inserted = time.perf_counter()
                next(sampler)
                seen["insert"].append(inserted - began)
                seen["sample"].append(time.perf_counter() - inserted)
        inserter.close()
        return seen

    def _stream(self, shape: Shape) -> Stream:
        return self._streams.setdefault(shape.row_bytes, Stream(shape))


class Stream:
    """Insertions of rows of one shape."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._life = -1
        self._sequence = 0
        self.rows = np.random.default_rng(0).integers(0, 256, (max(64, shape.at_once), shape.row_bytes), np.uint8)

    def begin(self) -> None:
        self._life += 1
        self._sequence = 0

    def next(self) -> rl.Insertion:
        num = self._shape.at_once
        numbers = np.arange(self._sequence * num, (self._sequence + 1) * num)
        start = self._sequence * num % (len(self.rows) - num + 1)
        table = str(self._shape.row_bytes)
        insertion = rl.Insertion(
            f"{table}#{self._life}",
            self._sequence,
            {table: self.rows[start : start + num]},
            {table: NewItems({"x": RowsOf(table, numbers)})},
        )
        self._sequence += 1
        return insertion


def table_of(shape: Shape) -> rl.ReplayTable:
    return rl.ReplayTable(
        str(shape.row_bytes),
        sampler=rl.Uniform(),
        remover=rl.Fifo(),
        max_size=shape.max_size,
        limiter=rl.MinSize(1),
    )


@contextlib.contextmanager
def replay_of(*shapes: Shape, **options: Any) -> Generator[Any]:
    """A replay service with full tables, and the client of a `ReplayUser` of it."""
    program = rw.Program("replay")
    replay = program.add(rl.Replay([table_of(shape) for shape in shapes]), name="replay", **options)
    program.add(rw.Service(ReplayUser, replay.client(on_lost="retry")), name="user")
    with program.launch() as running:
        user = running.client("user")
        for shape in shapes:
            user.insert(shape, shape.max_size + shape.at_once)
        yield user


# ---------------------------------------------------------------- against Reverb


class Replaying(Protocol):
    """A contender."""

    def measure(self, what: str, shape: Shape, num_rows: int) -> Rate: ...


class Ours:
    def __init__(self, user: Any) -> None:
        self._user = user
        self._pids = probes.family()

    def measure(self, what: str, shape: Shape, num_rows: int) -> Rate:
        cpu_s = probes.cpu_s(self._pids)
        seconds = getattr(self._user, what)(shape, num_rows)
        return Rate(num_rows, seconds, probes.cpu_s(self._pids) - cpu_s)


class Reverb:
    """`rl_reverb.py`, in the Python of an environment of its own."""

    def __init__(self, python: str) -> None:
        script = pathlib.Path(__file__).with_name("rl_reverb.py")
        self._process = subprocess.Popen(
            [python, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self._ask({"shapes": [dataclasses.asdict(shape) for shape in SHAPES]})

    def measure(self, what: str, shape: Shape, num_rows: int) -> Rate:
        return Rate(**self._ask({"what": what, "row_bytes": shape.row_bytes, "num_rows": num_rows}))

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()

    def _ask(self, question: dict[str, Any]) -> dict[str, float]:
        assert self._process.stdin and self._process.stdout
        print(json.dumps(question), file=self._process.stdin, flush=True)
        for line in self._process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        raise RuntimeError(f"Reverb's process ended with code {self._process.wait()}")


def service(bench: Bench) -> Iterator[Line]:
    python = os.environ.get("BENCHMARK_REVERB_PYTHON")
    with contextlib.ExitStack() as stack:
        mine = Ours(stack.enter_context(replay_of(*SHAPES)))
        contenders: dict[str, Replaying] = {"ropewalk": mine}
        if python:
            contenders["Reverb"] = reverb = Reverb(python)
            stack.callback(reverb.close)
        for shape in SHAPES:
            yield from inserted(bench, shape, contenders, mine)
        for shape in SHAPES:
            yield from sampled(bench, shape, contenders, mine)


def inserted(bench: Bench, shape: Shape, contenders: dict[str, Replaying], mine: Ours) -> Iterator[Line]:
    num_rows = max(shape.at_once, bench.count(shape.inserts) // shape.at_once * shape.at_once)
    rates = by_turns("insert", bench, shape, num_rows, contenders)
    rates["row by row"] = middle([mine.measure("write", shape, num_rows) for _ in range(2)])
    mb_s = rates["ropewalk"].per_wall_s * shape.row_bytes / 1e6
    target_mb_s = 250 if shape.row_bytes == 28_224 else 0
    yield against_reverb(
        f"replay service: insert rows of {shape.row_bytes:,} bytes, {shape.at_once} a message",
        ">= Reverb" + f" and >= {target_mb_s} MB/s" * bool(target_mb_s),
        mb_s >= target_mb_s,
        shape,
        rates,
    )


def sampled(bench: Bench, shape: Shape, contenders: dict[str, Replaying], mine: Ours) -> Iterator[Line]:
    num_rows = max(BATCH, bench.count(shape.samples) // BATCH * BATCH)
    rates = by_turns("sample", bench, shape, num_rows, contenders)
    rates["copy"] = middle([mine.measure("copy", shape, num_rows) for _ in range(3)])
    if shape.row_bytes == 40:
        reach, fulfilled = ">= Reverb and >= 100,000 rows/s", rates["ropewalk"].per_wall_s >= 100_000
    else:
        reach, fulfilled = (
            ">= Reverb and >= 30 % of a copy",
            rates["ropewalk"].per_wall_s >= 0.3 * rates["copy"].per_wall_s,
        )
    yield against_reverb(
        f"replay service: sample rows of {shape.row_bytes:,} bytes, {BATCH} a call", reach, fulfilled, shape, rates
    )


def by_turns(what: str, bench: Bench, shape: Shape, num_rows: int, contenders: dict[str, Replaying]) -> dict[str, Rate]:
    seen: dict[str, list[Rate]] = {name: [] for name in contenders}
    for turn in range(2 if bench.quick else 6):
        for name in list(contenders)[:: -1 if turn % 2 else 1]:
            rate = contenders[name].measure(what, shape, num_rows)
            if turn:
                seen[name].append(rate)
    return {name: middle(rates) for name, rates in seen.items()}


def against_reverb(what: str, reach: str, fulfilled: bool, shape: Shape, rates: dict[str, Rate]) -> Line:
    measured = f"{rates['ropewalk'].per_wall_s * shape.row_bytes / 1e6:,.0f} MB/s"
    values = {
        name: f"{rate.per_wall_s:,.0f} rows/s, {rate.per_wall_s * shape.row_bytes / 1e6:,.0f} MB/s, "
        f"{1e6 * rate.cpu_s:.0f} µs of CPU a row"
        for name, rate in rates.items()
    }
    if "Reverb" not in rates:
        values["Reverb"] = "left out: BENCHMARK_REVERB_PYTHON names no Python that has it"
        return Line(what, reach, measured, None if fulfilled else False, values)
    ratio = rates["ropewalk"].per_wall_s / rates["Reverb"].per_wall_s
    if "copy" in rates:
        measured += f", {rates['ropewalk'].per_wall_s / rates['copy'].per_wall_s:.0%} of a copy"
    return Line(what, reach, f"{ratio:.2f} x Reverb, {measured}", fulfilled and ratio >= 1, values)


# ---------------------------------------------------------------- while it is saved


def checkpoints(bench: Bench) -> Iterator[Line]:
    """200 MB saved each second; insert 16 rows, sample 32, one call after the other."""
    duration_s = 1.5 if bench.quick else 5.0
    saved = {"ropewalk": {"checkpoint_s": 1.0, "restart": "on_failure"}, "not saved": dict[str, Any]()}
    seen: dict[str, dict[str, list[float]]] = {name: {"insert": [], "sample": []} for name in saved}
    for turn in range(1 if bench.quick else 3):
        for name in list(saved)[:: -1 if turn % 2 else 1]:
            with replay_of(SAVED, **saved[name]) as user:
                for what, durations in user.durations(SAVED, duration_s).items():
                    seen[name][what] += durations
    worst = {name: max(max(each) for each in calls.values()) for name, calls in seen.items()}
    values = {name: told(calls) for name, calls in seen.items()}
    what = "replay of 200 MB, saved each second"
    yield Line(
        f"{what}: longest call",
        "< 5 ms longer than without",
        f"{1e3 * worst['ropewalk']:.1f} ms, {1e3 * worst['not saved']:.1f} ms without",
        worst["ropewalk"] - worst["not saved"] < 5e-3,
        values,
    )
    calls = {name: len(each["insert"]) for name, each in seen.items()}
    share = calls["ropewalk"] / calls["not saved"]
    yield Line(f"{what}: calls per second", ">= 90 % of those without", f"{share:.0%}", share >= 0.9, values)


def told(calls: dict[str, list[float]]) -> str:
    return ", ".join(
        f"{what} {1e3 * statistics.median(each):.2f} ms (99 %: {1e3 * quantile(each, 0.99):.1f}, "
        f"99.9 %: {1e3 * quantile(each, 0.999):.1f}, longest {1e3 * max(each):.1f})"
        for what, each in calls.items()
    )


def quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


ROWS: dict[str, Row] = {"replay_service": service, "replay_checkpoints": checkpoints}
