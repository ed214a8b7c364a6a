"""`SampleCalls`: the calls for samples of a table that are under way."""

from __future__ import annotations

import logging
import os
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, TypeAlias

from ropewalk.errors import DeadlineExceeded, PeerLost
from ropewalk.rl.replay.batch import Batch
from ropewalk.rl.replay.lent_batches import BatchBorrower, LentBatch
from ropewalk.rl.replay.life import ReplayLife

Answer: TypeAlias = "tuple[Batch | LentBatch, ReplayLife | None]"
"""What a call returns: items, and the life of the server that they are from; None for tables of this process."""
Drawn: TypeAlias = "tuple[Batch, ReplayLife | None]"
"""The same with the items at hand."""


_MOST_UNOPENED = 3
"""After this many batches in a row whose memory could not be opened, batches travel in their answers."""

logger = logging.getLogger(__name__)


class SamplerClosed(Exception):
    """The sampler was closed while a thread waited in it."""


class SampleCalls(ABC):
    """Keeps calls for samples under way; one thread receives, any thread closes.

    Args:
        table: name of the table.
        batch_size: items that each call asks for.
    """

    def __init__(self, table: str, batch_size: int) -> None:
        self._table, self._batch_size = table, batch_size
        # Told of answers and of `close`. A thread that waits in `Future.result` would not be woken by a cancel.
        self._changed = threading.Condition()
        self._closed = False
        self._borrower = BatchBorrower()
        self._num_unopened = 0
        """Batches in a row whose memory could not be opened."""

    @abstractmethod
    def receive(self, due: float | None) -> Drawn:
        """Return what some call answered.

        Args:
            due: monotonic time in seconds until which to wait; None waits for ever.

        Raises:
            DeadlineExceeded: no answer came until then; the calls stay under way.
            SamplerClosed: `close` was called.
            Exception: the exception of the call.
        """

    @property
    @abstractmethod
    def is_ready(self) -> bool:
        """Whether an answer has come that was not received."""

    @abstractmethod
    def _under_way(self) -> Sequence[Future[Answer]]:
        """All calls that were not received."""

    def close(self) -> None:
        """Give up all calls, and wake the thread that waits in `receive`; may be called twice."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for future in self._under_way():
            future.cancel()
        self._borrower.close()

    def _begin(self, replay: Any) -> Future[Answer]:
        """Begin a call."""
        future: Future[Answer] = replay.draw.future(self._table, self._batch_size, None, self._batch_size, self._pid)
        future.add_done_callback(self._tell)
        if self._closed:  # by another thread, which did not see this call
            future.cancel()
        return future

    def _tell(self, _: Future[Answer]) -> None:
        with self._changed:
            self._changed.notify_all()

    def _wait(self, futures: Sequence[Future[Answer]], due: float | None) -> bool:
        """Wait until one of some calls is done; False if `due` comes first.

        Raises:
            SamplerClosed: `close` was called.
        """
        with self._changed:
            left_s = None if due is None else max(0.0, due - time.monotonic())
            self._changed.wait_for(lambda: self._closed or any(future.done() for future in futures), left_s)
        self._check_open()
        return any(future.done() for future in futures)

    @property
    def _pid(self) -> int:
        """This process, if memory may be lent to it."""
        return os.getpid() if self._num_unopened < _MOST_UNOPENED else 0

    def _opened(self, answer: Answer) -> Drawn | None:
        """What was drawn; None if the server ended before this process could open its memory."""
        batch, life = answer
        if isinstance(batch, Batch):
            return batch, life
        try:
            opened = self._borrower.batch(batch)
        except PeerLost as error:
            self._num_unopened += 1
            logger.warning("%d items of table %r are lost: %s", len(batch.info.keys), self._table, error)
            return None
        self._num_unopened = 0
        return opened, life

    def _check_open(self) -> None:
        if self._closed:
            raise SamplerClosed

    def _too_late(self) -> DeadlineExceeded:
        return DeadlineExceeded(
            f"no items came from table {self._table!r} in time; the calls stay under way", call="sample"
        )


class SampleCallsInOrder(SampleCalls):
    """Calls of one server, received in the order in which they were made.

    Args:
        replay: the server's client.
        table: name of the table.
        batch_size: items that each call asks for.
        num_calls: calls under way.
    """

    def __init__(self, replay: Any, table: str, batch_size: int, num_calls: int) -> None:
        super().__init__(table, batch_size)
        self._replay, self._num_calls = replay, num_calls
        self._calls: deque[Future[Answer]] = deque()

    def receive(self, due: float | None) -> Drawn:
        while True:
            self._check_open()
            while len(self._calls) < self._num_calls:
                self._calls.append(self._begin(self._replay))
            if not self._wait((self._calls[0],), due):
                raise self._too_late()
            if drawn := self._opened(self._calls.popleft().result()):
                return drawn

    @property
    def is_ready(self) -> bool:
        return bool(self._calls and self._calls[0].done())

    def _under_way(self) -> Sequence[Future[Answer]]:
        return tuple(self._calls)


__all__ = ["Answer", "Drawn", "SampleCalls", "SampleCallsInOrder", "SamplerClosed"]
