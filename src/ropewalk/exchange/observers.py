"""`Observers`: passes events to the observers of one exchange, one after the other."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Generator, Iterable, Sequence

from ropewalk.errors import ExchangeStalled
from ropewalk.exchange.buckets import Layout
from ropewalk.exchange.exchange import StepRecord
from ropewalk.exchange.groups.group import Group
from ropewalk.exchange.observer import Observer

logger = logging.getLogger(__name__)


class Observers:
    """Tells all observers of an exchange; see `Observer` for the meaning of each call.

    Args:
        observers: the observers, in the order in which they are called.
    """

    def __init__(self, observers: Iterable[Observer]) -> None:
        self._observers = tuple(observers)

    def bind(self, layouts: Sequence[Layout], group: Group) -> None:
        for observer in self._observers:
            observer.bind(layouts, group)

    def begin(self, record: StepRecord) -> None:
        for observer in self._observers:
            observer.begin(record)

    def ready(self, name: str) -> None:
        for observer in self._observers:
            observer.ready(name)

    def enqueued(self, bucket: int, names: Sequence[str]) -> None:
        for observer in self._observers:
            observer.enqueued(bucket, names)

    def phase(self, name: str, bucket: int, began: float) -> None:
        """Report a phase of a bucket that began at `began`, in seconds of `time.perf_counter`, and ends now."""
        ended = time.perf_counter()
        for observer in self._observers:
            observer.phase(name, bucket, began, ended)

    @contextlib.contextmanager
    def timed(self, phase: str, bucket: int) -> Generator[None]:
        """Tell the observers how long a phase of a bucket takes."""
        began = time.perf_counter()
        yield
        self.phase(phase, bucket, began)

    def sent(self, bucket: int, mode: str, num_values: int) -> None:
        for observer in self._observers:
            observer.sent(bucket, mode, num_values)

    def note(self, text: str) -> None:
        for observer in self._observers:
            observer.note(text)

    def ended(self, step: int) -> None:
        for observer in self._observers:
            observer.ended(step)

    def failed(self, step: int, error: BaseException) -> BaseException:
        """Report a failed step; return the error, with what observers know added."""
        for observer in self._observers:
            # If an observer fails, the threads that wait for the step must still hear that the step failed.
            try:
                if isinstance(error, ExchangeStalled):
                    error = observer.explained(error)
                observer.failed(error)
            except Exception:
                logger.exception("%s could not be told that step %d failed", type(observer).__name__, step)
        return error

    def waiting(self, waited_s: float) -> None:
        for observer in self._observers:
            observer.waiting(waited_s)

    def close(self) -> None:
        for observer in self._observers:
            observer.close()
