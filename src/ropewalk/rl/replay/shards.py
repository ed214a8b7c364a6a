"""`ShardedReplay`: several replay servers as one. Each run id has its shard; a batch is from one shard.

    insert:   run id ── hash ──▶ shard                 all rows of a stream, and the items over them, are in one place
    sample:   weights of the shards ── draw ──▶ shard  an item is as likely as in a single table of all items
    keys:     key in the shard * number of shards + number of the shard

When a shard is lost, its items are lost unless it is restored, and the others go on.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ropewalk.errors import ServiceLost
from ropewalk.rl.replay.batch import Batch
from ropewalk.rl.replay.insertion import Insertion
from ropewalk.rl.replay.item_facts import NUMBER_BITS, POSITION_BITS
from ropewalk.rl.replay.limiters.limiter import Limiter
from ropewalk.rl.replay.sample_calls import Answer, Drawn, SampleCalls
from ropewalk.rl.replay.table import ReplayTable
from ropewalk.rl.replay.table_info import TableInfo

Result = TypeVar("Result")

_LEAST = 1e-300
"""Weight of an item of a shard in which all priorities are 0; far below that of any priority above 0."""

_MOST_SHARDS = 1 << (63 - NUMBER_BITS - POSITION_BITS)
"""A key of more shards would need more than 63 bits."""
_PATIENCE_S = 0.5
"""Seconds for which a shard that was drawn may take to answer before another one, which has, is taken in its place."""


class ShardedReplay:
    """Clients of replay servers with equal tables, used as one replay.

    Args:
        shards: one client for each; a client of several replicas gives one for each replica when iterated over.
        seed: seed of the choice of shards.

    Raises:
        ValueError: there is no shard, or there are more than 64.
    """

    def __init__(self, shards: Iterable[Any], seed: int = 0) -> None:
        self.shards: tuple[Any, ...] = tuple(shards)
        if not 1 <= len(self.shards) <= _MOST_SHARDS:
            raise ValueError(f"ShardedReplay needs 1 to {_MOST_SHARDS} shards, not {len(self.shards)}")
        self._seed = seed
        self.lost: dict[int, str] = {}
        """Shards that are gone and will not come back, with what became of them."""

    def __repr__(self) -> str:
        return f"<ShardedReplay of {len(self.shards)} shards, {len(self.lost)} lost>"

    def shard_of(self, run_id: str) -> int:
        """Number of the shard of a run id. When it is lost for good, others take its run ids, and keep their own."""
        left, rest = list(range(len(self.shards))), zlib.crc32(run_id.encode())
        while left:
            rest, place = divmod(rest, len(left))
            shard = left.pop(place)
            if shard not in self.lost:
                return shard
        raise ServiceLost(f"all {len(self.shards)} shards of replay are lost: {'; '.join(self.lost.values())}")

    def give_up(self, shard: int, why: Exception) -> None:
        """Note that a shard is gone for good."""
        self.lost[shard] = str(why)

    def insert(self, insertion: Insertion) -> bool:
        """Insert into the shard of the run id; see `ReplayServer.insert`. `Inserter` survives the loss of a shard."""
        return self.shards[self.shard_of(insertion.run_id)].insert(insertion)

    def end_stream(self, run_id: str) -> None:
        """Drop the rows that only a stream's later insertions could name; a shard that is lost has none."""
        shard = self.shard_of(run_id)
        try:
            self.shards[shard].end_stream(run_id)
        except ServiceLost as error:
            self.give_up(shard, error)

    def tables(self) -> tuple[ReplayTable, ...]:
        """Return the settings of the tables, which are equal in all shards."""
        while True:
            shard = self.shard_of("")
            try:
                return self.shards[shard].tables()
            except ServiceLost as error:
                self.give_up(shard, error)

    def sample_calls(self, table: str, batch_size: int, num_calls: int) -> SampleCalls:
        """Return calls for samples of all shards, for a `Sampler`; `num_calls` of each shard."""
        return ShardSampleCalls(self, table, batch_size, num_calls, self._seed)

    def update_priorities(self, table: str, keys: NDArray[np.int64], priorities: NDArray[np.float64]) -> int:
        """Change priorities; see `ReplayServer.update_priorities`."""
        return sum(self._of_keys(lambda client: client.update_priorities, table, keys, priorities))

    def delete(self, table: str, keys: NDArray[np.int64]) -> int:
        """Delete items; see `ReplayServer.delete`."""
        return sum(self._of_keys(lambda client: client.delete, table, keys))

    def reset(self, table: str) -> None:
        """Delete all items of a table in all shards."""
        self._of_all(lambda client, _: client.reset.future(table))

    def set_limiter(self, table: str, limiter: Limiter) -> None:
        """Give the table another limiter in each shard."""
        self._of_all(lambda client, _: client.set_limiter.future(table, limiter))

    def info(self) -> dict[str, TableInfo]:
        """Return facts about each table, summed over the shards."""
        infos = self._of_all(lambda client, _: client.info.future())
        return {name: _summed([info[name] for info in infos]) for name in infos[0]}

    def _of_keys(
        self, call: Callable[[Any], Any], table: str, keys: NDArray[np.int64], *more: NDArray[np.float64]
    ) -> list[int]:
        """Call the shards of the keys, each with its own keys and what belongs to them."""
        num = len(self.shards)

        def begin(client: Any, shard: int) -> Future[int] | None:
            own = keys % num == shard
            return call(client).future(table, keys[own] // num, *(each[own] for each in more)) if own.any() else None

        return self._of_all(begin)

    def _of_all(self, begin: Callable[[Any, int], Future[Result] | None]) -> list[Result]:
        """Call all shards that are left side by side; one that turns out to be lost has no result.

        Raises:
            ServiceLost: none is left.
        """
        futures: list[tuple[int, Future[Result]]] = []
        for shard, client in enumerate(self.shards):
            future = None if shard in self.lost else begin(client, shard)
            if future:
                futures.append((shard, future))
        results: list[Result] = []
        for shard, future in futures:
            try:
                results.append(future.result())
            except ServiceLost as error:
                self.give_up(shard, error)
        self.shard_of("")  # raises if none is left
        return results


class ShardSampleCalls(SampleCalls):
    """Calls for samples of all shards, received in proportion to the shards' weights.

    A shard's weight is its number of items, or, for a prioritized table, the sum from which it draws. Each call of a
    shard tells both; a shard has calls under way all the time, so they are known as soon as it has items.

    Args:
        replay: the shards.
        table: name of the table.
        batch_size: items that each call asks for.
        num_calls: calls under way at each shard.
        seed: seed of the choice of shards.
    """

    def __init__(self, replay: ShardedReplay, table: str, batch_size: int, num_calls: int, seed: int) -> None:
        super().__init__(table, batch_size)
        self._replay, self._num_calls = replay, num_calls
        self._rng = np.random.default_rng(seed)
        self._calls: list[list[Future[Answer]]] = [[] for _ in replay.shards]
        self._weights = np.zeros(len(replay.shards))
        self._sizes = np.zeros(len(replay.shards), np.int64)
        self._exponent: float | None = None

    def receive(self, due: float | None) -> Drawn:
        while True:
            self._begin_calls()
            shard = self._choose(due)
            try:
                drawn = self._opened(self._calls[shard].pop(0).result())
            except ServiceLost as error:
                self._replay.give_up(shard, error)
                continue
            if drawn:
                return self._as_one(shard, drawn[0]), drawn[1]

    @property
    def is_ready(self) -> bool:
        return any(calls and calls[0].done() for calls in self._calls)

    def _under_way(self) -> Sequence[Future[Answer]]:
        return [future for calls in self._calls for future in calls]

    def _begin_calls(self) -> None:
        self._check_open()
        self._replay.shard_of("")  # raises if none is left
        for shard in tuple(self._replay.lost):  # an inserter may have found out as well
            self._weights[shard] = self._sizes[shard] = 0
        if self._exponent is None:
            settings = {table.name: table for table in self._replay.tables()}[self._table]
            self._exponent = float(getattr(settings.sampler, "exponent", 0.0))
        for shard, client in enumerate(self._replay.shards):
            while shard not in self._replay.lost and len(self._calls[shard]) < self._num_calls:
                self._calls[shard].append(self._begin(client))

    def _choose(self, due: float | None) -> int:
        """Return a shard whose answer has come, waiting for one."""
        left = [shard for shard in range(len(self._calls)) if shard not in self._replay.lost]
        first = {shard: self._calls[shard][0] for shard in left}
        # The weight of a shard is not known before its first answer is received.
        fresh = [shard for shard in left if not self._weights[shard] and first[shard].done()]
        if fresh:
            return fresh[0]
        if self._weights.any():
            drawn = int(self._rng.choice(len(self._weights), p=self._weights / self._weights.sum()))
            patience = time.monotonic() + _PATIENCE_S
            if self._wait((first[drawn],), patience if due is None else min(due, patience)):
                return drawn
        if not self._wait(tuple(first.values()), due):
            raise self._too_late()
        return next(shard for shard in left if first[shard].done())

    def _as_one(self, shard: int, batch: Batch) -> Batch:
        """The batch with keys, probabilities and size as in a single table; notes the shard's weight."""
        info = batch.info
        # Of priority ** exponent / total.
        total = info.priority[0] ** self._exponent / info.probability[0] if self._exponent else info.table_size
        self._weights[shard], self._sizes[shard] = total or _LEAST * info.table_size, info.table_size
        share = self._weights[shard] / self._weights.sum()
        keys = info.keys * len(self._weights) + shard
        return Batch(
            batch.columns,
            replace(info, keys=keys, probability=info.probability * share, table_size=int(self._sizes.sum())),
        )


def _summed(infos: Sequence[TableInfo]) -> TableInfo:
    first = infos[0]
    numbers = ("size", "max_size", "num_bytes", "inserts", "samples", "deletes")
    sums = {name: sum(getattr(info, name) for info in infos) for name in numbers}
    waits = ("insert_waits_for", "sample_waits_for")
    # A call goes to one shard: what all of them wait for is what it waits for.
    texts = {name: "; ".join(getattr(info, name) for info in infos) for name in waits}
    all_wait = {name: texts[name] if all(getattr(info, name) for info in infos) else "" for name in waits}
    return replace(first, **sums, **all_wait)


__all__ = ["ShardSampleCalls", "ShardedReplay"]
