"""`Draws`: the calls for samples of a table that are under way."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from concurrent.futures import CancelledError, Future
from typing import Any, TypeAlias

from ropewalk.errors import DeadlineExceeded
from ropewalk.rl.replay.batch import Batch
from ropewalk.rl.replay.life import ReplayLife

Drawn: TypeAlias = "tuple[Batch, ReplayLife | None]"
"""Items, and the life of the server that they are from; None for tables of this process."""


class SamplerClosed(Exception):
    """The sampler was closed while a thread waited in it."""


class Draws(ABC):
    """Keeps calls for samples under way; one thread receives, any thread closes.

    Args:
        table: name of the table.
        batch_size: items that each call asks for.
    """

    def __init__(self, table: str, batch_size: int) -> None:
        self._table, self._batch_size = table, batch_size

    @abstractmethod
    def receive(self, due: float | None) -> Drawn:
        """Return what some call answered.

        Args:
            due: monotonic time in seconds until which to wait; None waits for ever.

        Raises:
            DeadlineExceeded: no answer came until then; the calls stay under way.
            SamplerClosed: `close` was called.
            Exception: of the call.
        """

    @property
    @abstractmethod
    def is_ready(self) -> bool:
        """Whether an answer has come that was not received."""

    @abstractmethod
    def close(self) -> None:
        """Give up all calls, and wake the thread that waits in `receive`; may be called twice."""

    def _begin(self, replay: Any) -> Future[Drawn]:
        return replay.draw.future(self._table, self._batch_size, None, self._batch_size)

    def _result(self, future: Future[Drawn], due: float | None) -> Drawn:
        try:
            return future.result(None if due is None else max(0.0, due - time.monotonic()))
        except CancelledError:
            raise SamplerClosed from None
        except TimeoutError:
            if future.done():
                raise  # it is the call's own error
            raise DeadlineExceeded(
                f"no items came from table {self._table!r} in time; the calls stay under way", call="sample"
            ) from None


class DrawsInOrder(Draws):
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
        self._calls: deque[Future[Drawn]] = deque()
        self._closed = False
        self._lock = threading.Lock()

    def receive(self, due: float | None) -> Drawn:
        future = self._oldest()
        try:
            drawn = self._result(future, due)
        except BaseException:
            if future.done():
                self._remove(future)
            raise
        self._remove(future)
        return drawn

    @property
    def is_ready(self) -> bool:
        return bool(self._calls and self._calls[0].done())

    def close(self) -> None:
        with self._lock:
            self._closed = True
            calls = list(self._calls)
            self._calls.clear()
        for future in calls:
            future.cancel()

    def _oldest(self) -> Future[Drawn]:
        with self._lock:
            if self._closed:
                raise SamplerClosed
            while len(self._calls) < self._num_calls:
                self._calls.append(self._begin(self._replay))
            return self._calls[0]

    def _remove(self, future: Future[Drawn]) -> None:
        with self._lock:
            if self._calls and self._calls[0] is future:
                self._calls.popleft()


__all__ = ["Drawn", "Draws", "DrawsInOrder", "SamplerClosed"]
