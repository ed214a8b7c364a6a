"""`Sampler`: batches from replay, fetched ahead of their use.

replay ── draw ──▶ call, call ─▶ pieces ─▶ batches of `batch_size` items ─▶ learner
                   ahead * workers calls under way
"""

from __future__ import annotations

import logging
import time
from collections import deque
from numbers import Integral
from types import TracebackType
from typing import Any, Self

from ropewalk.argument_kinds import check_number
from ropewalk.rl.replay.batch import Batch, joined
from ropewalk.rl.replay.here import callable_replay
from ropewalk.rl.replay.life import ReplayLife
from ropewalk.rl.replay.sample_calls import SampleCalls, SampleCallsInOrder, SamplerClosed
from ropewalk.rl.replay.shards import ShardedReplay

logger = logging.getLogger(__name__)


class Sampler:
    """An iterator of batches of a table, for one thread.

    Calls for the next batches are under way while a batch is learned from. So a batch is drawn with the priorities of
    up to `ahead * workers` updates ago, and as many batches count as sampled before they are used.

    Where the limiter lets fewer items be sampled at once than a batch has, a batch consists of several draws. When the
    server is lost, the sampler waits until it is back and goes on; the log and `losses` say whether it came back with
    the items of its last checkpoint or empty.

    Args:
        replay: a client of a replay server, a `ReplayServer`, a `ReplayTables` or a `ShardedReplay`.
        table: name of the table.
        batch_size: items of a batch.
        ahead: calls that each worker has under way, at least 1. With more than one, calls may overtake each other at
            the server, so that batches of a queue need not be in its order.
        workers: more than 1 lets the server make several batches at the same time.
        deadline_s: seconds that `next` waits at most; None waits for ever.

    Attributes:
        losses: how replay came back each time that it was lost, in words.

    Raises:
        ValueError: a number is below 1.
    """

    def __init__(
        self,
        replay: Any,
        table: str,
        batch_size: int,
        ahead: int = 2,
        workers: int = 1,
        deadline_s: float | None = None,
    ) -> None:
        for name, value in (("batch_size", batch_size), ("ahead", ahead), ("workers", workers)):
            check_number(name, value, Integral, "a whole number", least=1, required=True)
        self._table, self._batch_size, self._deadline_s = table, batch_size, deadline_s
        if isinstance(replay, ShardedReplay):
            self._sample_calls: SampleCalls = replay.sample_calls(table, batch_size, ahead * workers)
        else:
            source = callable_replay(replay)
            # With tables of this process a call draws at once, from what was inserted by then.
            num_calls = ahead * workers if source is replay else 1
            self._sample_calls = SampleCallsInOrder(source, table, batch_size, num_calls)
        self._pieces: deque[Batch] = deque()
        self._lives: dict[str, str] = {}
        self.losses: list[str] = []

    def __repr__(self) -> str:
        return f"<Sampler table={self._table!r} batch_size={self._batch_size}>"

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Batch:
        """Return the next batch.

        Raises:
            StopIteration: the sampler was closed.
            DeadlineExceeded: no batch came within `deadline_s`; the calls stay under way.
            LimiterDeadlock: neither inserting nor sampling can go on.
            ProgramStopped: the program is being stopped.
        """
        due = None if self._deadline_s is None else time.monotonic() + self._deadline_s
        while self._num_items < self._batch_size:
            try:
                batch, life = self._sample_calls.receive(due)
            except SamplerClosed:
                raise StopIteration from None
            self._note(life)
            self._pieces.append(batch)
        return self._take()

    @property
    def is_ready(self) -> bool:
        """Whether `next` would return without waiting, as far as is known."""
        return self._num_items >= self._batch_size or self._sample_calls.is_ready

    def close(self) -> None:
        """Give up all calls; a thread that waits in `next` is woken, and gets StopIteration. May be called twice."""
        self._sample_calls.close()

    @property
    def _num_items(self) -> int:
        return sum(map(len, self._pieces))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _take(self) -> Batch:
        """A batch of the oldest pieces; all but the last one are used up."""
        taken: list[Batch] = []
        missing = self._batch_size
        while missing:
            piece = self._pieces.popleft()
            if len(piece) > missing:
                self._pieces.appendleft(piece.take(slice(missing, None)))
                piece = piece.take(slice(missing))
            taken.append(piece)
            missing -= len(piece)
        return joined(taken)

    def _note(self, life: ReplayLife | None) -> None:
        """Notice when a batch is from another life of the server."""
        if life is None:
            return
        before = self._lives.get(life.server)
        if before not in (None, life.id):
            self.losses.append(life.describe())
            logger.warning("table %r: %s", self._table, life.describe())
        self._lives[life.server] = life.id


__all__ = ["Sampler"]
