"""Metrics on their way into a store: records are transposed into points of series, and stored as blocks.

    Metrics(names=[loss, acc], values=[0.7, 0.6], step=1)      loss: steps [1, 2], values [0.7, 0.5]  ─▶ one block
    Metrics(names=[loss, acc], values=[0.5, 0.8], step=2)  ─▶  acc:  steps [1, 2], values [0.6, 0.8]  ─▶ one block

A transaction costs a few statements, whatever the number of points is, and one row for each series that it touches.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, Row, RowMapping, bindparam, delete, select, update

from ropewalk.tracking.metric_columns import columns_of
from ropewalk.tracking.records import MetricColumns, Metrics
from ropewalk.tracking.store.blocks import FULL, Points, cuts, num_small, num_to_merge, pack, pack_axes, unpack
from ropewalk.tracking.store.column_values import from_number, to_name, to_number
from ropewalk.tracking.store.databases import insert
from ropewalk.tracking.store.schema import BLOCKS, SERIES

# Statements of each transaction are made once: making one takes as long as executing it.
_CHOSEN_SERIES = (
    select(SERIES).where(SERIES.c.id.in_(bindparam("ids", expanding=True))).order_by(SERIES.c.id).with_for_update()
)
_UPDATE = (
    update(SERIES)
    .where(SERIES.c.id == bindparam("series_id"))
    .values({name: bindparam(name) for name in ("count", "num_nan", "total", "least", "greatest", "last")})
    .values(last_step=bindparam("last_step"), last_time=bindparam("last_time"))
)
_SMALL_BLOCKS = (
    select(BLOCKS)
    .where(
        BLOCKS.c.series.in_(bindparam("ids", expanding=True)),
        BLOCKS.c.start >= bindparam("first"),  # of some series; those of others are not many
        BLOCKS.c.count < FULL,
    )
    .order_by(BLOCKS.c.series, BLOCKS.c.start)
)
_DELETE_BLOCK = delete(BLOCKS).where(BLOCKS.c.series == bindparam("series_id"), BLOCKS.c.start == bindparam("first"))

SeriesKey = tuple[str, str, str]
"""Run, group and name."""


@dataclass(slots=True)
class _Tail:
    """The blocks of a series that are not full.

    Attributes:
        num_points: points of the whole series; if the database has another number, another process has added some.
        counts: points of each of those blocks.
    """

    num_points: int
    counts: list[int]


class SeriesCache:
    """What a writer remembers of series, so that it need not ask for it in each transaction.

    It may be forgotten at any time, and must be when a transaction fails.
    """

    def __init__(self) -> None:
        self.ids: dict[SeriesKey, int] = {}
        self.tails: dict[int, _Tail] = {}

    def forget(self) -> None:
        """Forget everything."""
        self.ids.clear()
        self.tails.clear()

    def forget_runs(self, runs: Collection[str]) -> None:
        """Forget the series of runs that have ended."""
        for key in [key for key in self.ids if key[0] in runs]:
            self.tails.pop(self.ids.pop(key), None)


def transposed(records: Iterable[tuple[str, Metrics | MetricColumns]]) -> dict[SeriesKey, Points]:
    """Return the points of each series, in the order of the records.

    Raises:
        ValueError, TypeError: a record has values that are no numbers, or not as many as names.
    """
    groups: dict[tuple[str, str, tuple[str, ...]], list[tuple[int, MetricColumns]]] = {}
    same: dict[tuple[str, str, int], list[tuple[int, MetricColumns]]] = {}  # by list of names, which records share
    position = 0
    for run, record in records:
        if (group := same.get((run, record.group, id(record.names)))) is None:
            group = groups.setdefault((run, record.group, tuple(record.names)), [])
            same[run, record.group, id(record.names)] = group
        columns = record if isinstance(record, MetricColumns) else columns_of([record])
        group.append((position, columns))
        position += columns.num_rows
    parts: dict[SeriesKey, list[tuple[Points, NDArray[np.int64]]]] = {}
    for (run, group_name, names), group in groups.items():
        found = [columns for _, columns in group]
        table = _numbers(one.numbers for one in found).reshape(-1, len(names)) if names else np.empty((0, 0))
        steps, times = _numbers(one.steps for one in found), _numbers(one.times for one in found)
        positions = np.concatenate([np.arange(at, at + one.num_rows) for at, one in group])
        for name, column in zip(names, np.ascontiguousarray(table.T), strict=True):
            key = (run, to_name(group_name), to_name(name))
            parts.setdefault(key, []).append((Points(steps, times, column), positions))
    return {key: part[0][0] if len(part) == 1 else _in_order(part) for key, part in parts.items()}


def _numbers(parts: Iterable[bytes]) -> NDArray[np.float64]:
    return np.frombuffer(b"".join(parts), "<f8")


def _in_order(parts: Sequence[tuple[Points, NDArray[np.int64]]]) -> Points:
    """Join points of records that had the name beside different other names."""
    order = np.argsort(np.concatenate([positions for _, positions in parts]), kind="stable")
    found = [points for points, _ in parts]
    steps, times, values = (np.concatenate([getattr(p, name) for p in found]) for name in ("steps", "times", "values"))
    return Points(steps, times, values)[order]


def add_points(connection: Connection, series: Mapping[SeriesKey, Points], cache: SeriesCache) -> None:
    """Store points at the end of their series."""
    ids = _ids(connection, series, cache)
    # In the order of ids, in which all writers take the locks of PostgreSQL.
    points = dict(sorted((ids[key], points) for key, points in series.items()))
    found = connection.execute(_CHOSEN_SERIES, {"ids": list(points)}).mappings().all()
    facts = {row["id"]: row for row in found}
    tails = _tails(connection, {id: facts[id]["count"] for id in points}, cache)
    connection.execute(_UPDATE, [_totals(facts[id], added) for id, added in points.items()])
    blocks: list[dict[str, Any]] = []
    heads: dict[tuple[int, int], bytes] = {}  # by the steps, which the series of the same records share
    for id, added in points.items():
        tail = tails[id]
        for begin, end in cuts(len(added)):
            if (head := heads.get((builtins.id(added.steps), begin))) is None:
                head = pack_axes(added.steps[begin:end], added.times[begin:end])
                heads[builtins.id(added.steps), begin] = head
            data = head + added.values[begin:end].tobytes()
            blocks.append({"series": id, "start": tail.num_points, "count": end - begin, "data": data})
            tail.num_points += end - begin
            tail.counts.append(end - begin)
        tail.counts = tail.counts[len(tail.counts) - num_small(tail.counts) :]
    connection.execute(BLOCKS.insert(), blocks)
    _merge(connection, {id: (tails[id], num) for id in points if (num := num_to_merge(tails[id].counts))})


def merge_all(connection: Connection, runs: Collection[str]) -> None:
    """Merge the small blocks of runs that have ended."""
    query = select(BLOCKS.c.series, BLOCKS.c.count).join(SERIES).where(SERIES.c.run.in_(runs))
    counts: dict[int, list[int]] = {}
    for id, count in connection.execute(query.order_by(BLOCKS.c.series, BLOCKS.c.start)):
        counts.setdefault(id, []).append(count)
    small = {id: num for id, found in counts.items() if (num := num_small(found)) > 1}
    _merge(connection, {id: (_Tail(sum(counts[id]), counts[id][-num:]), num) for id, num in small.items()})


def _ids(connection: Connection, keys: Collection[SeriesKey], cache: SeriesCache) -> dict[SeriesKey, int]:
    if new := _unknown(connection, keys, cache):
        new.sort()  # the order in which all writers take the locks of PostgreSQL
        rows = [{"run": run, "group": group, "name": name, "count": 0, "num_nan": 0} for run, group, name in new]
        connection.execute(insert(connection, SERIES).on_conflict_do_nothing(), rows)
        _unknown(connection, keys, cache)
    return {key: cache.ids[key] for key in keys}


def _unknown(connection: Connection, keys: Collection[SeriesKey], cache: SeriesCache) -> list[SeriesKey]:
    """Return the series that the database does not have; the others are in the cache then."""
    runs = {key[0] for key in keys if key not in cache.ids}
    if runs:
        query = select(SERIES.c.run, SERIES.c.group, SERIES.c.name, SERIES.c.id).where(SERIES.c.run.in_(runs))
        cache.ids.update(((run, group, name), id) for run, group, name, id in connection.execute(query))
    return [key for key in keys if key not in cache.ids]


def _tails(connection: Connection, num_points: Mapping[int, int], cache: SeriesCache) -> dict[int, _Tail]:
    """Return the blocks that are not full, of series that have these numbers of points."""
    unknown: list[int] = []
    for id, num in num_points.items():
        tail = cache.tails.get(id)
        if tail is None or tail.num_points != num:
            cache.tails[id] = _Tail(num, [])
            if num:
                unknown.append(id)
    if unknown:
        query = select(BLOCKS.c.series, BLOCKS.c.count).where(BLOCKS.c.series.in_(unknown))
        for id, count in connection.execute(query.order_by(BLOCKS.c.series, BLOCKS.c.start)):
            cache.tails[id].counts.append(count)
        for id in unknown:
            counts = cache.tails[id].counts
            cache.tails[id].counts = counts[len(counts) - num_small(counts) :]
    return {id: cache.tails[id] for id in num_points}


def _totals(facts: RowMapping, added: Points) -> dict[str, Any]:
    """Return the new columns of a series."""
    values = added.values
    with np.errstate(over="ignore", invalid="ignore"):
        total = float(values.sum())
    known = values if math.isfinite(total) else values[~np.isnan(values)]
    totals: dict[str, Any] = {
        "series_id": facts["id"],
        "count": facts["count"] + len(values),
        "num_nan": facts["num_nan"] + len(values) - len(known),
        "total": facts["total"],
        "least": facts["least"],
        "greatest": facts["greatest"],
    }
    newest = len(values) - 1
    if added.times[newest] != added.times.max():
        newest -= int(np.argmax(added.times[::-1]))
    # Of two processes that write a run one after the other, the records of the first may come last.
    if facts["last_time"] is None or not added.times[newest] < from_number(facts["last_time"]):
        totals["last"] = to_number(float(values[newest]))
        totals["last_step"] = to_number(float(added.steps[newest]))
        totals["last_time"] = to_number(float(added.times[newest]))
    else:
        totals |= {name: facts[name] for name in ("last", "last_step", "last_time")}
    if len(known):
        least, greatest = float(known.min()), float(known.max())
        with np.errstate(over="ignore", invalid="ignore"):  # infinities of both signs
            before = from_number(facts["total"]) if facts["count"] > facts["num_nan"] else 0.0
            total = float(known.sum()) + before
        totals["total"] = to_number(total)
        totals["least"] = least if facts["least"] is None else min(least, facts["least"])
        totals["greatest"] = greatest if facts["greatest"] is None else max(greatest, facts["greatest"])
    return totals


def _merge(connection: Connection, chosen: Mapping[int, tuple[_Tail, int]]) -> None:
    """Merge the last blocks of series, as many as are chosen of each, according to tails that need not be exact."""
    if not chosen:
        return
    first = {id: tail.num_points - sum(tail.counts[-num:]) for id, (tail, num) in chosen.items()}
    found: dict[int, list[Row[Any]]] = {id: [] for id in chosen}
    for row in connection.execute(_SMALL_BLOCKS, {"ids": list(first), "first": min(first.values())}):
        if row.start >= first[row.series]:
            found[row.series].append(row)
    gone: list[dict[str, Any]] = []
    merged: list[dict[str, Any]] = []
    for id, blocks in found.items():
        blocks = _without_gaps(blocks)
        if len(blocks) > 1:
            gone += [{"series_id": id, "first": block.start} for block in blocks]
            points = unpack([bytes(block.data) for block in blocks])
            merged.append({"series": id, "start": blocks[0].start, "count": len(points), "data": pack(points)})
    if merged:
        connection.execute(_DELETE_BLOCK, gone)
        connection.execute(BLOCKS.insert(), merged)
    for tail, num in chosen.values():
        tail.counts[-num:] = [sum(tail.counts[-num:])]
        tail.counts = tail.counts[len(tail.counts) - num_small(tail.counts) :]


def _without_gaps(blocks: Sequence[Row[Any]]) -> Sequence[Row[Any]]:
    """Return the blocks at the end between which no block is missing, such as a full one of another process."""
    for number in range(len(blocks) - 1, 0, -1):
        before = blocks[number - 1]
        if before.start + before.count != blocks[number].start:
            return blocks[number:]
    return blocks
