"""`Inserter`: sends the insertions of an actor to replay, several at a time and in order, across losses of the server.

insert ─▶ a call, with at most `ahead` under way ─▶ acknowledged
              └─ StreamLost ─▶ a new stream, with the rows that are still needed
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections import deque
from concurrent.futures import CancelledError, Future
from numbers import Integral
from typing import Any

from ropewalk.argument_kinds import check_number
from ropewalk.errors import CallError, DeadlineExceeded, ServiceLost, StreamLost
from ropewalk.rl.replay.checking import check_signature
from ropewalk.rl.replay.here import TablesHere, callable_replay
from ropewalk.rl.replay.insertion import Insertion
from ropewalk.rl.replay.sent_rows import SentStream
from ropewalk.rl.replay.shards import ShardedReplay
from ropewalk.rl.replay.table import ReplayTable

logger = logging.getLogger(__name__)


class Inserter:
    """Inserts into replay, wherever that is; for one actor, in one thread.

    With a client, insertions are sent without waiting for each answer. An insertion is done once, whatever happens to
    calls and servers in between. When replay comes back without earlier insertions of the stream, a new stream follows
    under another run id (the old one with "~1"), and begins with the rows that are still needed. With replay in this
    process, each insertion is done at once.

    Args:
        replay: a client of a replay server, a `ReplayServer`, a `ReplayTables` or a `ShardedReplay`.
        ahead: insertions that may be without an answer; a further one waits. This bounds how old the weights of an
            insertion may be that waits at the limiter, and the memory that insertions take.

    Raises:
        ValueError: `ahead` is below 1.
    """

    def __init__(self, replay: Any, ahead: int = 4) -> None:
        check_number("ahead", ahead, Integral, "a whole number", least=1, required=True)
        self._replay = callable_replay(replay)
        self._ahead = ahead
        self._stream: SentStream | None = None
        self._target: Any = self._replay
        self._shard = 0
        self._calls: deque[tuple[Future[list[bool]], int]] = deque()
        """Calls under way, with the number of insertions in each."""
        self._tables: tuple[ReplayTable, ...] = ()

    def __repr__(self) -> str:
        return f"<Inserter ahead={self._ahead}, {self.num_waiting} waiting>"

    @property
    def num_waiting(self) -> int:
        """Number of insertions without an answer."""
        return len(self._stream.waiting) if self._stream else 0

    def tables(self) -> tuple[ReplayTable, ...]:
        """Return the settings of replay's tables, for which it is asked once."""
        if not self._tables:
            self._tables = self._replay.tables()
        return self._tables

    def insert(self, insertion: Insertion) -> None:
        """Insert, waiting while `ahead` insertions are without an answer.

        Errors of earlier insertions are raised here: then this one was not taken, and the earlier ones are sent again
        by the next call.

        Raises:
            ValueError: the insertion does not fit the signature of a table; it was not sent. Or replay refused an
                earlier one.
            LimiterDeadlock: neither inserting nor sampling can go on.
            ProgramStopped: the program is being stopped.
            RuntimeError: replay is in this process, and nothing can be inserted before something is sampled.
        """
        if self._stream is None or self._stream.run_id != insertion.run_id:
            self._begin(insertion.run_id)
        assert self._stream
        self._check(insertion)
        self._settle(self._ahead - 1, None)
        self._send([self._stream.add(insertion)])

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until all insertions were done.

        Args:
            timeout_s: seconds; None waits for ever.

        Raises:
            DeadlineExceeded: after `timeout_s`; the insertions stay under way.
        """
        self._settle(0, None if timeout_s is None else time.monotonic() + timeout_s)

    def close(self) -> None:
        """End the stream, and give up insertions without an answer, each of which is done or not; may be called twice.

        Replay is told so, and can tell samplers when no stream is left.
        """
        self._drop_calls()
        stream, self._stream = self._stream, None
        if stream is not None:
            with contextlib.suppress(CallError):  # replay is gone, and its streams with it
                self._target.end_stream.send(stream.name)

    def _begin(self, run_id: str) -> None:
        if self._stream:
            self.flush()
            self._end_stream(self._stream)
        self._stream = SentStream(run_id)
        self._choose_target()

    def _choose_target(self) -> None:
        replay = self._replay
        if isinstance(replay, ShardedReplay):
            assert self._stream
            self._shard = replay.shard_of(self._stream.run_id)
            replay = replay.shards[self._shard]
        self._target = replay

    def _check(self, insertion: Insertion) -> None:
        for table in self.tables():
            check_signature(table, insertion)

    def _send(self, insertions: list[Insertion]) -> None:
        assert self._stream
        future: Future[list[bool]] = self._target.insert_many.future(insertions, self._stream.acknowledged)
        self._calls.append((future, len(insertions)))

    def _settle(self, at_most: int, due: float | None) -> None:
        """Take the answers that have come, and wait until at most this number of insertions is without one."""
        if isinstance(self._target, TablesHere) and any(future.exception() for future, _ in self._calls):
            self._drop_calls()  # whether they have to wait is decided now
        while self._stream and self._stream.waiting:
            if not self._calls:  # replay did not do them when they were sent
                self._send([self._stream.as_sent(insertion) for insertion in self._stream.waiting])
            future, num = self._calls[0]
            if not future.done() and self.num_waiting <= at_most:
                return
            try:
                future.result(None if due is None else max(0.0, due - time.monotonic()))
            except StreamLost as error:
                self._end_stream(self._stream)
                self._begin_anew(error)
            except ServiceLost as error:
                self._give_up_shard(error)
                self._begin_anew(error)
            except (TimeoutError, CancelledError) as error:
                if future.done():
                    raise
                raise DeadlineExceeded(
                    f"{self.num_waiting} insertions of stream {self._stream.name} are not done yet and stay under way",
                    call="insert",
                ) from error
            except Exception:
                self._drop_calls()  # they are sent again by the next call here
                raise
            else:
                self._calls.popleft()
                self._stream.acknowledge(num)

    def _drop_calls(self) -> None:
        for future, _ in self._calls:
            future.cancel()
        self._calls.clear()

    def _end_stream(self, stream: SentStream) -> None:
        """Have replay forget a stream; a shard that turns out to be lost has none."""
        try:
            self._target.end_stream(stream.name)
        except ServiceLost as error:
            self._give_up_shard(error)

    def _give_up_shard(self, error: ServiceLost) -> None:
        """Go on with another shard. Raises `error` where replay has no shards."""
        if not isinstance(self._replay, ShardedReplay):
            raise error
        self._replay.give_up(self._shard, error)
        self._choose_target()

    def _begin_anew(self, error: StreamLost | ServiceLost) -> None:
        """Send everything without an answer in a new stream; the calls under way fail or are given up first."""
        assert self._stream
        before = self._stream.name
        self._drop_calls()
        insertions = self._stream.begin_anew()
        logger.warning("%s; stream %s follows %s", error, self._stream.name, before)
        self._send(insertions)


__all__ = ["Inserter"]
