"""Replay in process: items of a prioritized table, and rows of three sizes against plain copies of the same bytes."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping

import numpy as np
from call_rows import by_turns
from exchange_bench import Bench, Row
from pool_rows import Line

from ropewalk.rl.replay.insertion import Insertion, NewItems, RowsOf
from ropewalk.rl.replay.limiters import MinSize
from ropewalk.rl.replay.selectors import Fifo, Prioritized, Selector, UniformSelector
from ropewalk.rl.replay.table import ReplayTable
from ropewalk.rl.replay.tables import ReplayTables

ITEMS = 100_000
CALLS = 300
BATCH = 64
ROW_BYTES = {40: (100_000, 16), 28_224: (4_000, 16), 1 << 20: (100, 1)}
"""By size of a row: how many a table keeps, and how many come at once."""


class Writer:
    """One stream of insertions; each row is one item."""

    def __init__(self, sampler: Selector, max_size: int, columns: dict[str, tuple[tuple[int, ...], str]]) -> None:
        table = ReplayTable("t", sampler=sampler, remover=Fifo(), max_size=max_size, limiter=MinSize(1))
        self.replay = ReplayTables([table])
        self.columns = columns
        self.sequence = self.num_rows = 0

    def rows(self, num: int) -> dict[str, np.ndarray]:
        return {name: np.ones((num, *shape), dtype) for name, (shape, dtype) in self.columns.items()}

    def insert(self, rows: dict[str, np.ndarray]) -> None:
        numbers = np.arange(self.num_rows, self.num_rows + len(next(iter(rows.values()))))
        items = {"t": NewItems({name: RowsOf(name, numbers) for name in rows})}
        self.replay.insert(Insertion("0#0", self.sequence, rows, items))
        self.sequence += 1
        self.num_rows += len(numbers)

    def fill(self, num_items: int, at_once: int) -> None:
        rows = self.rows(at_once)
        for _ in range(0, num_items, at_once):
            self.insert(rows)


def prioritized(bench: Bench) -> Iterator[Line]:
    """A full table of transitions in five columns: each insertion removes as many items as it adds."""
    transition = {
        "observation": ((4,), "float32"),
        "action": ((), "int64"),
        "reward": ((), "float32"),
        "discount": ((), "float32"),
        "next_observation": ((4,), "float32"),
    }
    num_items, calls = bench.count(ITEMS), bench.count(CALLS)
    writer = Writer(Prioritized(0.6), num_items, transition)
    writer.fill(num_items, num_items // 10)
    one, sixteen = writer.rows(1), writer.rows(16)
    keys = writer.replay.sample("t", BATCH).info.keys
    priorities = np.random.default_rng(0).random(BATCH)
    times = cpu_times(
        bench,
        {
            "add 1": repeated(calls, lambda: writer.insert(one)),
            "add 16": repeated(calls, lambda: writer.insert(sixteen)),
            "sample 64": repeated(calls, lambda: writer.replay.sample("t", BATCH)),
            "update 64": repeated(calls, lambda: writer.replay.update_priorities("t", keys, priorities)),
        },
    )
    each = {name: seconds / calls * 1e6 for name, seconds in times.items()}
    ratio = each["add 16"] / each["add 1"]
    yield Line(
        f"add to a prioritized table of {num_items:,} transitions, 16 at once against 1",
        "<= 1.5 x",
        f"{ratio:.2f} x: {each['add 1']:.0f} us, {each['add 16']:.0f} us",
        ratio <= 1.5,
    )
    yield Line("sample 64 of it", "<= 58 us (cpprb)", f"{each['sample 64']:.0f} us", each["sample 64"] <= 58)
    yield Line("update 64 priorities", "", f"{each['update 64']:.0f} us", None)


def rows(bench: Bench) -> Iterator[Line]:
    """A full table of one column: bytes per second in and out."""
    for size, (num_items, at_once) in ROW_BYTES.items():
        calls = bench.count(CALLS if size < 1000 else CALLS // 3)
        writer = Writer(UniformSelector(), num_items, {"x": ((size,), "uint8")})
        writer.fill(num_items, at_once)
        new = writer.rows(at_once)
        # As large as the table, so that rows come from memory and not from a cache.
        source, target = np.ones((num_items, size), np.uint8), np.ones((32, size), np.uint8)
        places = itertools.cycle(range(0, num_items - 31, 32))
        times = cpu_times(
            bench,
            {
                "insert": repeated(calls, lambda: writer.insert(new)),  # noqa: B023
                "sample": repeated(calls, lambda: writer.replay.sample("t", 32, lambda shape, dtype: target)),  # noqa: B023
                "copy": repeated(calls, lambda: np.copyto(target, source[(place := next(places)) : place + 32])),  # noqa: B023
            },
        )
        inserted, sampled, copied = (
            at_once * calls / times["insert"],
            32 * calls / times["sample"],
            times["copy"] / calls,
        )
        share = times["copy"] / times["sample"]
        judged = inserted * size >= 250e6 if size > 1000 else sampled >= 100e3
        yield Line(
            f"insert {at_once} rows of {size:,} bytes",
            ">= 250 MB/s" if size > 1000 else "",
            f"{inserted:,.0f} rows/s, {inserted * size / 1e6:,.0f} MB/s",
            judged if size > 1000 else None,
        )
        yield Line(
            f"sample 32 rows of {size:,} bytes",
            ">= 30 % of a copy into memory that is there" if size > 1000 else ">= 100,000 rows/s",
            f"{sampled:,.0f} rows/s, {share:.0%} of a copy ({32 * size / copied / 1e9:.1f} GB/s)",
            share >= 0.3 if size > 1000 else judged,
        )


def cpu_times(bench: Bench, contenders: Mapping[str, Callable[[], object]]) -> dict[str, float]:
    """As `Bench.times`, in CPU time: nothing here waits, and other processes take turns with ours."""

    def measure(name: str) -> float:
        begun = time.thread_time()
        contenders[name]()
        return time.thread_time() - begun

    return by_turns(list(contenders), bench.repeats, measure)


def repeated(calls: int, work: Callable[[], object]) -> Callable[[], None]:
    def run() -> None:
        for _ in range(calls):
            work()

    return run


ROWS: dict[str, Row] = {"replay_items": prioritized, "replay_rows": rows}
